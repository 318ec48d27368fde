"""Imports runs of Weights & Biases as run logs, to be priced, compared and forecast from.

W&B has the history (metrics and steps with their times), system metrics (GPU load and energy), the
runtime and the end. What W&B does not have stays unknown, and is reported as missing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Engine

from outlay.clock import wall_ns_of
from outlay.decoding import BadDocument, read_document
from outlay.errors import Finding, OutlayError
from outlay.files import make_private, write_whole
from outlay.integrations.wandb_files import (
    RUN_ID,
    HistoryRow,
    SystemRow,
    TrackedRun,
    Value,
    read_offline_run,
)
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    EndStatus,
    Heartbeat,
    KnownRecord,
    Metric,
    Note,
    Price,
    RunIdentity,
    SegmentId,
    Step,
    claim_identity,
    encode_line,
    ledger_dir,
)
from outlay.runs.collect import collect
from outlay.store import outlay_home
from outlay.store.runs import get

SOURCE = "wandb"
_STEP_KEYS = ("trainer/global_step", "train/global_step", "global_step")
_MODEL_KEYS = ("model", "model_name", "model_name_or_path", "_name_or_path", "arch")
_LONGEST_GAP_NS = 300 * 10**9  # Between two system rows; load beyond it is unknown.
_BATCH = 50  # Runs per registration.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTerms:
    """What the user states about the imported runs.

    Attributes:
        price: Of a GPU-hour; a later import may change it.
        gpus: The GPUs of each run; None: as W&B recorded.
        model: None: from the configuration, else the project's name.
    """

    price: Price | None = None
    gpus: int | None = None
    model: str | None = None


@dataclass(slots=True, kw_only=True)
class ImportedRuns:
    """The result of an import.

    Attributes:
        imported: The directories of the imported runs.
        unchanged: How many were imported before and have not changed.
        recorded: How many were not imported, because the store has outlay's own log of them.
        missing: What W&B did not have, with the number of runs.
        failed: The runs that could not be imported.
    """

    imported: list[str] = field(default_factory=list)
    unchanged: int = 0
    recorded: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    failed: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class _Imported(msgspec.Struct, frozen=True):
    """What a run was imported from: an unchanged source is not read again."""

    source: str
    stamp: str
    terms: str
    segment: str = ""


def find_offline_runs(roots: Iterable[Path]) -> list[Path]:
    """Return the ``.wandb`` files at or below some directories, each once."""
    found: dict[Path, None] = {}
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("run-*.wandb")):
            found[path.resolve()] = None  # ``latest-run`` is a link to one of them.
    return list(found)


def import_offline_runs(
    store: Engine,
    paths: Sequence[Path],
    terms: ImportTerms,
    now_ns: int,
    advance: Callable[[], None] = lambda: None,
) -> ImportedRuns:
    """Import offline runs; idempotent.

    Each is written completely before the next, so that an interrupted import can be continued.

    Args:
        store: The store to register them in.
        paths: From ``find_offline_runs``.
        terms: What the user states about them.
        now_ns: The present, in UTC nanoseconds.
        advance: Called after each run, for a progress bar.
    """
    sources = (
        _Source(str(path), partial(_stamp_of_file, path), partial(read_offline_run, path))
        for path in paths
    )
    return _import(store, sources, terms, now_ns, advance)


class _Source(NamedTuple):
    """A run to import; ``stamp`` returns a text that changes with the run, or "" if unknown."""

    name: str
    stamp: Callable[[], str]
    read: Callable[[], TrackedRun]


def _stamp_of_file(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _import(
    store: Engine,
    sources: Iterable[_Source],
    terms: ImportTerms,
    now_ns: int,
    advance: Callable[[], None],
) -> ImportedRuns:
    done = ImportedRuns()
    collect(store, (), now_ns)  # Which runs have a log of their own.
    waiting: dict[Path, _Imported] = {}
    try:
        for source in sources:
            try:
                waiting |= _import_source(store, source, terms, done)
            except Exception as error:  # noqa: BLE001 - W&B's client raises anything; reported
                done.failed.append(Finding(source=source.name, message=_error_text(error)))
            if len(waiting) >= _BATCH:
                done.findings += _register(store, waiting, now_ns)
                waiting = {}
            advance()
    finally:  # An interrupt keeps what was read.
        done.findings += _register(store, waiting, now_ns)
    return done


def _register(store: Engine, written: Mapping[Path, _Imported], now_ns: int) -> list[Finding]:
    """Register written logs, and then write their marks, so that they are not read again."""
    directories = [Path(stamp.segment).parent.parent for stamp in written.values()]
    collected = collect(store, directories, now_ns)
    for mark, stamp in written.items():
        write_whole(mark, msgspec.json.encode(stamp))
    return collected.findings


def _import_source(
    store: Engine, source: _Source, terms: ImportTerms, done: ImportedRuns
) -> dict[Path, _Imported]:
    """Write the log of a source that has changed; return its mark, if so."""
    # Compared by name if it has one: a price that moved since is no new term.
    price = terms.price and (terms.price.offer or terms.price.text)
    stated = repr((price, terms.gpus, terms.model))
    stamp = _Imported(source.name, source.stamp(), stated)
    name = hashlib.sha256(os.fsencode(source.name)).hexdigest()[:16]
    marks = outlay_home() / SOURCE / "imported"
    make_private(marks)
    mark = marks / f"{Path(source.name).stem}-{name}.json"
    before = _read_mark(mark)
    if before is not None and stamp.stamp and msgspec.structs.replace(before, segment="") == stamp:
        done.unchanged += 1
        return {}
    run = source.read()
    if _has_own_log(store, run):
        done.recorded += 1
        return {}
    segment = import_run(run, terms, done)
    if before is not None and before.segment != str(segment):
        Path(before.segment).unlink(missing_ok=True)  # Its start or host has changed.
    return {mark: msgspec.structs.replace(stamp, segment=str(segment))}


def _has_own_log(store: Engine, run: TrackedRun) -> bool:
    """Return whether the store has outlay's own log of a run that it was attached to."""
    row = get(store, str(run.config.get(RUN_ID, "")))
    return row is not None and row.tags.get("imported") != SOURCE


