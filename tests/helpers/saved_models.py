"""What is in a model that Keras has saved."""

import re
import zipfile
from pathlib import Path


def modules_in(saved: Path) -> set[str]:
    """Return the packages that it takes its classes from: {"keras"} where anybody can load it."""
    with zipfile.ZipFile(saved) as file:
        return {
            name.partition(".")[0] for name in re.findall(r'"module": "([^"]+)"', file.read("config.json").decode())
        }
