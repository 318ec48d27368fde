"""A sweep's directory: its lock, creation from a plan, matching with an edited plan."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from outlay.budget.limits import cost_in
from outlay.clock import Clock, utc_datetime
from outlay.errors import Finding, InvalidValue
from outlay.files import make_private, open_own
from outlay.ledger import gpu_count_of
from outlay.locks import FileLock, FileLocked
from outlay.proc.identity import pid_scope, read_process
from outlay.record import facts
from outlay.record.redaction import Redactor, recorded
from outlay.sweep.errors import InvalidGrid, NotASweep, SweepInUse
from outlay.sweep.plan.launch import LOG_NAME, overrides_of
from outlay.sweep.plan.plan import PlannedRun, SweepPlan, at_rung, predict_whole
from outlay.sweep.search.halving import awaits_decision
from outlay.sweep.search.space import Point
from outlay.sweep.state.manifest import NAME, ManifestRun, SweepManifest, instant_text
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money, Unit
from outlay.units.money import GPU_TIME

# The lock: one harness per sweep, released when its process ends.

LOCK_FILE: Final = ".sweep.lock"
_STARTING_S: Final = 5.0
"""How long a process may take from its fork to its program."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a sweep; its host or container may be another that shares the disk.

    Attributes:
        namespace: Its pid namespace; empty in lock files of earlier versions.
    """

    pid: int
    host: str
    namespace: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its pid means the same process here."""
        own = self.namespace in ("", pid_scope().namespace)
        return own and self.host == socket.gethostname()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        found = read_process(self.pid) if self.is_here else None
        return self.is_here and (found is None or found.is_dead)

    def __str__(self) -> str:
        return f"process {self.pid}" + ("" if self.is_here else f" on {self.host}")


