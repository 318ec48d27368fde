"""The modules under the path where ml-goodput-measurement has them: ``src.<module>``."""

from __future__ import annotations

import sys

from outlay.compat.ml_goodput_measurement import (
    checkpoint_badput_calculator,
    exclusion_utils,
    gcp_metrics,
    goodput,
    goodput_cache,
    goodput_elastic,
    goodput_exclusion,
    goodput_utils,
    monitoring,
    monitoring_elastic,
)

__all__ = [
    "checkpoint_badput_calculator",
    "exclusion_utils",
    "gcp_metrics",
    "goodput",
    "goodput_cache",
    "goodput_elastic",
    "goodput_exclusion",
    "goodput_utils",
    "monitoring",
    "monitoring_elastic",
]

# The same modules, so that a class is itself whichever way it was imported.
for _name in __all__:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]
