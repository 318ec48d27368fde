"""Importing Slurm jobs from sacct: each job is counted once, by the times of the accounts.

- A job that never used outlay becomes a run of its own, with a log derived from sacct. It is
  removed when it turns out that the job recorded itself.
- The log of a job that recorded itself gets one segment per start, of the time that the job had its
  nodes: it bounds the attempt, and has the GPUs and the price if the run knew none. Its end is
  sacct's, or the log's own if that lies in the same second (``outlay.ledger.attempts``).
- A job that several runs shared is bounded in none of their logs: the rest of its time and GPUs is
  a run of its own, *in no run*.

A job's price is fixed when it first has one, whatever its partition costs later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace as replace_fields
from sqlalchemy import Engine

from outlay.decoding import BadDocument, read_document
from outlay.errors import Finding
from outlay.files import make_private, write_whole
from outlay.ledger import (
    ACCOUNTS,
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    Price,
    RunIdentity,
    SegmentId,
    claim_identity,
    derive_attempts,
    encode_line,
    gpu_count_of,
    ledger_dir,
    read_identity,
    read_lives,
    segment_paths,
)
from outlay.ledger.reader import header_of
from outlay.ledger.segments import id_from_name
from outlay.rates import GpuPiece, MachineAfter, gpu_pieces, machine_after, total_gpus
from outlay.runs.accounting.imported_jobs import (
    SACCT,
    SETTLED,
    jobs_of,
    own_headers,
    withdraw,
)
from outlay.runs.accounting.sacct import JobStart, SacctJob, left_over
from outlay.runs.collect import collect, refresh_registered, starts_ns
from outlay.store import outlay_home
from outlay.store.run_row import RunRow
from outlay.store.runs import delete_runs, list_runs

IN_NO_RUN: Final = "in no run"
"""Model name of the time and GPUs of a job that none of the runs in it had."""
_SPEND_LOG: Final = "spend.jsonl"
_SWEEP: Final = "sweep_manifest.json"
_A_DAY_NS: Final = 86_400 * 10**9
"""A log and an account this far apart with the same job number are different jobs."""


_IMPORTED: Final = "sacct-"
"""Begins the id of a run that was imported."""


class _Sweep(msgspec.Struct, frozen=True):
    """What is read of a sweep's manifest."""

    book: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledJob:
    """A job that recorded itself, with its durations over all starts.

    Attributes:
        log_ns: By its log.
        sacct_ns: By sacct: how long it had its nodes, in whole seconds per start.
        settled_ns: By both, which is what is charged.
    """

    job: str
    dir: str
    log_ns: int
    sacct_ns: int
    settled_ns: int

    @property
    def difference_ns(self) -> int:
        """The time that is missing in the log: before its first process and after its last."""
        return self.settled_ns - self.log_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJobs:
    """The result of an import.

    Attributes:
        jobs: Those that were imported as runs.
        recorded: How many have a log of their own.
        settled: Those of them whose log now has the times of the accounts.
        withdrawn: How many earlier imports were removed, because the job recorded itself.
        unpriced: Partitions without a rate that have jobs with GPUs.
    """

    jobs: tuple[SacctJob, ...]
    figures: list[RunRow]
    recorded: int
    settled: tuple[SettledJob, ...]
    withdrawn: int
    unpriced: tuple[str, ...]
    findings: list[Finding]


