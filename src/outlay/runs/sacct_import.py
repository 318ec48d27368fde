"""Jobs that never used outlay, as runs: a log each, made of what the cluster's accounts say.

From there on they are runs like any other: registered, priced, allocated. What a job cost is fixed
when it first has a price, whatever its partition costs later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from outlay.decoding import MEBIBYTE, BadDocument, convert, decode, open_regular
from outlay.errors import Finding
from outlay.files import write_whole
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    Price,
    RunIdentity,
    SegmentId,
    claim_identity,
    encode_line,
    ledger_dir,
    segment_paths,
)
from outlay.runs.collect import collect
from outlay.runs.figures import RunFigures
from outlay.runs.sacct import SacctJob
from outlay.store import outlay_home
from outlay.store.runs import list_runs

DIRECTORY: Final = "sacct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the jobs of a file.

    Attributes:
        jobs: Those that are runs now.
        figures: What is known of each.
        recorded: How many were left out because they kept a log of their own.
        unpriced: Partitions of jobs with GPUs and without a rate.
    """

    jobs: tuple[SacctJob, ...]
    figures: list[RunFigures]
    recorded: int
    unpriced: tuple[str, ...]
    findings: list[Finding]


def import_jobs(
    store: Engine, jobs: Iterable[SacctJob], rates: Mapping[str, Price], now_ns: int
) -> Imported:
    """Register jobs as runs; the same jobs any number of times leave the same books."""
    known = set(_recorded_jobs(store))
    every = list(jobs)
    ours = tuple(job for job in every if job.job not in known)
    directories = [_write(job, rates.get(job.partition)) for job in ours]
    collected = collect(store, directories, now_ns)
    unpriced = {job.partition for job in ours if job.gpus and job.partition not in rates}
    return Imported(
        jobs=ours, figures=collected.figures, recorded=len(every) - len(ours),
        unpriced=tuple(sorted(unpriced)), findings=collected.findings,
    )  # fmt: skip


def _recorded_jobs(store: Engine) -> Iterator[str]:
    """Yield the jobs of runs that recorded themselves."""
    home = outlay_home() / DIRECTORY
    for run in list_runs(store):
        if home in Path(run.dir).parents:
            continue
        for path in segment_paths(Path(run.dir)):
            if job := _header(path).get("slurm_job"):
                yield str(job)


def _header(path: Path) -> dict[str, object]:
    """Return the first record of a segment, without a look at the rest."""
    with contextlib.suppress(OSError, BadDocument), os.fdopen(open_regular(path), "rb") as stream:
        return decode(stream.readline(MEBIBYTE), dict[str, object])
    return {}


def _write(job: SacctJob, rate: Price | None) -> Path:
    """Make a job's run log, one segment per start; return its directory."""
    first_s = job.stays[0].start_ns // 10**9
    name = f"{job.cluster or 'slurm'}-{job.shown}-{first_s}".replace("/", "-")
    directory = outlay_home() / DIRECTORY / name
    identity = claim_identity(
        directory,
        RunIdentity(
            run_id=f"sacct-{name}", model=job.name, name=job.name, created_ns=first_s * 10**9
        ),
    )
    for restart, stay in enumerate(job.stays):
        segment = SegmentId(stay.start_ns, SUPERVISOR, job.nodes)
        path = ledger_dir(directory) / segment.file_name
        header = AttemptStarted(
            t_ns=stay.start_ns, run_id=identity.run_id, model=job.name, name=job.name,
            rank=SUPERVISOR, host=job.nodes, user=job.user, slurm_job=job.job,
            launch=f"slurm-{job.job}-{restart}", slurm_account=job.account,
            slurm_partition=job.partition, gpu=job.gpu, gpus=job.gpus,
            price=_fixed_price(path) or _price(job, rate), tags=_tags(job),
        )  # fmt: skip
        end = AttemptEnded(t_ns=stay.end_ns, status=stay.status, reason=stay.state)
        write_whole(path, encode_line(header, 0) + encode_line(end, 1))
    return directory


def _fixed_price(path: Path) -> Price | None:
    """Return the price that a job was imported with before."""
    stated = _header(path).get("price")
    with contextlib.suppress(BadDocument):
        return None if stated is None else convert(stated, Price)
    return None


def _price(job: SacctJob, rate: Price | None) -> Price | None:
    """Return what a GPU of the job costs; a job without one is not priced, which is not 0."""
    return rate if job.gpus else None


def _tags(job: SacctJob) -> dict[str, str]:
    tags = {"account": job.account, "partition": job.partition, "cluster": job.cluster}
    return {name: value for name, value in tags.items() if value} | {"source": "sacct"}
