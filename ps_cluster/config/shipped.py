"""Where the configuration files of the project are."""

from __future__ import annotations

from pathlib import Path

CONFIG_FOLDER = Path(__file__).resolve().parents[2] / "configs"
