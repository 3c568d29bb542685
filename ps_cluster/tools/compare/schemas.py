"""Write the JSON schemas of the files for `run --config` and `compare --config`, from the classes that validate them.

`python -m ps_cluster.tools.compare.schemas` writes configs/schema.json and configs/compare.schema.json; a test fails if they
are out of date. Editors find them by the comment `# yaml-language-server: $schema=…` at the top of a file.
"""

from __future__ import annotations

import json

from ps_cluster.cli.reference import (
    DIALECT,
    Schema,
    leaves,
    names_schema,
    one_object,
    run_schema,
    schema_of,
    sections_schema,
)
from ps_cluster.config.sections import MODE
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.tools.compare.comparison_plan import Comparison

_RUN_SCHEMA = "schema.json"  # in the folder of the other schema, which refers to it


def comparison_schema() -> Schema:
    """Return the schema of a comparison's file.

    In such a file, settings of runs are nested (`training: {epochs: 3}`) or have dotted keys (`training.epochs: 3`).
    """
    properties = schema_of(Comparison)["properties"]
    sections = sections_schema()
    of_run = {
        key: {"$ref": f"{_RUN_SCHEMA}#/properties/{key.replace('.', '/properties/')}"}
        for key in (*sections, *(key for key, _ in leaves(sections)))
    }
    properties["settings"] = one_object(of_run)
    arm = properties["arms"]["items"]["properties"]
    arm["set"] = one_object({key: found for key, found in of_run.items() if key.count(".") == 1})
    arm["mode"] = names_schema(MODE, arm["mode"])
    return {"$schema": DIALECT, "title": "Comparison of ps_cluster", **one_object(properties)}


def texts() -> dict[str, str]:
    """Return the content of each file, by its name in configs/."""
    schemas = {_RUN_SCHEMA: run_schema(), "compare.schema.json": comparison_schema()}
    return {name: f"{json.dumps(schema, indent=1, ensure_ascii=False)}\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    for file, text in texts().items():
        write_whole(CONFIG_FOLDER / file, text)