def import_jobs(
    store: Engine, jobs: Iterable[SacctJob], rates: Mapping[str, Price], now_ns: int
) -> ImportedJobs:
    """Register jobs as runs; idempotent.

    Runs in the inbox are registered first: they may belong to these jobs.
    """
    findings = list(refresh_registered(store, now_ns).findings)
    (known, elsewhere), imported = _recorded_jobs(store), _imported()
    every = list(jobs)
    own = {job.shown: known.get(job.shown) or known.get(job.job) or [] for job in every}
    apart = {job.shown for job in every if not own[job.shown] and {job.shown, job.job} & elsewhere}
    ours = tuple(job for job in every if not own[job.shown] and job.shown not in apart)
    settled: list[SettledJob] = []
    shared: list[Path] = []
    withdrawn = []
    for job in every:
        if job.shown in apart:
            withdrawn += withdraw(_directory(job, imported))
        if directories := own[job.shown]:
            withdrawn += withdraw(_directory(job, imported))
            settled += _settle(job, directories, rates.get(job.partition), findings)
            if len(directories) > 1:
                rest = _write_rest(job, directories, rates.get(job.partition), findings)
                shared += [*directories, *rest]
    delete_runs(store, withdrawn)
    collect(store, [*(Path(each.dir) for each in settled), *shared], now_ns)
    directories = [_write(job, _directory(job, imported), rates.get(job.partition)) for job in ours]
    collected = collect(store, directories, now_ns)
    unpriced = {job.partition for job in ours if job.gpus and job.partition not in rates}
    return ImportedJobs(
        jobs=ours, figures=collected.figures, recorded=len(every) - len(ours),
        settled=tuple(settled), withdrawn=len(withdrawn), unpriced=tuple(sorted(unpriced)),
        findings=[*findings, *collected.findings],
    )  # fmt: skip


def _recorded_jobs(store: Engine) -> tuple[dict[str, list[Path]], set[str]]:
    """Return the directories of runs that recorded themselves, by job; and jobs of other hosts.

    The log of a run on another host is not settled from here, and its job is not imported.
    """
    home = outlay_home() / SACCT
    found: dict[str, list[Path]] = {}
    elsewhere: set[str] = set()
    for run in list_runs(store):
        directory = Path(run.dir)
        if run.log_host and not run.run_id.startswith(_IMPORTED):
            elsewhere.update(run.slurm_jobs)
        if run.log_host or home in directory.parents:
            continue
        for job in jobs_of(directory):
            found.setdefault(job, []).append(directory)
    return found, elsewhere


# A job that recorded itself


def _settle(
    job: SacctJob, directories: list[Path], rate: Price | None, findings: list[Finding]
) -> Iterator[SettledJob]:
    """Add a job's accounts to its log; if that is not possible, report the difference."""
    directory = directories[0]
    log_ns = _logged_ns(job, directories, settled=False)
    sacct_ns = sum(start.end_ns - start.start_ns for start in job.starts)
    reason = _reason_not_to_settle(job, directories)
    if not reason:
        try:
            _write_accounts(job, directory, rate)
        except OSError as error:
            reason = f"its log cannot be written ({error.strerror})"
    if reason:
        message = (
            f"job {job.shown} had its nodes for {sacct_ns / 1e9:.0f} s, and its log knows of "
            f"{log_ns / 1e9:.1f} s; the log stays as it is: {reason}"
        )
        findings.append(Finding(source=str(directory), message=message, severity="warning"))
        return
    write_whole(_beside(job, SETTLED), os.fsencode(directory), private=True)
    settled_ns = _logged_ns(job, directories, settled=True)
    yield SettledJob(
        job=job.shown, dir=str(directory), log_ns=log_ns, sacct_ns=sacct_ns, settled_ns=settled_ns
    )


def _reason_not_to_settle(job: SacctJob, directories: list[Path]) -> str:
    if len(directories) > 1:
        return f"{len(directories)} runs shared the job, and what lies in none is a row of its own"
    (directory,) = directories
    if (directory.parent / _SPEND_LOG).exists() or _draws_on_book(directory.parent):
        return "a guard has captured what it cost by its log"
    first_ns, last_ns = job.starts[0].start_ns, job.starts[-1].end_ns
    if not any(
        first_ns - _A_DAY_NS < start_ns < last_ns + _A_DAY_NS for start_ns in starts_ns(directory)
    ):
        return "it ran on another day; is the time zone right, and the job of this cluster?"
    return ""


def _draws_on_book(root: Path) -> bool:
    """Return whether a directory is that of a sweep whose costs are in a book."""
    try:
        return bool(read_document(root / _SWEEP, _Sweep).book)
    except (BadDocument, OSError):
        return False


