"""The command line of a checkout: `python cli.py run --workers 3 --ps 1`; installed, it is `ps-cluster run …`."""

import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent / ".venv"  # that `make install` makes


def what_to_do(error: Exception, version: "tuple[int, int]") -> str:
    """Return, in one line, why this Python can't import the program. `version`: of this Python, e.g. (3, 10)."""
    make = "make install"
    if not (3, 11) <= version < (3, 14):
        why = f"is Python {version[0]}.{version[1]}, but TensorFlow needs Python 3.11 to 3.13"
        make = "make install PYTHON=python3.13"
    elif isinstance(error, ModuleNotFoundError):
        why = f"has no package '{error.name}'"
    else:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        why = f"can't import this program, probably because requirements.txt has other versions of packages ({reason})"
    activate = ENVIRONMENT / "bin" / "activate"
    there = f"activate .venv, by: . '{activate}'" if activate.is_file() else f"{make}, then: . .venv/bin/activate"
    return f"Error: {sys.executable} {why}: {there}"


if __name__ == "__main__":
    try:
        from ps_cluster.cli.main import main
    except Exception as error:
        if Path(sys.prefix).resolve() == ENVIRONMENT.resolve():  # everything is there, so this is a bug
            raise
        print(what_to_do(error, sys.version_info[:2]), file=sys.stderr)
        sys.exit(2)
    main()
