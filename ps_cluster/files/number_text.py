"""Write numbers for people."""

from __future__ import annotations

LARGE, VERY_LARGE = 1e4, 1e12


def number_text(value: float) -> str:
    """Return a number with four digits; a large one whole, "22,460" and not "2.246e+04"."""
    return f"{value:,.0f}" if LARGE <= abs(value) < VERY_LARGE else f"{value:.4g}"
