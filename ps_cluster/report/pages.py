"""Render a page: one HTML file that needs no other file, and is light or dark like the reader's system."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from importlib.resources import files as package_files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def rendered(package: str, template: str, *, script: str | None = None, **values: Any) -> str:
    """Return the HTML of a template.

    Args:
      package: the package whose folder templates/ has the template. The template may extend base.html and import
        parts.html of report/templates/, which have the style and the tables of all pages.
      script: a file of report/templates/, the only code that the browser may run; None for a page without a script.
      values: the values that the template shows. The current time is added as `written`.
    """
    if script is not None:
        code = package_files("ps_cluster.report").joinpath(f"templates/{script}").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        values |= {"script": Markup(code), "digest": digest}  # the code is part of this package, and has no "</script>"
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("ps_cluster.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(written=written, **values)
