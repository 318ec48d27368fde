"""Exports a run's log as CSV files for comparison scripts: timings, collectives, evaluation.

Columns that a log does not have (forward and backward pass, for example) stay empty. A record of
several consecutive steps is one row, with the mean of one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from outlay.errors import Finding
from outlay.escaping import write_csv
from outlay.files import draft_of
from outlay.ledger import SUPERVISOR, Heartbeat, Metric, RunLog, SegmentId, Step, read_run
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
    if measured := sorted(_energies(log, steps), key=lambda each: each.t_ns):
        files.append(_write(directory / "energy.csv", ENERGY, _cumulative(measured)))
    if metrics := _metrics(log):
        names = list(dict.fromkeys(name for row in metrics for name in row))
        files.append(_write(directory / "eval.csv", names, metrics))
    return Exported(tuple(files), tuple(log.findings))


def _steps(log: RunLog) -> list[Step]:
    """Return rank 0's steps in time order, each with the work of all ranks.

    Samples are tokens where no samples were counted.
    """
    wholes: list[Step] = []
    latest: dict[int, int] = {}  # Of a repeated step, the place of its last execution.
    for segment in sorted(log.segments, key=lambda each: (each.rank > 0, each)):
        for record in log.segments[segment]:
            if not isinstance(record, Step):
                continue
            items = record.samples or record.tokens
            if segment.rank <= 0:
                latest[record.step] = len(wholes)
                wholes.append(replace(record, samples=items))
            elif (place := latest.get(record.step)) is not None:
                whole = wholes[place]
                wholes[place] = replace(
                    whole,
                    samples=whole.samples + items,
                    comm_bytes=whole.comm_bytes + record.comm_bytes,
                    energy_mj=whole.energy_mj + record.energy_mj,
                )
    return wholes


def _timing(one: Step) -> dict[str, Any]:
    step_ns = one.wait_ns + one.dur_ns
    return {
        "step": one.step,
        "t_data_ms": one.wait_ns / one.count / _MS,
        "t_step_ms": step_ns / one.count / _MS,
        "ips_step": one.samples / step_ns * 1e9 if step_ns and one.samples else "",
    }


def _collectives(steps: Sequence[Step]) -> Iterable[dict[str, Any]]:
    """Yield each step's bytes; empty if no step was metered, which is not zero."""
    metered = any(one.comm_bytes for one in steps)
    for one in steps:
        yield {"step": one.step, "bytes_total": one.comm_bytes // one.count if metered else ""}


def _energies(log: RunLog, steps: Sequence[Step]) -> list[Step | Heartbeat]:
    """Return the records with energy: steps, and heartbeats for the time outside of steps.

    Empty if none was measured.
    """
    beats = {
        segment: [each for each in records if isinstance(each, Heartbeat) and each.energy_mj]
        for segment, records in log.segments.items()
    }
    own = [each for segment, found in beats.items() if segment.rank != SUPERVISOR for each in found]
    # A supervisor measures the same energy as the training: it counts if that measured none.
    if not own and not any(one.energy_mj for one in steps):
        own = [each for found in beats.values() for each in found]
    measured: list[Step | Heartbeat] = [*steps, *own]
    return measured if any(one.energy_mj for one in measured) else []


def _cumulative(measured: Iterable[Step | Heartbeat]) -> Iterable[dict[str, Any]]:
    total_mj, step = 0, ""
    for one in measured:
        total_mj += one.energy_mj
        step = str(one.step) if isinstance(one, Step) else step
        yield {
            "timestamp": one.t_ns / 1e9,
            "step": step,
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
