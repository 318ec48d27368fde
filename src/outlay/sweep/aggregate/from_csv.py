"""A run's figures from the documented artefacts of programs that write those."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from outlay.budget.document import read_document
from outlay.decoding import BadDocument, csv_records, open_csv
from outlay.sweep.aggregate.facts import RunFacts, Seen
from outlay.units.quantity import MILLIJOULES_PER_WH

REQUIRED: Final = ("timings.csv", "comms.csv", "budget.json")
_KNOWN: Final = ("timings.csv", "comms.csv", "energy.csv", "fidelity.csv", "memory.csv")
_MINUTES: Final = ("time_minutes", "elapsed_minutes")
_PLACES: Final = ("step", "global_step")
_PLACE_COLUMNS: Final = {*_MINUTES, *_PLACES, "epoch", "timestamp", "time", "split"}


def missing_files(run_dir: Path) -> list[str]:
    """Return the required artefacts that a run does not have."""
    return [name for name in REQUIRED if not (run_dir / name).is_file()]


def read_artefacts(run_dir: Path) -> RunFacts | None:
    """Return a run's figures, or None where it wrote no artefact."""
    if len(missing_files(run_dir)) == len(REQUIRED):
        return None
    problems: list[str] = []
    timings = list(_rows(run_dir / "timings.csv", problems))
    comms = _rows(run_dir / "comms.csv", problems)
    moved = [sent for row in comms if (sent := _number(row, "bytes_total")) is not None]
    times = [ms for row in timings if (ms := _number(row, "t_step_ms")) is not None]
    pairs = ((_number(row, "ips_step"), _number(row, "t_step_ms")) for row in timings)
    totals = totals_in(read_document(run_dir))
    energy = _energy_mj(run_dir / "energy.csv", problems)
    if energy is None:
        energy = _whole(totals.get("energy_Wh"), times=MILLIJOULES_PER_WH) or None
    return RunFacts(
        source="csv",
        steps=len(times),
        step_ns=round(sum(times) * 1e6),
        items=sum(ips * ms / 1000 for ips, ms in pairs if ips is not None and ms is not None),
        tokens=_whole(totals.get("tokens")),
        comm_bytes=round(sum(moved)) if moved else None,
        energy_mj=energy,
        fidelity_mean=_mean(run_dir / "fidelity.csv", "grad_cos", problems),
        metrics=_metrics(run_dir, problems),
        findings=problems,
    )


def _rows(path: Path, problems: list[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a file; one that is missing has none, one that is damaged says so."""
    try:
        yield from csv_records(open_csv(path))
    except FileNotFoundError:
        return
    except (OSError, BadDocument) as error:
        problems.append(f"{path.name}: cannot be read: {error}")


def _number(row: dict[str, str], column: str) -> float | None:
    try:
        number = float(row.get(column) or "nan")
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def totals_in(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a run's own ``budget.json`` says it used; nothing where that is no mapping."""
    totals = None if document is None else document.get("totals")
    return totals if isinstance(totals, Mapping) else {}


def _whole(value: object, *, times: int = 1) -> int | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value * times)


def _mean(path: Path, column: str, problems: list[str]) -> float | None:
    values = [v for row in _rows(path, problems) if (v := _number(row, column)) is not None]
    return sum(values) / len(values) if values else None


def _energy_mj(path: Path, problems: list[str]) -> int | None:
    """Return the energy of all GPUs; a counter that falls back was begun anew by a resume."""
    last: dict[str, float] = {}
    total = 0.0
    for row in _rows(path, problems):
        joules = _number(row, "energy_J_cum")
        if joules is not None:
            before = last.get(row.get("gpu_id") or "", 0.0)
            total += joules - before if joules >= before else joules
            last[row.get("gpu_id") or ""] = joules
    return round(total * 1000) if last else None


def _metrics(run_dir: Path, problems: list[str]) -> dict[str, list[Seen]]:
    """Return what evaluation files hold: every other CSV's columns of numbers."""
    found: dict[str, list[Seen]] = {}
    for path in sorted(run_dir.glob("*.csv")):
        if path.name in _KNOWN:
            continue
        for row in _rows(path, problems):
            place = _place(row)
            for column in row:
                value = None if column in _PLACE_COLUMNS else _number(row, column)
                if value is not None:
                    found.setdefault(column, []).append(Seen(value, *place))
    return found


def _place(row: dict[str, str]) -> tuple[int | None, int | None, float | None]:
    minutes = next((m for name in _MINUTES if (m := _number(row, name)) is not None), None)
    step = next((s for name in _PLACES if (s := _number(row, name)) is not None), None)
    return (
        None if minutes is None else round(minutes * 60e9),
        None if step is None else round(step),
        _number(row, "epoch"),
    )
