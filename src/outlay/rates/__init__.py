"""The only place where time becomes money.

A run's price is a step function of time, in micro-units per hour for the whole run; its cost is the
integral, kept exact as integers and rounded once.
"""

from outlay.rates.function import (
    Assumption,
    Basis,
    GpuPiece,
    RateFunction,
    RatePiece,
    RunRates,
    apportion,
    cost,
    cost_at_most,
    cost_to_last_record,
    cost_where,
    gpu_pieces,
    hourly,
    in_force,
    paid_time,
    rate_of,
    round_units,
    round_units_up,
    run_rates,
    share_out,
    total_gpus,
    units,
    units_of,
)
from outlay.rates.machines import given_back, kind_of_cost, prices_of
from outlay.units.quantity import NS_PER_HOUR

__all__ = [
    "NS_PER_HOUR",
    "Assumption",
    "Basis",
    "GpuPiece",
    "RateFunction",
    "RatePiece",
    "RunRates",
    "apportion",
    "cost",
    "cost_at_most",
    "cost_to_last_record",
    "cost_where",
    "given_back",
    "gpu_pieces",
    "hourly",
    "in_force",
    "kind_of_cost",
    "paid_time",
    "prices_of",
    "rate_of",
    "round_units",
    "round_units_up",
    "run_rates",
    "share_out",
    "total_gpus",
    "units",
    "units_of",
]
