"""A cluster's accounts brought into the books: each job counted once, by the accounts' times.

A job that never used outlay becomes a run of its own, with a log made of what the accounts say; it
is withdrawn when the job turns out to have recorded itself. The log of a job that did gets a
segment per start, of the time that the job had its nodes: it bounds the attempt, and has the GPUs
and the price where the run knew none. It lasts as long as the accounts say, to an end that the log
names more finely where it lies in the same second (``outlay.ledger.attempts``). From there on all
are runs like any other. What a job cost is fixed when it first has a price, whatever its partition
costs later. A job that several runs shared is bounded in none of their logs: what lies in none of
them is a run of its own, *in no run*.
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

from msgspec.structs import replace as replace_fields
from sqlalchemy import Engine

from outlay.errors import Finding
from outlay.files import write_whole
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
from outlay.ledger.segments import id_from_name
from outlay.rates import GpuPiece, MachineAfter, gpu_pieces, machine_after, total_gpus
from outlay.runs.collect import collect, refresh_registered
from outlay.runs.figures import RunFigures
from outlay.runs.slurm.imported_jobs import (
    SACCT,
    SETTLED,
    header_of,
    jobs_of,
    own_headers,
    withdraw,
)
from outlay.runs.slurm.sacct import SacctJob, Stay, left_over
from outlay.store import outlay_home
from outlay.store.runs import delete_runs, list_runs

IN_NO_RUN: Final = "in no run"
"""What is called so of a job: the time and the GPUs that none of the runs in it had."""
_SPEND_LOG: Final = "spend.jsonl"
_A_DAY_NS: Final = 86_400 * 10**9
"""So far apart, a log and an account of the same number are not of the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledJob:
    """A job that recorded itself, and what its accounts say beside its log.

    Attributes:
        log_ns: How long it ran by its log, all starts.
        sacct_ns: How long it had its nodes, in whole seconds a start.
        settled_ns: How long it ran by both, which is what it is charged for.
    """

    job: str
    dir: str
    log_ns: int
    sacct_ns: int
    settled_ns: int

    @property
    def difference_ns(self) -> int:
        """What the log knew nothing of: the time before its first process and after its last."""
        return self.settled_ns - self.log_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJobs:
    """What became of the jobs of a file.

    Attributes:
        jobs: Those that are runs now.
        recorded: How many kept a log of their own.
        settled: Those of them whose log has the accounts' times now.
        withdrawn: How many had been imported before it was known that they recorded themselves.
        unpriced: Partitions of jobs with GPUs and without a rate.
    """

    jobs: tuple[SacctJob, ...]
    figures: list[RunFigures]
    recorded: int
    settled: tuple[SettledJob, ...]
    withdrawn: int
    unpriced: tuple[str, ...]
    findings: list[Finding]


def import_jobs(
    store: Engine, jobs: Iterable[SacctJob], rates: Mapping[str, Price], now_ns: int
) -> ImportedJobs:
    """Register jobs as runs; the same jobs any number of times leave the same books.

    Runs that left a notice are taken in first: they may be of these jobs.
    """
    findings = list(refresh_registered(store, now_ns).findings)
    known, imported = _recorded_jobs(store), _imported()
    every = list(jobs)
    own = {job.shown: known.get(job.shown) or known.get(job.job) or [] for job in every}
    ours = tuple(job for job in every if not own[job.shown])
    settled: list[SettledJob] = []
    shared: list[Path] = []
    withdrawn = []
    for job in every:
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


def _recorded_jobs(store: Engine) -> dict[str, list[Path]]:
    """Return the directories of runs that recorded themselves, by job."""
    home = outlay_home() / SACCT
    found: dict[str, list[Path]] = {}
    for run in list_runs(store):
        directory = Path(run.dir)
        if home in directory.parents:
            continue
        for job in jobs_of(directory):
            found.setdefault(job, []).append(directory)
    return found


# A job that recorded itself


