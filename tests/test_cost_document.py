"""The documented values of cost analysis: their fields, in order, with their defaults."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime
from typing import Any

import pytest

import outlay
from signatures import positional

REQUIRED = MISSING
NOW = "now"
EMPTY = "empty"

PRICE = {
    "gpu_name": REQUIRED, "provider": REQUIRED, "price_per_hour": REQUIRED, "availability": 0,
    "cuda_version": None, "vram_gb": None, "instance_id": None, "region": None, "timestamp": NOW,
}  # fmt: skip
METRICS = {
    "run_id": REQUIRED, "model_name": REQUIRED, "num_samples": REQUIRED, "num_epochs": REQUIRED,
    "batch_size": REQUIRED, "learning_rate": REQUIRED, "total_duration_hours": REQUIRED,
    "gpu_name": REQUIRED, "gpu_price_per_hour": REQUIRED, "validation_loss": None,
    "test_accuracy": None, "tokens_processed": None, "timestamp": NOW,
}  # fmt: skip
REPORT = {
    "run_id": REQUIRED, "model_name": REQUIRED, "total_cost": REQUIRED, "gpu_hours": REQUIRED,
    "cost_per_sample": REQUIRED, "cost_per_epoch": REQUIRED, "cost_per_token": None,
    "efficiency_score": 0.0, "cost_per_accuracy_point": None, "metrics": None, "timestamp": NOW,
}  # fmt: skip
RECOMMENDATION = {
    "category": REQUIRED, "title": REQUIRED, "description": REQUIRED, "estimated_savings": REQUIRED,
    "estimated_time_saved": None, "confidence": 0.8, "action": "", "risks": EMPTY, "timestamp": NOW,
}  # fmt: skip


def default_of(field: Field[Any]) -> object:
    """Return a field's default; a time of now, and an empty list, by those names."""
    if field.default_factory is MISSING:
        return field.default
    made = field.default_factory()
    if isinstance(made, datetime):
        assert made.tzinfo is UTC
        return NOW
    return EMPTY if made == [] else made


@pytest.mark.parametrize(
    ("kind", "documented"),
    [
        (outlay.GPUPrice, PRICE),
        (outlay.TrainingMetrics, METRICS),
        (outlay.TrainingCostReport, REPORT),
        (outlay.OptimizationRecommendation, RECOMMENDATION),
    ],
)
def test_a_value_has_its_documented_fields_in_order_with_their_defaults(
    kind: Any, documented: dict[str, object]
) -> None:
    positional = [field for field in fields(kind) if not field.kw_only]
    assert {field.name: default_of(field) for field in positional} == documented
    assert [field.name for field in positional] == list(documented)


@pytest.mark.parametrize(
    ("method", "documented"),
    [
        (
            "recommend_batch_size",
            "current_batch_size, gpu_vram_gb, model_param_count, current_throughput, "
            "gpu_price_per_hour, epoch_hours",
        ),
        (
            "recommend_early_stopping",
            "validation_loss_history, gpu_price_per_hour, hours_per_epoch, "
            "improvement_threshold=0.001, patience=3",
        ),
        (
            "recommend_epoch_count",
            "validation_scores, gpu_price_per_hour, hours_per_epoch, score_type='accuracy'",
        ),
        (
            "recommend_dataset_size",
            "dataset_size, validation_accuracy_curve, gpu_price_per_hour, hours_per_epoch, "
            "num_epochs",
        ),
        (
            "recommend_compute_tier",
            "current_gpu, current_price_per_hour, current_throughput, alternative_gpus, "
            "daily_training_hours=8.0",
        ),
        ("get_all_recommendations", "hours=24"),
        ("get_high_confidence_recommendations", "confidence_threshold=0.8"),
    ],
)
def test_an_optimizer_takes_its_documented_arguments_in_their_order(
    method: str, documented: str
) -> None:
    found = positional(getattr(outlay.CostOptimizer, method))
    assert ", ".join(map(str, found)) == documented
