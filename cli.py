"""The command line of a checkout: `python cli.py run --workers 3 --ps 1`; installed, it is `ps-cluster run …`."""

import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent / ".venv"  # that `make install` makes


def what_to_do(missing: str | None) -> str:
    """Return the error of a Python that lacks a package, in one line. `missing`: its name."""
    activate = ENVIRONMENT / "bin" / "activate"
    there = f"activate .venv, by: . '{activate}'" if activate.is_file() else "make install, then: . .venv/bin/activate"
    return f"Error: {sys.executable} has no package '{missing}': {there}"


if __name__ == "__main__":
    try:
        from ps_cluster.cli.main import main
    except ModuleNotFoundError as error:
        if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():  # everything is there, so this is a bug
            raise
        print(what_to_do(error.name), file=sys.stderr)
        sys.exit(2)
    main()
