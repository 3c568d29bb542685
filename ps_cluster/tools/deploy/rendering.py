"""Fill in the templates of the files that schedulers read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: object) -> str:
    """Return a template with `values` filled in.

    In templates, the filter `q` quotes a value for YAML, and the filter `sh` quotes text for a shell.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(q=json.dumps, sh=shlex.quote)  # JSON is YAML
    return environment.get_template(template).render(values)
