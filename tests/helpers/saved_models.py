"""Look into a model that Keras has saved."""

import re
import zipfile
from pathlib import Path


def modules_in(saved: Path) -> set[str]:
    """Return the packages whose classes a saved model needs: {"keras"} if Keras alone can load it."""
    with zipfile.ZipFile(saved) as file:
        return {
            name.partition(".")[0] for name in re.findall(r'"module": "([^"]+)"', file.read("config.json").decode())
        }
