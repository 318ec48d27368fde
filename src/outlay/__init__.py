"""outlay keeps the books of ML training: what a run may spend, what it spent, what it got for it.

Public names load when first used, so that ``import outlay`` costs a training script next to
nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outlay._version import __version__ as __version__

if TYPE_CHECKING:
    from outlay.advise.memory import measured_memory
    from outlay.advise.noise_scale import noise_scale
    from outlay.advise.optimizer import CostOptimizer
    from outlay.advise.overhead import Checkpointing
    from outlay.advise.recommendation import OptimizationRecommendation
    from outlay.advise.run_advice import Circumstances
    from outlay.budget.measurable import BudgetRefused
    from outlay.budget.snapshots import BudgetChanged
    from outlay.budget.terms import (
        Budget,
        comm_cap,
        energy_cap,
        iso_cost,
        iso_epochs,
        iso_flops,
        iso_time,
        iso_tokens,
    )
    from outlay.budget.tracker import BudgetTracker
    from outlay.cost.analyzer import CostAnalyzer
    from outlay.cost.thresholds import BudgetAlert
    from outlay.cost.training import TrainingCostReport, TrainingMetrics
    from outlay.errors import Finding, OutlayError
    from outlay.export.cloud_logging import CloudLogger
    from outlay.export.gcp import GCPOptions
    from outlay.export.monitor import GoodputMonitor
    from outlay.export.sinks import CsvFile, JsonLinesFile, PluginSink
    from outlay.goodput.cache import GoodputCache
    from outlay.goodput.calculator import GoodputCalculator
    from outlay.goodput.recorder import GoodputRecorder
    from outlay.goodput.types import BadputType, GoodputType
    from outlay.guard.budget_guard import BudgetGuard
    from outlay.guard.errors import BudgetGuardExceeded
    from outlay.guard.gate import Guarding
    from outlay.prices.gpu_price import GPUPrice, PriceAlert, PriceHistory
    from outlay.prices.tracker import GPUPriceTracker
    from outlay.record.meters.flops import FlopsPerToken, counted_by_torch
    from outlay.runs import Run, run
    from outlay.runs.collect import list_runs
    from outlay.runs.reading import RunReading, read_run
    from outlay.units import Duration, Energy, Flops, Money, Rate, Tokens

# Each public name and the module that defines it.
_HOMES = {
    "BadputType": "outlay.goodput.types",
    "Budget": "outlay.budget.terms",
    "BudgetAlert": "outlay.cost.thresholds",
    "BudgetChanged": "outlay.budget.snapshots",
    "BudgetGuard": "outlay.guard.budget_guard",
    "BudgetGuardExceeded": "outlay.guard.errors",
    "BudgetRefused": "outlay.budget.measurable",
    "BudgetTracker": "outlay.budget.tracker",
    "Checkpointing": "outlay.advise.overhead",
    "Circumstances": "outlay.advise.run_advice",
    "CloudLogger": "outlay.export.cloud_logging",
    "comm_cap": "outlay.budget.terms",
    "counted_by_torch": "outlay.record.meters.flops",
    "CostAnalyzer": "outlay.cost.analyzer",
    "CostOptimizer": "outlay.advise.optimizer",
    "CsvFile": "outlay.export.sinks",
    "Duration": "outlay.units",
    "Energy": "outlay.units",
    "energy_cap": "outlay.budget.terms",
    "Finding": "outlay.errors",
    "Flops": "outlay.units",
    "FlopsPerToken": "outlay.record.meters.flops",
    "GCPOptions": "outlay.export.gcp",
    "GoodputCache": "outlay.goodput.cache",
    "GoodputCalculator": "outlay.goodput.calculator",
    "GoodputMonitor": "outlay.export.monitor",
    "GoodputRecorder": "outlay.goodput.recorder",
    "GoodputType": "outlay.goodput.types",
    "GPUPrice": "outlay.prices.gpu_price",
    "GPUPriceTracker": "outlay.prices.tracker",
    "Guarding": "outlay.guard.gate",
    "iso_cost": "outlay.budget.terms",
    "iso_epochs": "outlay.budget.terms",
    "iso_flops": "outlay.budget.terms",
    "iso_time": "outlay.budget.terms",
    "iso_tokens": "outlay.budget.terms",
    "JsonLinesFile": "outlay.export.sinks",
    "list_runs": "outlay.runs.collect",
    "measured_memory": "outlay.advise.memory",
    "Money": "outlay.units",
    "noise_scale": "outlay.advise.noise_scale",
    "OptimizationRecommendation": "outlay.advise.recommendation",
    "OutlayError": "outlay.errors",
    "PluginSink": "outlay.export.sinks",
    "PriceAlert": "outlay.prices.gpu_price",
    "PriceHistory": "outlay.prices.gpu_price",
    "Rate": "outlay.units",
    "read_run": "outlay.runs.reading",
    "Run": "outlay.runs",
    "run": "outlay.runs",
    "RunReading": "outlay.runs.reading",
    "Tokens": "outlay.units",
    "TrainingCostReport": "outlay.cost.training",
    "TrainingMetrics": "outlay.cost.training",
}

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
    "OptimizationRecommendation",
    "OutlayError",
    "PluginSink",
    "PriceAlert",
    "PriceHistory",
    "Rate",
    "Run",
    "RunReading",
    "Tokens",
    "TrainingCostReport",
    "TrainingMetrics",
    "comm_cap",
    "counted_by_torch",
    "energy_cap",
    "iso_cost",
    "iso_epochs",
    "iso_flops",
    "iso_time",
    "iso_tokens",
    "list_runs",
    "measured_memory",
    "noise_scale",
    "read_run",
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
