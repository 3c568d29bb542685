"""Keep a drawn figure with its title and caption, and write it as PNG or SVG."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cached_property

from matplotlib.figure import Figure

from ps_cluster.reporting.plot_style import plot_style

DPI = 150


@dataclass(frozen=True)
class Plot:
    name: str  # of its files, without suffix
    title: str
    caption: str
    figure: Figure

    @cached_property
    def png(self) -> bytes:
        return self._saved("png")

    @cached_property
    def svg(self) -> bytes:
        return self._saved("svg")

    @property
    def data_uri(self) -> str:
        """The picture as the source of an <img>, so that a page needs no other file."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"

    def _saved(self, kind: str) -> bytes:
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with plot_style():
            self.figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        return content.getvalue()
