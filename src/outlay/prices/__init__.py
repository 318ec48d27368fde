"""What a GPU costs, where, now and before.

Offers come from sources, are screened, and are kept as snapshots in the store; everything shown
is a look at those snapshots. Nothing here turns time into money.
"""
