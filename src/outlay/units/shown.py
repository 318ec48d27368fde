"""How a number is written in a table. Pure."""

from __future__ import annotations


def number_text(value: float) -> str:
    """Return four digits of a number, from a thousand on to the hundredth; a whole one in full."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.2f}"
