"""GPU prices: offers from sources, screened and stored as snapshots; queries over them.

Nothing here turns time into money.
"""

__all__ = [
    "alerts",
    "catalog",
    "current",
    "energy_factors",
    "gpus",
    "names",
    "offer",
    "offer_search",
    "presets",
    "price_book",
    "recording",
    "series",
    "sources",
    "survey",
]  # fmt: skip