def _settle(
    job: SacctJob, directories: list[Path], rate: Price | None, findings: list[Finding]
) -> Iterator[SettledJob]:
    """Add the accounts of a job to its log; where that cannot be done, name the difference."""
    directory = directories[0]
    log_ns = _logged_ns(job, directories, settled=False)
    sacct_ns = sum(stay.end_ns - stay.start_ns for stay in job.stays)
    reason = _reason_not_to(job, directories)
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
    write_whole(_beside(job, SETTLED), os.fsencode(directory))
    settled_ns = _logged_ns(job, directories, settled=True)
    yield SettledJob(
        job=job.shown, dir=str(directory), log_ns=log_ns, sacct_ns=sacct_ns, settled_ns=settled_ns
    )


def _reason_not_to(job: SacctJob, directories: list[Path]) -> str:
    if len(directories) > 1:
        return f"{len(directories)} runs shared the job, and what lies in none is a row of its own"
    (directory,) = directories
    if (directory.parent / _SPEND_LOG).exists():
        return "a guard has captured what it cost by its log"
    first_ns, last_ns = job.stays[0].start_ns, job.stays[-1].end_ns
    starts = [found.start_ns for p in segment_paths(directory) if (found := id_from_name(p))]
    if not any(first_ns - _A_DAY_NS < start < last_ns + _A_DAY_NS for start in starts):
        return "it ran on another day; is the time zone right, and the job of this cluster?"
    return ""


def _logged_ns(job: SacctJob, directories: Iterable[Path], *, settled: bool) -> int:
    """Return how long a job's attempts lasted, with or without what accounts added."""
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
    """Put a segment for every start of a job into its own log."""
    identity = read_identity(directory)
    stated = next((header.price for header in own_headers(directory) if header.price), None)
    for restart, stay in enumerate(job.stays):
        header = _header_of(
            job, stay, restart, run_id="" if identity is None else identity.run_id,
            price=_fixed_price(directory, job, stay) or stated or _price(job, rate),
        )  # fmt: skip
        _put(directory, header, stay.end)


# A job that several runs shared


def _write_rest(
    job: SacctJob, directories: list[Path], rate: Price | None, findings: list[Finding]
) -> list[Path]:
    """Write what of a job lies in none of its runs into a log of its own; return where it is.

    One segment for each piece of time, with the GPUs that no run had. Runs that say they had more
    than the job are named.
    """
    directory = _beside(job, "-rest")
    used = [piece for each in directories for piece in _used(job, each)]
    pieces = [(n, stay, p) for n, stay in enumerate(job.stays) for p in left_over(stay, used)]
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
    for restart, stay, piece in pieces:
        if piece.gpus > 0:
            _put_rest(job, directory, restart, stay, piece, price)
    return [directory] if segment_paths(directory) else []


def _used(job: SacctJob, directory: Path) -> Iterator[GpuPiece]:
    """Yield the GPUs that a run had in a job, the time between its attempts there included."""
    for stay in job.stays:
        for path in _accounts_of(directory, f"{ACCOUNTS}-{job.job}", stay.start_ns):
            path.unlink(missing_ok=True)  # Added when no other run of the job was known.
    attempts = derive_attempts(read_lives(directory))
    for attempt, following in zip_longest(attempts, attempts[1:]):
        yield from gpu_pieces(attempt)
        if following is not None and machine_after(attempt, following) is MachineAfter.KEPT:
            gpus = total_gpus(attempt, attempt.header.gpus)
            yield GpuPiece(attempt.last_sign_ns, following.start_ns, gpus)


def _put_rest(
    job: SacctJob, directory: Path, restart: int, stay: Stay, piece: GpuPiece, price: Price | None
) -> None:
    identity = RunIdentity(
        run_id=f"sacct-{directory.name}", model=IN_NO_RUN, name=f"{job.name} {IN_NO_RUN}".strip(),
        created_ns=job.stays[0].start_ns,
    )  # fmt: skip
    identity = claim_identity(directory, identity)
    gpus = gpu_count_of(piece.gpus)
    header = replace_fields(
        _header_of(job, stay, restart, run_id=identity.run_id, price=price),
        t_ns=piece.start_ns, model=identity.model, name=identity.name, gpus=gpus,
        node_gpus=gpu_count_of(piece.gpus / stay.node_count),
    )  # fmt: skip
    # It completes: what follows it is a run's time, and not the time until this goes on.
    _put(directory, header, AttemptEnded(t_ns=piece.end_ns, status="completed"))


