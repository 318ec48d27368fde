"""The documented metrics of a training, for tests of cost analysis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from outlay.compat.cost_module.training import TrainingMetrics

NOW = datetime(2026, 10, 1, tzinfo=UTC)


def metrics(run_id: str = "r1", model: str = "bert-base", **changes: Any) -> TrainingMetrics:
    """The documented example."""
    fields: dict[str, Any] = {
        "run_id": run_id,
        "model_name": model,
        "num_samples": 100_000,
        "num_epochs": 3,
        "batch_size": 32,
        "learning_rate": 2e-5,
        "total_duration_hours": 24.5,
        "gpu_name": "A100",
        "gpu_price_per_hour": 1.50,
        "test_accuracy": 0.94,
        "tokens_processed": 50_000_000,
        "timestamp": NOW,
    }
    return TrainingMetrics(**(fields | changes))


def costing(dollars: float, run_id: str = "r1", **changes: Any) -> TrainingMetrics:
    """A run of one hour."""
    return metrics(run_id, gpu_price_per_hour=dollars, total_duration_hours=1.0, **changes)
