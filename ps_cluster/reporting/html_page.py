"""Render a page: one HTML file that needs no other file, light or dark as the reader's system is."""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def rendered(package: str, template: str, **values: Any) -> str:
    """Return the HTML of a template.

    Args:
      package: its folder templates/ has the template. This one may extend base.html of reporting/templates/, which has
        the style of all pages.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("ps_cluster.reporting")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