def lock_sweep(root: Path) -> FileLock:
    """Return an exclusive lock of a sweep's directory.

    Raises:
        NotASweep: There is no such directory.
        SweepInUse: Another process has the lock.
    """
    holder = f"{os.getpid()} {socket.gethostname()} {pid_scope().namespace}"
    try:
        file = open_own(root / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise NotASweep(str(root), f"{LOCK_FILE}: {error.strerror}") from None
    try:
        return FileLock(file, holder=holder)
    except (FileLocked, OSError) as error:  # OSError: the file system has no locks.
        other = _parse_holder(error.holder) if isinstance(error, FileLocked) else None
    if other is not None and other.has_ended:
        # Of a process that was killed, one that it was just starting has the lock a little longer.
        with suppress(FileLocked, OSError):
            file = open_own(root / LOCK_FILE, os.O_RDWR)
            return FileLock(file, holder=holder, patience_s=_STARTING_S)
    raise SweepInUse(str(root), str(other or "another process"))


def holder_of(root: Path) -> Holder | None:
    """Return the process that runs a sweep now, or None."""
    try:
        FileLock(open_own(root / LOCK_FILE, os.O_RDWR)).release()
    except FileLocked as error:
        return _parse_holder(error.holder)
    except OSError:
        pass
    return None


def _parse_holder(text: str) -> Holder | None:
    pid, host, namespace = (*text.split(" "), "", "")[:3]
    return Holder(int(pid), host or socket.gethostname(), namespace) if pid.isdecimal() else None


SCHEMA: Final = 1
RESUMED: Final = ("pending", "cancelled", "preempted", "skipped")


def root_for(plan: SweepPlan, stated: Path | None, now_ns: int) -> Path:
    """Return the directory of a new sweep, absolute.

    Raises:
        InvalidValue: There is a sweep in it already.
    """
    default = f"runs/{plan.grid.name}_{utc_datetime(now_ns):%Y%m%d_%H%M%S}"
    root = (stated or Path(plan.grid.output_dir or default)).expanduser().absolute()
    if (root / NAME).exists():
        expected = f"a directory without a sweep; resume this one with: outlay sweep resume {root}"
        raise InvalidValue("output_dir", str(root), expected)
    return root


def create(
    plan: SweepPlan, root: Path, environ: Mapping[str, str], clock: Clock, *, cwd: Path
) -> SweepManifest:
    """Write the manifest of a new sweep, before any run starts."""
    make_private(root)
    about = _about(plan, environ, clock.wall_ns(), cwd)
    manifest = SweepManifest(root, about, _manifest_runs(plan, root, environ), clock=clock)
    manifest.write()
    return manifest


def match_plan(
    plan: SweepPlan, manifest: SweepManifest, environ: Mapping[str, str]
) -> tuple[SweepPlan, tuple[Finding, ...]]:
    """Match a plan with a manifest by fingerprint, and add new runs to the manifest.

    Returns the plan with the manifest's ids, a free id for each new run; and a warning for each
    run that is no longer in the grid.
    """
    _check_rungs(plan, manifest)
    ids = {known.fingerprint: name for name, known in manifest.runs.items()}
    taken = set(manifest.runs)
    runs = []
    for run in plan.runs:
        free = run.id if run.id not in taken else f"{run.id}-{run.fingerprint[:6]}"
        name = ids.pop(run.fingerprint, free)
        taken.add(name)
        runs.append(_resumed(replace(run, id=name), manifest.state(name)))
    matched = replace(plan, runs=tuple(runs))
    manifest.runs = {**manifest.runs, **_manifest_runs(matched, manifest.root, environ)}
    manifest.about.pop("book", None)
    manifest.about |= _grid_fields(plan) | _book_label(plan, manifest.about)
    if (work_dir := Path(plan.grid.work_dir or "").expanduser()).is_absolute():
        manifest.about["work_dir"] = str(work_dir)
    manifest.write()
    findings = tuple(
        Finding(
            source=plan.grid.source,
            message=f"{run} is no longer in the grid; it is kept and not run again",
            severity="warning",
        )
        for run in ids.values()
    )
    return matched, findings


def _resumed(run: PlannedRun, state: RunState) -> PlannedRun:
    """Return a run at the rung at which it was started last."""
    spent = None
    if state.cost_micros is not None:
        spent = Money(state.cost_micros, state.currency)
    return at_rung(run, state.rung, spent)


def unfinished_runs(
    plan: SweepPlan, manifest: SweepManifest, *, retry_failed: bool, retry_stopped: bool = False
) -> list[PlannedRun]:
    """Return the runs to start: neither completed nor, unless ``retry_failed``, failed.

    Runs that wait at a rung are left to their search; those that a person stopped stay so, unless
    ``retry_stopped``.
    """
    found = []
    for run in plan.runs:
        state = manifest.state(run.id)
        if state.is_stopped and not retry_stopped:
            continue
        failed = state.status == "error" and (
            retry_failed or (run.rungs and state.tries <= run.entry.retries)
        )
        if failed or (state.status in RESUMED and not awaits_decision(state)):
            found.append(run)
    return found


def check_predictable(plan: SweepPlan, *, finished: bool, unit: Unit | None = None) -> None:
    """Check that under a ceiling every run's cost can be predicted.

    ``unit`` is that of the sweep's book. One of GPU-hours needs no price, but the number of GPUs.

    Raises:
        InvalidGrid: Some cannot, or cash and showback are mixed; names all of them.
    """
    if not plan.grid.is_guarded:
        return
    found: dict[str, list[str]] = {}
    for run in plan.runs:
        if unit == GPU_TIME:
            problem = _gpu_time_problem(run, finished=finished)
        else:
            problem = _cost_problem(run, plan.grid.ceiling, finished=finished)
        if problem:
            found.setdefault(problem, []).append(run.id)
    findings = [
        Finding(source=plan.grid.source, message=f"{_first_of(runs)}: {problem}")
        for problem, runs in found.items()
    ]
    kinds = {run.entry.price.kind for run in plan.runs if run.entry.price is not None}
    if len(kinds) > 1 and unit != GPU_TIME:
        message = "one ceiling cannot hold both cash and showback; give each a sweep of its own"
        findings.append(Finding(source=plan.grid.source, message=message))
    if findings:
        raise InvalidGrid(findings)


def _first_of(runs: Sequence[str]) -> str:
    """Return the first of some runs, and how many more there are."""
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"


def _cost_problem(run: PlannedRun, ceiling: Money | None, *, finished: bool) -> str:
    """Return why a run's cost cannot be predicted; "" if it can."""
    rate = run.rate
    if rate is None:
        return 'no price to predict its cost from; add `price: "1.50 USD/h"`'
    if ceiling is not None and rate.currency != ceiling.currency:
        return f"priced in {rate.currency}, and the ceiling is in {ceiling.currency}"
    if run.prediction.cost is None and not finished:
        return (
            "the duration is unknown; add `timeout` (--timeout 2h), or a budget with "
            f"`max_minutes` or `{cost_in(rate.currency).key}`"
        )
    return ""


def _gpu_time_problem(run: PlannedRun, *, finished: bool) -> str:
    """Return why a run's GPU-hours cannot be predicted; "" if they can."""
    if not run.states_gpus:
        return "no GPUs are stated, and the book counts GPU-hours; add `gpus: 8`"
    if run.prediction.ns is None and not finished:
        return "the duration is unknown; add `timeout`, or a budget with `max_minutes`"
    return ""


def _about(plan: SweepPlan, environ: Mapping[str, str], now_ns: int, cwd: Path) -> dict[str, Any]:
    here = facts.gather(environ)
    inherited = environ if facts.records_identity(environ) else {}
    return (
        _grid_fields(plan)
        | _book_label(plan, {})
        | {
            "schema": SCHEMA,
            "name": plan.grid.name,
            "created_at": instant_text(now_ns),
            "work_dir": str(cwd),
            "host": here.host,
            "git_commit": here.git_commit,
            "versions": here.versions,
            "environment": Redactor([environ]).environment(recorded(inherited)),
        }
    )


def _grid_fields(plan: SweepPlan) -> dict[str, Any]:
    """Return the fields of the grid that may change between start and resume."""
    ceiling = plan.grid.ceiling
    return {
        "grid_path": os.path.abspath(plan.grid.source),  # noqa: PTH100 - without resolving links
        "ceiling": None if ceiling is None else str(ceiling),
        **({"book": plan.grid.book} if plan.grid.book else {}),
    }


def _book_label(plan: SweepPlan, about: Mapping[str, Any]) -> dict[str, str]:
    """Return what begins the labels of a sweep's operations in a book; the same for all its time.

    It is unique: two sweeps of one name may draw on one book.
    """
    if not plan.grid.book or "label" in about:
        return {}
    return {"label": f"{plan.grid.name}-{secrets.token_hex(4)}"}


def _search_fields(run: PlannedRun) -> dict[str, Any]:
    """Return what a search keeps of a run: its point and its rungs."""
    halving = run.entry.search.halving
    found: dict[str, Any] = {"point": dict(run.point)} if run.point else {}
    if halving is not None:
        found["resumable"] = halving.resumable
        whole = predict_whole(run).cost
        found["predicted_whole"] = None if whole is None else str(whole)
        found["rungs"] = [
            {"limits": dict(budget.limits), "predicted_cost": None if cost is None else str(cost)}
            for budget, cost in zip(halving.rungs, (r.cost for r in run.rungs), strict=True)
        ]
    return found


def add_runs(manifest: SweepManifest, plan: SweepPlan, environ: Mapping[str, str]) -> None:
    """Write runs into the manifest that a search has chosen, before any starts."""
    manifest.runs = {**manifest.runs, **_manifest_runs(plan, manifest.root, environ)}
    manifest.write()


def suggested_points(manifest: SweepManifest) -> dict[str, list[Point]]:
    """Return the points that a sweep's search has chosen, by entry, in their order."""
    found: dict[str, list[Point]] = {}
    for run in manifest.runs.values():
        points = found.setdefault(run.group or "", [])
        if run.point is not None and run.point not in points[-1:]:
            points.append(run.point)
    return found


def _check_rungs(plan: SweepPlan, manifest: SweepManifest) -> None:
    """Check that the rungs of runs that were started are as they were."""
    before = {run.fingerprint: run for run in manifest.runs.values()}
    for run in plan.runs:
        known = before.get(run.fingerprint)
        if known is None or not manifest.state(known.id).attempts:
            continue
        halving = run.entry.search.halving
        rungs = [] if halving is None else [dict(budget.limits) for budget in halving.rungs]
        if known.limits_by_rung != rungs:
            message = f"{known.id} was started with other rungs; keep `halving`, or start anew"
            raise InvalidGrid(
                [Finding(source=plan.grid.source, line=run.entry.line, message=message)]
            )


def _manifest_runs(
    plan: SweepPlan, root: Path, environ: Mapping[str, str]
) -> dict[str, ManifestRun]:
    redact = plan.redactor(environ)
    return {run.id: ManifestRun.of(_document(run, str(root / run.id), redact)) for run in plan.runs}


def _document(run: PlannedRun, directory: str, redact: Redactor) -> dict[str, Any]:
    halving = run.entry.search.halving
    entry, budget = run.entry, run.entry.budget if halving is None else halving.rungs[-1]
    by_overrides = entry.arguments == "overrides"
    overrides = overrides_of(run, directory) if by_overrides else run.overrides
    return {
        "id": run.id,
        "fingerprint": run.fingerprint,
        "configuration": run.configuration,
        "group": entry.name,
        "run_dir": run.id,
        "launcher_log": f"{run.id}/{LOG_NAME}",
        "world_size": run.world_size,
        "nnodes": entry.nnodes,
        "node_rank": entry.node_rank,
        "rendezvous": redact.data(entry.rendezvous),
        "engine": entry.engine,
        "params": redact.data(run.params),
        "overrides": redact.data(overrides),
        "metadata": redact.data(run.metadata),
        "env": redact.environment(run.env),
        "stated": {
            "env": redact.environment(entry.env),
            "overrides": redact.data(entry.overrides),
            "entrypoint": redact.data(entry.entrypoint),
        },
        "command": [],
        "budget": None if budget is None else {"mode": budget.mode, "limits": dict(budget.limits)},
        **_search_fields(run),
        "price": None if entry.price is None else str(entry.price.stated),
        "price_from": None if entry.price is None else entry.price.origin,
        "price_kind": None if entry.price is None else entry.price.kind,
        "gpu": entry.gpu,
        "gpus": run.gpus,
        "most_gpus": run.most_gpus,
        "charged_gpus": gpu_count_of(run.charged_gpus),
        "timeout_s": None if entry.timeout is None else entry.timeout.seconds,
        "retries": entry.retries,
        "predicted_cost": None if run.prediction.cost is None else str(run.prediction.cost),
    }