def _read_mark(path: Path) -> _Imported | None:
    try:
        return read_document(path, _Imported)
    except (OSError, BadDocument):
        return None


def import_api_runs(
    store: Engine,
    runs: Iterable[Any],
    terms: ImportTerms,
    now_ns: int,
    advance: Callable[[], None] = lambda: None,
) -> ImportedRuns:
    """Import runs from ``wandb.Api().runs(...)``, as ``import_offline_runs`` does.

    A run's history is fetched only if W&B got data of the run since the last import.
    """
    sources = (
        _Source(
            "/".join(map(str, getattr(each, "path", ["a W&B run"]))),
            partial(_stamp_of_api, each),
            partial(_from_api, each),
        )
        for each in runs
    )
    return _import(store, sources, terms, now_ns, advance)


def _stamp_of_api(run: Any) -> str:
    heard = getattr(run, "heartbeat_at", None)
    return f"{run.state} {heard}" if heard else ""


def _from_api(run: Any) -> TrackedRun:
    metadata = run.metadata or {}
    ended = run.state not in ("running", "pending")
    runtime = run.summary.get("_runtime")
    count = metadata.get("gpu_count")
    found = TrackedRun(
        run_id=run.id, entity=run.entity, project=run.project, name=run.name or "",
        host=str(metadata.get("host", "")), user=str(metadata.get("username", "")),
        gpu=str(metadata.get("gpu", "")), gpus=count if isinstance(count, int) else 0,
        started_ns=wall_ns_of(datetime.fromisoformat(run.created_at.replace("Z", "+00:00"))),
        exit_code=None if not ended else int(run.state != "finished"),
        runtime_s=float(runtime) if isinstance(runtime, int | float) else None,
        config={name: v for name, v in run.config.items() if isinstance(v, int | float | str)},
    )  # fmt: skip
    for row in run.scan_history():
        at_s, step = row.get("_timestamp"), row.get("_step")
        if isinstance(at_s, int | float) and isinstance(step, int):
            values = {name: v for name, v in row.items() if not name.startswith("_")}
            found.history.append(HistoryRow(t_ns=round(at_s * 1e9), step=step, values=values))
    for row in run.history(stream="events", pandas=False):
        if isinstance(at_s := row.get("_timestamp"), int | float):
            values = {name.removeprefix("system."): v for name, v in row.items()}
            found.system.append(SystemRow(t_ns=round(at_s * 1e9), values=values))
    return found


def import_run(run: TrackedRun, terms: ImportTerms, done: ImportedRuns) -> Path:
    """Write a tracked run as a segment of a run log; return the file.

    A resumed run has several files with one id: attempts of one run. So have the W&B runs that one
    outlay run was attached to.
    """
    named = str(run.config.get(RUN_ID) or run.run_id)
    directory = outlay_home() / SOURCE / f"{run.project or 'run'}-{named}".replace("/", "-")
    header, body, missing = records_of(run, terms)
    claim_identity(
        directory,
        RunIdentity(
            run_id=header.run_id, model=header.model, name=header.name, created_ns=header.t_ns
        ),
    )
    segment = SegmentId(header.t_ns, header.rank, header.host or SOURCE)
    path = ledger_dir(directory) / segment.file_name
    make_private(path.parent)
    lines = (encode_line(record, place) for place, record in enumerate([header, *body]))
    write_whole(path, b"".join(lines), private=True)
    done.imported.append(str(directory))
    done.findings += run.findings
    for what in missing:
        done.missing[what] = done.missing.get(what, 0) + 1
    return path


