"""Readings for the tests of sinks."""

from __future__ import annotations

from goodput_log import START_S
from outlay.compat.ml_goodput_measurement.goodput_utils import BadputParts, BadputType
from outlay.compat.ml_goodput_measurement.uploads.readings import DeviationReading, GoodputReading

PARTS: BadputParts = {
    BadputType.TPU_INITIALIZATION: 10.0,
    BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 15.0},
}


def goodput(last_step: int, percent: float = 75.0) -> GoodputReading:
    return GoodputReading(
        t_ns=(START_S + last_step) * 10**9,
        goodput_percent=percent,
        badput_percent=PARTS,
        goodput_s=750.0,
        badput_s=PARTS,
        elapsed_s=1000.0,
        last_step=last_step,
        disruptions=2,
    )


def deviation(first: int, *seconds: float) -> DeviationReading:
    return DeviationReading(
        t_ns=(START_S + first) * 10**9,
        ideal_step_s=1.0,
        deviations_s=dict(enumerate(seconds, first)),
        spike_s=0.25,
    )
