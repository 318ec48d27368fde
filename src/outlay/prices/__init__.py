"""GPU prices: offers from sources, screened and stored as snapshots; queries over them.

Nothing here turns time into money.
"""
