"""Quantities as types, so that different units cannot be mixed up.

Values are parsed once, at the edge ("5 USD", "1.50 USD/h", "72h", "50k tok", "1.2 kWh"), and are
integers inside. Time becomes money in ``outlay.rates``, not here.
"""

from outlay.units.money import Money, Rate, Unit
from outlay.units.quantity import Duration, Energy, Flops, Tokens

__all__ = [
    "Duration", "Energy", "Flops", "Money", "Rate", "Tokens", "Unit", "billing_terms", "money",
    "quantity", "shown",
]  # fmt: skip
