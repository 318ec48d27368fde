"""The files of the cost module that CostAnalyzer comes from, read and written.

``cost_history.json`` holds ``{run id: report with its metrics}``, ``budgets.json`` holds
``{model: limit}``, in dollars: budgets in other currencies are not in it. A file that cannot be
read is neither imported nor written over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outlay.cost.analyzer import CostAnalyzer
from outlay.cost.training import TrainingMetrics
from outlay.decoding import BadDocument, convert, read_document
from outlay.errors import Finding, OutlayError
from outlay.files import write_whole

HISTORY, BUDGETS = "cost_history.json", "budgets.json"
T = TypeVar("T")


class CorruptCosts(OutlayError):
    """A cost file is not what its name says."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}. Repair it or move it away first; "
            "it was left as it is."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """How many reports and budgets were read or written, and which could not be taken."""

    reports: int
    budgets: int
    findings: tuple[Finding, ...] = ()


def import_costs(analyzer: CostAnalyzer, directory: Path) -> Exchanged:
    """Add the reports and budgets of a directory; any number of times with the same result.

    Raises:
        CorruptCosts: A file is there and cannot be read; nothing was imported.
    """
    history, budgets = _read(directory / HISTORY), _read(directory / BUDGETS)
    findings: list[Finding] = []
    reports = _take(history, lambda name, value: _import_report(analyzer, name, value), findings)
    limits = _take(budgets, analyzer.set_budget, findings)
    return Exchanged(reports=reports, budgets=limits, findings=tuple(findings))


def export_costs(analyzer: CostAnalyzer, directory: Path) -> Exchanged:
    """Write all stated reports and budgets, with what stands in the files already.

    Raises:
        CorruptCosts: A file is there and cannot be read; nothing was written.
    """
    history, budgets = _read(directory / HISTORY), _read(directory / BUDGETS)
    history |= {run_id: report.to_dict() for run_id, report in analyzer.cost_history.items()}
    limits = analyzer.limits
    budgets |= {model: float(m.amount) for model, m in limits.items() if m.currency == "USD"}
    write_json(directory / HISTORY, history)
    write_json(directory / BUDGETS, budgets)
    left_out = [
        Finding(source=model, message=f"its budget of {limit} is not in dollars, so not written")
        for model, limit in limits.items()
        if limit.currency != "USD"
    ]
    findings = (*left_out, *analyzer.damage)
    return Exchanged(reports=len(history), budgets=len(budgets), findings=findings)


def _take(values: dict[str, Any], take: Callable[[str, Any], None], findings: list[Finding]) -> int:
    """Hand over each value; one that is refused is a finding, and the others go on."""
    taken = 0
    for name, value in values.items():
        try:
            take(name, value)
        except (OutlayError, KeyError, TypeError, ValueError, OverflowError) as error:
            findings.append(Finding(source=name, message=f"{type(error).__name__}: {error}"))
        else:
            taken += 1
    return taken


def _import_report(analyzer: CostAnalyzer, run_id: str, report: object) -> None:
    values = convert(report, dict[str, Any])
    metrics = values.get("metrics") or _metrics_behind(values, run_id)
    analyzer.analyze_training_run(TrainingMetrics.from_dict(metrics))


def _metrics_behind(report: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Return the metrics that follow from a report, for one that was kept without its own."""
    return {
        "run_id": run_id,
        "model_name": report["model_name"],
        "num_samples": 0,
        "num_epochs": 0,
        "batch_size": 0,
        "learning_rate": 0.0,
        "total_duration_hours": report["gpu_hours"],
        "gpu_name": "",
        "gpu_price_per_hour": 0.0,
        "total_cost": report["total_cost"],
        "timestamp": report["timestamp"],
    }


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any]) or {}


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return what a file holds; None where there is none.

    Raises:
        CorruptCosts: It holds something else.
    """
    try:
        return read_document(path, kind)
    except FileNotFoundError:
        return None
    except (OSError, BadDocument) as error:
        raise CorruptCosts(path, str(error)) from None


def write_json(path: Path, values: object) -> None:
    """Write a file whole: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(values), indent=2), synced=True)