def _logged_ns(job: SacctJob, directories: Iterable[Path], *, settled: bool) -> int:
    """Return the duration of a job's attempts, with or without segments of accounts."""
    numbers = (job.shown, job.job)
    attempts = [
        attempt
        for directory in directories
        for attempt in derive_attempts(
            life for life in read_lives(directory) if settled or not life.is_account
        )
        if attempt.header.slurm_job in numbers
    ]
    return sum(attempt.last_sign_ns - attempt.start_ns for attempt in attempts)


def _write_accounts(job: SacctJob, directory: Path, rate: Price | None) -> None:
    identity = read_identity(directory)
    stated = next((header.price for header in own_headers(directory) if header.price), None)
    for restart, start in enumerate(job.starts):
        header = _header_of(
            job, start, restart, run_id="" if identity is None else identity.run_id,
            price=_fixed_price(directory, job, start) or stated or _price(job, rate),
        )  # fmt: skip
        _put(directory, header, start.end)


# A job that several runs shared


def _write_rest(
    job: SacctJob, directories: list[Path], rate: Price | None, findings: list[Finding]
) -> list[Path]:
    """Write the time and GPUs of a job that are in none of its runs to a log of their own.

    One segment per piece of time. Runs that claim more GPUs than the job had are a finding. Returns
    the directory of that log, if there is a rest.
    """
    directory = _beside(job, "-rest")
    used = [piece for each in directories for piece in _used(job, each)]
    pieces = [(n, start, p) for n, start in enumerate(job.starts) for p in left_over(start, used)]
    if over_ns := -sum(p.gpus * (p.end_ns - p.start_ns) for _, _, p in pieces if p.gpus < 0):
        message = (
            f"the runs of job {job.shown} say that they had {float(over_ns) / 3.6e12:.2f} "
            "GPU-hours more than it had; state their shares with gpus= or OUTLAY_GPUS"
        )
        findings.append(Finding(source=str(directories[0]), message=message, severity="warning"))
    before = map(header_of, segment_paths(directory))
    stated = (header for each in directories for header in own_headers(each))
    prices = (header.price for header in (*before, *stated) if header is not None)
    price = next(filter(None, prices), None) or _price(job, rate)
    shutil.rmtree(ledger_dir(directory), ignore_errors=True)
    for restart, start, piece in pieces:
        if piece.gpus > 0:
            _put_rest(job, directory, restart, start, piece, price)
    return [directory] if segment_paths(directory) else []


def _used(job: SacctJob, directory: Path) -> Iterator[GpuPiece]:
    """Yield the GPUs of a run over time, including time between its attempts in the same job."""
    for start in job.starts:
        for path in _accounts_of(directory, f"{ACCOUNTS}-{job.job}", start.start_ns):
            path.unlink(missing_ok=True)  # Added when no other run of the job was known.
    attempts = derive_attempts(read_lives(directory))
    for attempt, following in zip_longest(attempts, attempts[1:]):
        yield from gpu_pieces(attempt)
        if following is not None and machine_after(attempt, following) is MachineAfter.KEPT:
            gpus = total_gpus(attempt, attempt.header.gpus)
            yield GpuPiece(attempt.last_sign_ns, following.start_ns, gpus)


def _put_rest(
    job: SacctJob,
    directory: Path,
    restart: int,
    start: JobStart,
    piece: GpuPiece,
    price: Price | None,
) -> None:
    identity = RunIdentity(
        run_id=f"{_IMPORTED}{directory.name}", model=IN_NO_RUN,
        name=f"{job.name} {IN_NO_RUN}".strip(), created_ns=job.starts[0].start_ns,
    )  # fmt: skip
    identity = claim_identity(directory, identity)
    gpus = gpu_count_of(piece.gpus)
    header = replace_fields(
        _header_of(job, start, restart, run_id=identity.run_id, price=price),
        t_ns=piece.start_ns, model=identity.model, name=identity.name, gpus=gpus,
        node_gpus=gpu_count_of(piece.gpus / start.node_count), queued_ns=0,
    )  # fmt: skip
    # Completed, so that the time after it is not charged as time between two attempts.
    _put(directory, header, AttemptEnded(t_ns=piece.end_ns, status="completed"))


# A job that did not record itself


