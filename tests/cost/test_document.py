"""The documented interface of cost tracking: fields, order, defaults, methods, arguments."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay import (
    BudgetAlert,
    CostAnalyzer,
    CostOptimizer,
    GPUPrice,
    GPUPriceTracker,
    OptimizationRecommendation,
    PriceAlert,
    PriceHistory,
    TrainingCostReport,
    TrainingMetrics,
)
from outlay.clock import SYSTEM, utc_datetime

NEEDED = object()
NOW = object()

FIELDS: dict[Any, dict[str, Any]] = {
    GPUPrice: {
        "gpu_name": NEEDED, "provider": NEEDED, "price_per_hour": NEEDED, "availability": 0,
        "cuda_version": None, "vram_gb": None, "instance_id": None, "region": None,
        "timestamp": NOW,
    },
    TrainingMetrics: {
        "run_id": NEEDED, "model_name": NEEDED, "num_samples": NEEDED, "num_epochs": NEEDED,
        "batch_size": NEEDED, "learning_rate": NEEDED, "total_duration_hours": NEEDED,
        "gpu_name": NEEDED, "gpu_price_per_hour": NEEDED, "validation_loss": None,
        "test_accuracy": None, "tokens_processed": None, "timestamp": NOW,
    },
    TrainingCostReport: {
        "run_id": NEEDED, "model_name": NEEDED, "total_cost": NEEDED, "gpu_hours": NEEDED,
        "cost_per_sample": NEEDED, "cost_per_epoch": NEEDED, "cost_per_token": None,
        "efficiency_score": 0.0, "cost_per_accuracy_point": None, "metrics": None,
        "timestamp": NOW,
    },
    OptimizationRecommendation: {
        "category": NEEDED, "title": NEEDED, "description": NEEDED, "estimated_savings": NEEDED,
        "estimated_time_saved": None, "confidence": 0.8, "action": "", "risks": [],
        "timestamp": NOW,
    },
}  # fmt: skip


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return NOW if isinstance(made, datetime) else made
    return NEEDED if field.default is dataclasses.MISSING else field.default


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_fields_have_the_documented_order_and_defaults(model: Any) -> None:
    positional = [field for field in dataclasses.fields(model) if not field.kw_only]
    found = {field.name: default_of(field) for field in positional[: len(FIELDS[model])]}
    assert list(found.items()) == list(FIELDS[model].items())


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_the_default_timestamp_is_now_in_utc(model: Any) -> None:
    stands_in = {"str": "x", "int": 1, "float": 1.0}
    types = {field.name: str(field.type) for field in dataclasses.fields(model)}
    needed = [stands_in[types[n]] for n, value in FIELDS[model].items() if value is NEEDED]
    made = model(*needed).timestamp
    assert abs(utc_datetime(SYSTEM.wall_ns()) - made) < timedelta(hours=1)
    assert made.tzinfo is UTC


METHODS: dict[tuple[Any, str], dict[str, Any]] = {
    (CostAnalyzer, "forecast_cost"): {
        "model_name": NEEDED, "planned_runs": NEEDED, "avg_cost_per_run": None,
    },
    (CostAnalyzer, "set_budget"): {"model_name": NEEDED, "limit": NEEDED},
    (CostOptimizer, "recommend_batch_size"): {
        "current_batch_size": NEEDED, "gpu_vram_gb": NEEDED, "model_param_count": NEEDED,
        "current_throughput": NEEDED, "gpu_price_per_hour": NEEDED, "epoch_hours": NEEDED,
    },
    (CostOptimizer, "recommend_early_stopping"): {
        "validation_loss_history": NEEDED, "gpu_price_per_hour": NEEDED,
        "hours_per_epoch": NEEDED, "improvement_threshold": 0.001, "patience": 3,
    },
    (CostOptimizer, "recommend_epoch_count"): {
        "validation_scores": NEEDED, "gpu_price_per_hour": NEEDED, "hours_per_epoch": NEEDED,
        "score_type": "accuracy",
    },
    (CostOptimizer, "recommend_dataset_size"): {
        "dataset_size": NEEDED, "validation_accuracy_curve": NEEDED,
        "gpu_price_per_hour": NEEDED, "hours_per_epoch": NEEDED, "num_epochs": NEEDED,
    },
    (CostOptimizer, "recommend_compute_tier"): {
        "current_gpu": NEEDED, "current_price_per_hour": NEEDED, "current_throughput": NEEDED,
        "alternative_gpus": NEEDED, "daily_training_hours": 8.0,
    },
    (CostOptimizer, "get_all_recommendations"): {"hours": 24},
    (CostOptimizer, "get_high_confidence_recommendations"): {"confidence_threshold": 0.8},
    (GPUPriceTracker, "get_cheapest_gpu"): {"gpu_type": None},
    (GPUPriceTracker, "get_price_recommendations"): {"gpu_type": None, "max_price": None},
    (GPUPriceTracker, "get_alerts"): {"hours": 24},
    (PriceHistory, "get_average"): {"hours": 24},
    (PriceHistory, "get_min_max"): {"hours": 24},
    (PriceHistory, "get_trend"): {"hours": 24},
    (PriceHistory, "add_price"): {"price": NEEDED, "timestamp": None},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda each: f"{each[0].__name__}.{each[1]}")
def test_methods_take_the_documented_arguments_in_order(method: tuple[Any, str]) -> None:
    parameters = list(inspect.signature(getattr(*method)).parameters.values())[1:]
    found = {
        each.name: NEEDED if each.default is each.empty else each.default
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD
    }
    assert list(found.items()) == list(METHODS[method].items())


@pytest.mark.parametrize("name", ["GPUPriceTracker", "CostAnalyzer", "CostOptimizer"])
def test_each_component_needs_no_argument_and_takes_a_data_dir_first(
    name: str, tmp_path: Path
) -> None:
    component = getattr(outlay, name)
    component()
    component(tmp_path)
    assert next(iter(inspect.signature(component).parameters)) == "data_dir"


def test_the_three_components_are_modules_of_their_own() -> None:
    modules = {each.__module__ for each in (GPUPriceTracker, CostAnalyzer, CostOptimizer)}
    assert {name.rpartition(".")[2] for name in modules} == {"tracker", "analyzer", "optimizer"}


@pytest.mark.parametrize(
    ("alert", "names"),
    [
        (BudgetAlert, "model_name alert_type current_cost budget_limit percent_used timestamp"),
        (
            PriceAlert,
            "gpu_name provider alert_type current_price previous_price change_percent timestamp",
        ),
    ],
)
def test_alerts_have_the_documented_fields_and_a_message(alert: Any, names: str) -> None:
    fields = [field.name for field in dataclasses.fields(alert)]
    assert fields[: len(names.split())] == names.split()
    assert "message" in dir(alert) or "message" in fields
