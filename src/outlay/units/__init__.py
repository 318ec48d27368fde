"""Quantities as types: what carries a unit cannot be mixed up with what carries another.

Values are parsed once, at the edge ("5 USD", "1.50 USD/h", "72h", "50k tok", "1.2 kWh"), and are
integers inside. Nothing here turns time into money; that is the subject of ``outlay.rates``.
"""

from outlay.units.money import Money, Rate
from outlay.units.quantity import Duration, Energy, Flops, Tokens

__all__ = ["Duration", "Energy", "Flops", "Money", "Rate", "Tokens"]
