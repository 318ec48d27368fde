"""The only place where time becomes money.

A run's price is a step function of time, in micro-units per hour for the whole run; its cost is the
integral, kept exact as integers and rounded once.
"""

from outlay.rates.amounts import apportion, round_units, round_units_up, share_out
from outlay.rates.build import RunRates, given_back, run_rates
from outlay.rates.function import Assumption, Basis, RateFunction, RatePiece
from outlay.rates.prices import kind_of_cost, prices_of
from outlay.units.quantity import NS_PER_HOUR

__all__ = [
    "NS_PER_HOUR",
    "Assumption",
    "Basis",
    "RateFunction",
    "RatePiece",
    "RunRates",
    "apportion",
    "given_back",
    "kind_of_cost",
    "prices_of",
    "round_units",
    "round_units_up",
    "run_rates",
    "share_out",
]
