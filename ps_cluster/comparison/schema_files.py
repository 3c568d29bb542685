"""Write the JSON schemas of files for `run --config` and `compare --config`, from the classes that validate them.

`python -m ps_cluster.comparison.schema_files` writes configs/schema.json and configs/compare.schema.json anew; a test
compares them. Editors find them by the comment `# yaml-language-server: $schema=…` at the top of a file.
"""

from __future__ import annotations

import json

from ps_cluster.comparison.plan import Comparison
from ps_cluster.config.json_schema import (
    DIALECT,
    Schema,
    leaves,
    names_schema,
    one_object,
    run_schema,
    schema_of,
    sections_schema,
)
from ps_cluster.config.sections import CHOSEN
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import CONFIG_FOLDER


def comparison_schema() -> Schema:
    """Return the schema of a comparison's file. Settings of runs stand in sections, or have dotted keys."""
    properties = schema_of(Comparison)["properties"]
    sections = sections_schema()
    keys = [key for key, _ in leaves(sections)]
    dotted = {key: {"$ref": f"#/properties/settings/properties/{key.replace('.', '/properties/')}"} for key in keys}
    properties["settings"] = one_object({**sections, **dotted})
    arm = properties["arms"]["items"]["properties"]
    arm["set"] = one_object({key: found for key, found in dotted.items() if key.count(".") == 1})
    arm["mode"] = names_schema(CHOSEN["mode"], arm["mode"])
    return {"$schema": DIALECT, "title": "Comparison of ps_cluster", **one_object(properties)}


def texts() -> dict[str, str]:
    """Return the content of each file, by its name in configs/."""
    schemas = {"schema.json": run_schema(), "compare.schema.json": comparison_schema()}
    return {name: f"{json.dumps(schema, indent=1, ensure_ascii=False)}\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    for file, text in texts().items():
        write_whole(CONFIG_FOLDER / file, text)
