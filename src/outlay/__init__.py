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
    from outlay.budget.statements import BudgetChanged
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
    from outlay.compat.cost_module.analyzer import CostAnalyzer
    from outlay.compat.cost_module.gpu_price import GPUPrice, PriceAlert, PriceHistory
    from outlay.compat.cost_module.optimizer import CostOptimizer
    from outlay.compat.cost_module.tracker import GPUPriceTracker
    from outlay.compat.cost_module.training import TrainingCostReport, TrainingMetrics
    from outlay.cost.compare import BudgetAlert
    from outlay.errors import Finding, OutlayError
    from outlay.export.cloud import CloudLogger
    from outlay.export.gcp import GCPOptions
    from outlay.export.monitor import GoodputMonitor
    from outlay.export.sinks import CsvFile, JsonLinesFile, PluginSink
    from outlay.goodput.calculator import GoodputCalculator
    from outlay.goodput.importing import GoodputCache
    from outlay.goodput.recorder import GoodputRecorder
    from outlay.goodput.types import BadputType, GoodputType
    from outlay.guard.budget_guard import BudgetGuard
    from outlay.guard.errors import BudgetGuardExceeded
    from outlay.guard.gate import Guarding
    from outlay.record.meters.steps import FlopsPerToken, counted_by_torch
    from outlay.runs import Run, run
    from outlay.runs.collect import list_runs
    from outlay.runs.reading import RunReading, read_run
    from outlay.units import Duration, Energy, Flops, Money, Rate, Tokens

# Each public name and the module that defines it.
_HOMES = {
    "BadputType": "outlay.goodput.types",
    "Budget": "outlay.budget.terms",
    "BudgetAlert": "outlay.cost.compare",
    "BudgetChanged": "outlay.budget.statements",
    "BudgetGuard": "outlay.guard.budget_guard",
    "BudgetGuardExceeded": "outlay.guard.errors",
    "BudgetRefused": "outlay.budget.measurements",
    "BudgetTracker": "outlay.budget.tracker",
    "Checkpointing": "outlay.advise.overhead",
    "Circumstances": "outlay.advise.run_advice",
    "CloudLogger": "outlay.export.cloud",
    "comm_cap": "outlay.budget.terms",
    "counted_by_torch": "outlay.record.meters.steps",
    "CostAnalyzer": "outlay.compat.cost_module.analyzer",
    "CostOptimizer": "outlay.compat.cost_module.optimizer",
    "CsvFile": "outlay.export.sinks",
    "Duration": "outlay.units",
    "Energy": "outlay.units",
    "energy_cap": "outlay.budget.terms",
    "Finding": "outlay.errors",
    "Flops": "outlay.units",
    "FlopsPerToken": "outlay.record.meters.steps",
    "GCPOptions": "outlay.export.gcp",
    "GoodputCache": "outlay.goodput.importing",
    "GoodputCalculator": "outlay.goodput.calculator",
    "GoodputMonitor": "outlay.export.monitor",
    "GoodputRecorder": "outlay.goodput.recorder",
    "GoodputType": "outlay.goodput.types",
    "GPUPrice": "outlay.compat.cost_module.gpu_price",
    "GPUPriceTracker": "outlay.compat.cost_module.tracker",
    "Guarding": "outlay.guard.gate",
    "iso_cost": "outlay.budget.terms",
    "iso_epochs": "outlay.budget.terms",
    "iso_flops": "outlay.budget.terms",
    "iso_time": "outlay.budget.terms",
    "iso_tokens": "outlay.budget.terms",
    "JsonLinesFile": "outlay.export.sinks",
    "list_runs": "outlay.runs.collect",
    "measured_memory": "outlay.advise.batch_size",
    "Money": "outlay.units",
    "noise_scale": "outlay.advise.batch_size",
    "OptimizationRecommendation": "outlay.advise.recommendation",
    "OutlayError": "outlay.errors",
    "PluginSink": "outlay.export.sinks",
    "PriceAlert": "outlay.compat.cost_module.gpu_price",
    "PriceHistory": "outlay.compat.cost_module.gpu_price",
    "Rate": "outlay.units",
    "read_run": "outlay.runs.reading",
    "Run": "outlay.runs",
    "run": "outlay.runs",
    "RunReading": "outlay.runs.reading",
    "Tokens": "outlay.units",
    "TrainingCostReport": "outlay.compat.cost_module.training",
    "TrainingMetrics": "outlay.compat.cost_module.training",
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
