"""Render a page: one HTML file that needs no other file, and is light or dark like the reader's system."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def rendered(package: str, template: str, **values: Any) -> str:
    """Return the HTML of a template.

    Args:
      package: the package whose folder templates/ has the template. The template may extend base.html and import
        parts.html of report/templates/, which have the style and the tables of all pages.
      values: the values that the template shows. The current time is added as `written`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("ps_cluster.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(written=written, **values)