def _imported() -> dict[str, list[Path]]:
    """Return the directories of imported jobs by name, without the start time in it."""
    found: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for entry in sorted((outlay_home() / SACCT).iterdir()):
            found.setdefault(entry.name.rpartition("-")[0], []).append(entry)
    return found


def _directory(job: SacctJob, imported: Mapping[str, Sequence[Path]]) -> Path:
    """Return the directory of an imported job: one that has some of its starts, or a new one.

    Slurm reuses job numbers: a log of the same number may be another job's.
    """
    name = f"{job.cluster or 'slurm'}-{job.shown}".replace("/", "-")
    begun_ns = {start.start_ns for start in job.starts}
    for directory in imported.get(name, ()):
        if not begun_ns.isdisjoint(starts_ns(directory)):
            return directory
    return outlay_home() / SACCT / f"{name}-{job.starts[0].start_ns // 10**9}"


def _beside(job: SacctJob, ending: str) -> Path:
    """Return the path of another file of a job, next to its directory."""
    make_private(outlay_home() / SACCT)
    return outlay_home() / SACCT / f"{_directory(job, {}).name}{ending}"


def _write(job: SacctJob, directory: Path, rate: Price | None) -> Path:
    """Write a job's run log, one segment per start; return its directory."""
    created_ns = job.starts[0].start_ns // 10**9 * 10**9
    identity = claim_identity(
        directory,
        RunIdentity(
            run_id=f"{_IMPORTED}{directory.name}",
            model=job.name,
            name=job.name,
            created_ns=created_ns,
        ),
    )
    for restart, start in enumerate(job.starts):
        price = _fixed_price(directory, job, start) or _price(job, rate)
        header = _header_of(job, start, restart, run_id=identity.run_id, price=price)
        _put(directory, header, start.end)
    return directory


def _header_of(
    job: SacctJob, start: JobStart, restart: int, *, run_id: str, price: Price | None
) -> AttemptStarted:
    nodes = start.node_count
    return AttemptStarted(
        t_ns=start.start_ns, run_id=run_id, model=job.name, name=job.name, rank=SUPERVISOR,
        host=start.nodes, user=job.user, slurm_job=job.shown,
        launch=f"{ACCOUNTS}-{job.job}-{restart}", slurm_account=job.account,
        slurm_partition=job.partition, slurm_restart=str(restart), gpu=start.gpu, gpus=start.gpus,
        gpus_source=ACCOUNTS, nodes=nodes, node_gpus=gpu_count_of(Fraction(start.gpus, nodes)),
        price=price, tags=job.tags, queued_ns=start.queued_ns,
    )  # fmt: skip


def _put(directory: Path, header: AttemptStarted, end: AttemptEnded) -> None:
    """Write a segment of accounts, replacing an earlier one."""
    path = ledger_dir(directory) / SegmentId(header.t_ns, SUPERVISOR, header.host).file_name
    write_whole(path, encode_line(header, 0) + encode_line(end, 1), private=True)
    for earlier in _accounts_of(directory, header.launch.rpartition("-")[0], header.t_ns):
        if earlier != path:  # It had other nodes in its name.
            earlier.unlink(missing_ok=True)


def _accounts_of(directory: Path, launch: str, start_ns: int) -> list[Path]:
    """Return the segments of accounts with this start time and launch id prefix."""
    segments = ((path, id_from_name(path)) for path in segment_paths(directory))
    same = [p for p, s in segments if s and (s.start_ns, s.rank) == (start_ns, SUPERVISOR)]
    headers = ((path, header_of(path)) for path in same)
    return [path for path, header in headers if header and header.launch.startswith(f"{launch}-")]


def _fixed_price(directory: Path, job: SacctJob, start: JobStart) -> Price | None:
    earlier = map(header_of, _accounts_of(directory, f"{ACCOUNTS}-{job.job}", start.start_ns))
    return next((header.price for header in earlier if header and header.price), None)


def _price(job: SacctJob, rate: Price | None) -> Price | None:
    """Return the price per GPU; a job without GPUs has no price, which is not 0."""
    return rate if job.gpus else None
