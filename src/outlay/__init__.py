"""outlay keeps the books of ML training: what a run may spend, what it spent, what it got for it.

Public names load when first used, so that ``import outlay`` costs a training script next to
nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outlay._version import __version__ as __version__

if TYPE_CHECKING:
    from outlay.advise.batch_size import measured_memory, noise_scale
    from outlay.advise.overhead import Checkpointing
    from outlay.advise.recommendation import OptimizationRecommendation
    from outlay.advise.run_advice import Circumstances
    from outlay.budget.measurements import BudgetRefused
    from outlay.budget.snapshots import BudgetChanged
    from outlay.budget.terms import (
        Budget,
        carbon_cap,
        comm_cap,
        energy_cap,
        iso_cost,
        iso_epochs,
        iso_flops,
        iso_time,
        iso_tokens,
    )
    from outlay.budget.tracker import BudgetTracker
    from outlay.compat.cost_module.analyzer import CostAnalyzer
    from outlay.compat.cost_module.gpu_price import GPUPrice, PriceAlert, PriceHistory
    from outlay.compat.cost_module.optimizer import CostOptimizer
    from outlay.compat.cost_module.tracker import GPUPriceTracker
    from outlay.compat.cost_module.training import TrainingCostReport, TrainingMetrics
    from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator
    from outlay.compat.ml_goodput_measurement.cloud import CloudLogger, GCPOptions
    from outlay.compat.ml_goodput_measurement.goodput_cache import GoodputCache
    from outlay.compat.ml_goodput_measurement.goodput_utils import BadputType, GoodputType
    from outlay.compat.ml_goodput_measurement.monitoring import GoodputMonitor
    from outlay.compat.ml_goodput_measurement.recorder import GoodputRecorder
    from outlay.cost.thresholds import BudgetAlert
    from outlay.errors import Finding, OutlayError
    from outlay.export.sinks import CsvFile, JsonLinesFile, PluginSink
    from outlay.guard.budget_guard import BudgetGuard
    from outlay.guard.errors import BudgetGuardExceeded
    from outlay.guard.gate import Guarding
    from outlay.prices.offer_search import OfferSearch, list_prices
    from outlay.record.meters.batches import count_views
    from outlay.record.meters.step_meters import FlopsPerToken, counted_by_torch
    from outlay.report.files import SweepAccount, read_sweep
    from outlay.runs.collect import list_runs
    from outlay.runs.live import Run, run
    from outlay.runs.reading import RunReading, read_run
    from outlay.units import Duration, Energy, Flops, Money, Rate, Tokens

# Each public name, below the module that defines it.
_NAMES = {
    "advise.batch_size": ("measured_memory", "noise_scale"),
    "advise.overhead": ("Checkpointing",),
    "advise.recommendation": ("OptimizationRecommendation",),
    "advise.run_advice": ("Circumstances",),
    "budget.measurements": ("BudgetRefused",),
    "budget.snapshots": ("BudgetChanged",),
    "budget.terms": (
        "Budget",
        "comm_cap",
        "carbon_cap",
        "energy_cap",
        "iso_cost",
        "iso_epochs",
        "iso_flops",
        "iso_time",
        "iso_tokens",
    ),
    "budget.tracker": ("BudgetTracker",),
    "compat.cost_module.analyzer": ("CostAnalyzer",),
    "compat.cost_module.gpu_price": ("GPUPrice", "PriceAlert", "PriceHistory"),
    "compat.cost_module.optimizer": ("CostOptimizer",),
    "compat.cost_module.tracker": ("GPUPriceTracker",),
    "compat.cost_module.training": ("TrainingCostReport", "TrainingMetrics"),
    "compat.ml_goodput_measurement.calculator": ("GoodputCalculator",),
    "compat.ml_goodput_measurement.cloud": ("CloudLogger", "GCPOptions"),
    "compat.ml_goodput_measurement.goodput_cache": ("GoodputCache",),
    "compat.ml_goodput_measurement.goodput_utils": ("BadputType", "GoodputType"),
    "compat.ml_goodput_measurement.monitoring": ("GoodputMonitor",),
    "compat.ml_goodput_measurement.recorder": ("GoodputRecorder",),
    "compat.ml_goodput_measurement.uploads.readings": (
        "DeviationReading",
        "GoodputReading",
        "WindowReading",
    ),
    "cost.thresholds": ("BudgetAlert",),
    "errors": ("Finding", "OutlayError"),
    "export.sinks": ("CsvFile", "JsonLinesFile", "PluginSink"),
    "guard.budget_guard": ("BudgetGuard",),
    "guard.errors": ("BudgetGuardExceeded",),
    "guard.gate": ("Guarding",),
    "prices.offer_search": ("OfferSearch", "list_prices"),
    "record.meters.batches": ("count_views",),
    "record.meters.step_meters": ("FlopsPerToken", "counted_by_torch"),
    "report.files": ("SweepAccount", "read_sweep"),
    "runs.collect": ("list_runs",),
    "runs.live": ("Run", "run"),
    "runs.reading": ("RunReading", "read_run"),
    "units": ("Duration", "Energy", "Flops", "Money", "Rate", "Tokens"),
}
_HOMES = {name: f"outlay.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "BadputType",
    "Budget",
    "BudgetAlert",
    "BudgetChanged",
    "BudgetGuard",
    "BudgetGuardExceeded",
    "BudgetRefused",
    "BudgetTracker",
    "Checkpointing",
    "Circumstances",
    "CloudLogger",
    "CostAnalyzer",
    "CostOptimizer",
    "CsvFile",
    "Duration",
    "Energy",
    "Finding",
    "Flops",
    "FlopsPerToken",
    "GCPOptions",
    "GPUPrice",
    "GPUPriceTracker",
    "GoodputCache",
    "GoodputCalculator",
    "GoodputMonitor",
    "GoodputRecorder",
    "GoodputType",
    "Guarding",
    "JsonLinesFile",
    "Money",
    "OfferSearch",
    "OptimizationRecommendation",
    "OutlayError",
    "PluginSink",
    "PriceAlert",
    "PriceHistory",
    "Rate",
    "Run",
    "RunReading",
    "SweepAccount",
    "Tokens",
    "TrainingCostReport",
    "TrainingMetrics",
    "carbon_cap",
    "comm_cap",
    "count_views",
    "counted_by_torch",
    "energy_cap",
    "iso_cost",
    "iso_epochs",
    "iso_flops",
    "iso_time",
    "iso_tokens",
    "list_prices",
    "list_runs",
    "measured_memory",
    "noise_scale",
    "read_run",
    "read_sweep",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outlay' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
