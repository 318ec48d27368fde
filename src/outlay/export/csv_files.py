"""Exports a run's log as CSV files for comparison scripts: timings, collectives, evaluation.

Columns that a log does not have (forward and backward pass, for example) stay empty. A record of
several consecutive steps is one row, with the mean of one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outlay.errors import Finding
from outlay.escaping import write_csv
from outlay.files import draft_of
from outlay.ledger import Metric, RunLog, SegmentId, Step, read_run
from outlay.units.quantity import MILLIJOULES_PER_WH

TIMINGS: Final = (
    "step", "epoch", "t_data_ms", "t_fwd_ms", "t_bwd_ms", "t_opt_ms", "t_comm_ms", "t_assign_ms",
    "t_topr_ms", "t_beta_ctrl_ms", "t_misc_ms", "t_step_ms", "ips_step",
)  # fmt: skip
COMMS: Final = ("step", "bytes_total")
ENERGY: Final = ("timestamp", "step", "gpu_id", "energy_Wh_cum", "energy_J_cum")
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, and the findings of the log."""

    files: tuple[Path, ...]
    findings: tuple[Finding, ...] = ()


def export_csv(run_dir: Path, output: Path | None = None) -> Exported:
    """Write a run's CSV files to ``output``, by default the run's directory.

    Raises:
        NotARun: There is no run log.
    """
    log = read_run(run_dir)
    directory = output or run_dir
    directory.mkdir(parents=True, exist_ok=True)
    steps = _steps(log)
    files = [
        _write(directory / "timings.csv", TIMINGS, map(_timing, steps)),
        _write(directory / "comms.csv", COMMS, _collectives(steps)),
    ]
    if any(one.energy_mj for one in steps):
        files.append(_write(directory / "energy.csv", ENERGY, _energies(steps)))
    if metrics := _metrics(log):
        names = list(dict.fromkeys(name for row in metrics for name in row))
        files.append(_write(directory / "eval.csv", names, metrics))
    return Exported(tuple(files), tuple(log.findings))


@dataclass(slots=True)
class _WholeStep:
    """One execution of ``count`` steps: rank 0's time, all ranks' work."""

    step: int
    count: int
    t_ns: int
    wait_ns: int
    dur_ns: int
    items: int = 0
    comm_bytes: int = 0
    energy_mj: int = 0


def _steps(log: RunLog) -> list[_WholeStep]:
    """Return rank 0's steps in time order, each with the work of all ranks."""
    wholes: list[_WholeStep] = []
    latest: dict[int, _WholeStep] = {}  # Of a repeated step, the last execution.
    for segment in sorted(log.segments, key=lambda each: (each.rank > 0, each)):
        for record in log.segments[segment]:
            if not isinstance(record, Step):
                continue
            if segment.rank <= 0:
                times = (record.t_ns, record.wait_ns, record.dur_ns)
                latest[record.step] = _WholeStep(record.step, record.count, *times)
                wholes.append(latest[record.step])
            if (whole := latest.get(record.step)) is not None:
                whole.items += record.samples or record.tokens
                whole.comm_bytes += record.comm_bytes
                whole.energy_mj += record.energy_mj
    return wholes


def _timing(one: _WholeStep) -> dict[str, Any]:
    step_ns = one.wait_ns + one.dur_ns
    return {
        "step": one.step,
        "t_data_ms": one.wait_ns / one.count / _MS,
        "t_step_ms": step_ns / one.count / _MS,
        "ips_step": one.items / step_ns * 1e9 if step_ns and one.items else "",
    }


def _collectives(steps: Sequence[_WholeStep]) -> Iterable[dict[str, Any]]:
    """Yield each step's bytes; empty if no step was metered, which is not zero."""
    metered = any(one.comm_bytes for one in steps)
    for one in steps:
        yield {"step": one.step, "bytes_total": one.comm_bytes // one.count if metered else ""}


def _energies(steps: Iterable[_WholeStep]) -> Iterable[dict[str, Any]]:
    total_mj = 0
    for one in steps:
        total_mj += one.energy_mj
        yield {
            "timestamp": one.t_ns / 1e9,
            "step": one.step,
            "gpu_id": "all",
            "energy_Wh_cum": total_mj / MILLIJOULES_PER_WH,
            "energy_J_cum": total_mj / 1000,
        }


def _metrics(log: RunLog) -> list[dict[str, Any]]:
    """Return a row per step (or instant) at which rank 0 logged metrics."""
    leading = {s: log.segments[s] for s in sorted(log.segments) if s.rank <= 0}
    start_ns = next((records[0].t_ns for records in leading.values() if records), 0)
    rows: dict[tuple[SegmentId, int], dict[str, Any]] = {}
    for segment, records in leading.items():
        for record in records:
            if isinstance(record, Metric):
                place = (segment, record.t_ns if record.step is None else record.step)
                row = rows.setdefault(place, _place(record, start_ns))
                row[record.name] = record.value
    return list(rows.values())


def _place(record: Metric, start_ns: int) -> dict[str, Any]:
    step = "" if record.step is None else record.step
    return {"step": step, "time_minutes": (record.t_ns - start_ns) / 60e9}


def _write(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    with draft_of(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        write_csv(stream, list(columns), rows)
    return path