class RecordsOfRun(NamedTuple):
    """A tracked run as records, and what a run log would have beyond that."""

    header: AttemptStarted
    body: list[KnownRecord]
    missing: list[str]


def records_of(run: TrackedRun, terms: ImportTerms) -> RecordsOfRun:
    """Convert a tracked run to records."""
    gpus, price = terms.gpus or run.gpus, terms.price
    rows = sorted(run.history, key=lambda row: (row.t_ns, row.step))
    instants = [row.t_ns for row in rows] + [row.t_ns for row in run.system]
    start_ns = run.started_ns or min(instants, default=0)
    missing = [
        what
        for what, known in (
            ("a price", price is not None),
            ("the number of GPUs (one is assumed)", gpus > 0),
            ("a history", bool(rows)),
            ("system metrics", bool(run.system)),
            ("a recorded end", run.exit_code is not None),
            ("tokens, data waits and checkpoints", False),
        )
        if not known
    ]
    header = AttemptStarted(
        t_ns=start_ns, run_id=str(run.config.get(RUN_ID) or f"{SOURCE}-{run.run_id}"),
        model=_model(run, terms), name=run.name or run.run_id, host=run.host, user=run.user,
        gpu=run.gpu, gpus=gpus or 1, gpus_source="stated" if terms.gpus else SOURCE, price=price,
        tags={"imported": SOURCE, "project": run.project},
    )  # fmt: skip
    body: list[KnownRecord] = [
        Note(t_ns=start_ns, text="imported from W&B", data={"missing": missing}),
        *sorted(
            [*_history(rows, start_ns), *_heartbeats(run.system)], key=lambda record: record.t_ns
        ),
    ]
    last_ns = max([start_ns, *(record.t_ns for record in body)])
    if run.exit_code is not None:
        counted_ns = start_ns + round((run.runtime_s or 0) * 1e9)
        status: EndStatus = "completed" if run.exit_code == 0 else "failed"
        end_ns = max(last_ns, counted_ns)
        body.append(AttemptEnded(t_ns=end_ns, status=status, exit_code=run.exit_code))
    return RecordsOfRun(header, body, missing)


def _model(run: TrackedRun, terms: ImportTerms) -> str:
    if terms.model:
        return terms.model
    named = (run.config.get(key) for key in _MODEL_KEYS)
    return next((v for v in named if isinstance(v, str) and v), run.project or SOURCE)


def _history(rows: Sequence[HistoryRow], start_ns: int) -> Iterator[KnownRecord]:
    """Yield a step for each row with a higher step number than before, and all metrics."""
    last_ns, last_step = start_ns, -1
    for row in rows:
        step = _step(row)
        if step > last_step and row.t_ns >= last_ns:
            first = last_step + 1 if last_step >= 0 else step
            yield Step(
                t_ns=row.t_ns, step=first, count=step - first + 1,
                dur_ns=row.t_ns - last_ns if last_step >= 0 else 0,
            )  # fmt: skip
            last_ns, last_step = row.t_ns, step
        for name, value in row.values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                shown = float(value) if math.isfinite(value) else str(float(value))
                yield Metric(t_ns=row.t_ns, name=name, value=shown, step=max(step, 0))


def _step(row: HistoryRow) -> int:
    stated = (row.values.get(key) for key in _STEP_KEYS)
    return next((int(v) for v in stated if isinstance(v, int | float)), row.step)


def _heartbeats(rows: Iterable[SystemRow]) -> Iterator[Heartbeat]:
    """Yield a heartbeat per system row, with GPU load and energy since the row before."""
    last_ns = None
    for row in sorted(rows, key=lambda row: row.t_ns):
        passed_ns = 0 if last_ns is None else min(row.t_ns - last_ns, _LONGEST_GAP_NS)
        last_ns = row.t_ns
        loads = list(_of_gpus(row.values, "gpu"))
        watts = sum(_of_gpus(row.values, "powerWatts"))
        share = sum(loads) / len(loads) / 100 if loads else 0.0
        yield Heartbeat(
            t_ns=row.t_ns,
            gpu_busy_ns=round(passed_ns * share),
            energy_mj=round(watts * passed_ns / 1e6),
        )


def _of_gpus(values: dict[str, Value], figure: str) -> Iterator[float]:
    for name, value in values.items():
        parts = name.split(".")
        is_figure = parts[0] == "gpu" and parts[-1] == figure and len(parts) == 3
        if is_figure and isinstance(value, int | float) and math.isfinite(value):
            yield float(value)


def _error_text(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return (text if isinstance(error, OutlayError) else f"{type(error).__name__}: {text}")[:500]