# A job that did not


def _imported() -> dict[str, list[Path]]:
    """Return the logs of imported jobs, by how their names begin."""
    found: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for entry in sorted((outlay_home() / SACCT).iterdir()):
            found.setdefault(entry.name.rpartition("-")[0], []).append(entry)
    return found


def _directory(job: SacctJob, imported: Mapping[str, Sequence[Path]]) -> Path:
    """Return where the log of an imported job lies: of one that has some of its starts already.

    Slurm gives numbers again, so that a log of the same number may be another job's.
    """
    name = f"{job.cluster or 'slurm'}-{job.shown}".replace("/", "-")
    starts = {stay.start_ns for stay in job.stays}
    for directory in imported.get(name, ()):
        if starts & {s.start_ns for p in segment_paths(directory) if (s := id_from_name(p))}:
            return directory
    return outlay_home() / SACCT / f"{name}-{job.stays[0].start_ns // 10**9}"


def _beside(job: SacctJob, ending: str) -> Path:
    """Return where something else of a job lies, beside the log that it would have."""
    (outlay_home() / SACCT).mkdir(parents=True, exist_ok=True)
    return outlay_home() / SACCT / f"{_directory(job, {}).name}{ending}"


def _write(job: SacctJob, directory: Path, rate: Price | None) -> Path:
    """Make a job's run log, one segment per start; return its directory."""
    created_ns = job.stays[0].start_ns // 10**9 * 10**9
    identity = claim_identity(
        directory,
        RunIdentity(
            run_id=f"sacct-{directory.name}", model=job.name, name=job.name, created_ns=created_ns
        ),
    )
    for restart, stay in enumerate(job.stays):
        price = _fixed_price(directory, job, stay) or _price(job, rate)
        header = _header_of(job, stay, restart, run_id=identity.run_id, price=price)
        _put(directory, header, stay.end)
    return directory


def _header_of(
    job: SacctJob, stay: Stay, restart: int, *, run_id: str, price: Price | None
) -> AttemptStarted:
    nodes = stay.node_count
    return AttemptStarted(
        t_ns=stay.start_ns, run_id=run_id, model=job.name, name=job.name, rank=SUPERVISOR,
        host=stay.nodes, user=job.user, slurm_job=job.shown,
        launch=f"{ACCOUNTS}-{job.job}-{restart}", slurm_account=job.account,
        slurm_partition=job.partition, slurm_restart=str(restart), gpu=stay.gpu, gpus=stay.gpus,
        gpus_source=ACCOUNTS, nodes=nodes, node_gpus=gpu_count_of(Fraction(stay.gpus, nodes)),
        price=price, tags=job.tags,
    )  # fmt: skip


def _put(directory: Path, header: AttemptStarted, end: AttemptEnded) -> None:
    """Write a segment of accounts, in the place of any earlier one."""
    path = ledger_dir(directory) / SegmentId(header.t_ns, SUPERVISOR, header.host).file_name
    write_whole(path, encode_line(header, 0) + encode_line(end, 1))
    for earlier in _accounts_of(directory, header.launch.rpartition("-")[0], header.t_ns):
        if earlier != path:  # It named other nodes.
            earlier.unlink(missing_ok=True)


def _accounts_of(directory: Path, launch: str, start_ns: int) -> list[Path]:
    """Return the segments that accounts added for an instant, by how their launch ids begin."""
    segments = ((path, id_from_name(path)) for path in segment_paths(directory))
    same = [p for p, s in segments if s and (s.start_ns, s.rank) == (start_ns, SUPERVISOR)]
    headers = ((path, header_of(path)) for path in same)
    return [path for path, header in headers if header and header.launch.startswith(f"{launch}-")]


def _fixed_price(directory: Path, job: SacctJob, stay: Stay) -> Price | None:
    """Return the price that a job was imported with before."""
    earlier = map(header_of, _accounts_of(directory, f"{ACCOUNTS}-{job.job}", stay.start_ns))
    return next((header.price for header in earlier if header and header.price), None)


def _price(job: SacctJob, rate: Price | None) -> Price | None:
    """Return what a GPU of the job costs; a job without one is not priced, which is not 0."""
    return rate if job.gpus else None
