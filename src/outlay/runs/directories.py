"""The default directory of a run: of the ranks and restarts of one launch, and of nobody else.

Inside a Slurm job it is named after the job, so that a requeued job resumes its run and the rest of
its budget. Elsewhere it is named after the launch of several ranks, or the time. The first process
claims it for one start of one launch, by a file in its ledger; a launch that finds it claimed tries
the next number.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

from outlay.clock import utc_datetime
from outlay.errors import InvalidValue
from outlay.files import make_private, read_own
from outlay.ledger import ledger_dir, read_identity
from outlay.record import facts
from outlay.slurm import SlurmJob

PARENT: Final = "outlay-runs"
_LONGEST_SLUG: Final = 100
"""Of the run's name: file systems allow 255 bytes, and a launch id follows it."""
_NOT_IN_NAMES: Final = r"[^A-Za-z0-9._-]+"
_CLUSTER_JOBS: Final = {"skypilot": "SKYPILOT_TASK_ID", "ray": "RAY_JOB_ID"}
"""What the ranks of a job share where no launcher says it; SkyPilot's outlasts a recovery."""
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultDirectory:
    """The directory of a run if none is stated.

    Attributes:
        base: The first candidate.
        start: Which start of the job this is: 0, or Slurm's restart count.
        launch: An id that the processes of this launch share, unique among launches of that start;
            "" for a single process, which shares its directory with no other.
    """

    base: Path
    start: int = 0
    launch: str = ""

    @classmethod
    def of(cls, name: str, environ: Mapping[str, str], now_ns: int) -> DefaultDirectory:
        """Return the directory of a run of this name.

        Raises:
            InvalidValue: There are several ranks, and no launch id that they share.
        """
        slug = re.sub(_NOT_IN_NAMES, "-", name)[:_LONGEST_SLUG].strip("-.") or "run"
        job, launch = SlurmJob.of(environ), _launch(environ)
        if job is not None:
            base = f"{slug}-slurm-{job.id}"
            return cls(base=Path(PARENT) / base, start=job.restart, launch=launch)
        if facts.world_size(environ) == 1:
            return cls(base=Path(PARENT) / f"{slug}-{utc_datetime(now_ns):%Y%m%d-%H%M%S}")
        if not launch:
            expected = "a directory that all ranks share (dir=... or OUTLAY_RUN_DIR)"
            raise InvalidValue("dir", None, expected)
        return cls(base=Path(PARENT) / f"{slug}-{launch}", launch=launch)

    def claim(self, model: str, run_id: str) -> Iterator[Path]:
        """Yield directories that this launch may use, each claimed before it is yielded.

        One that cannot be written is yielded all the same: the segment writer gets the same error,
        logs it, and retries. A directory of another model is skipped. A single process claims for
        its ``run_id``.
        """
        base = self.base.absolute()
        for number in islice(count(1), _MOST):
            path = base if number == 1 else base.with_name(f"{base.name}-{number}")
            identity = read_identity(path)
            known = "" if identity is None else identity.model
            if "" not in (known, model) and known != model:
                continue
            if self._claims(path, self.launch or run_id):
                yield path
        yield base.with_name(f"{base.name}-{run_id}")

    def withdraw(self, path: Path) -> None:
        """Remove the claim of a single process whose run did not begin."""
        if self.launch:
            return
        with contextlib.suppress(OSError):
            self._claim_file(path).unlink()
            ledger_dir(path).rmdir()
            path.rmdir()

    def _claim_file(self, path: Path) -> Path:
        return ledger_dir(path) / f"start-{self.start}.claim"

    def _claims(self, path: Path, launch: str) -> bool:
        """Try to claim a directory; return whether this launch has it. A file in the way fails."""
        claim = self._claim_file(path)
        draft = claim.with_name(f".claim-{os.getpid()}-{launch[:40].replace('/', '-')}")
        try:
            make_private(claim.parent)
            draft.write_text(launch, errors="replace")
            try:
                os.link(draft, claim)  # Atomic: nobody reads half a claim.
            finally:
                draft.unlink(missing_ok=True)
        except FileExistsError:
            return _text(claim) == launch
        except NotADirectoryError:
            return False
        except OSError:  # No hard links, or the directory cannot be written.
            return _claims_without_links(claim, launch)
        return True


def _launch(environ: Mapping[str, str]) -> str:
    """Return the id that the ranks of a launch share over in-place restarts; "" for one alone."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    job = SlurmJob.of(environ)
    if elastic and (elastic != "none" or job is not None):
        step = job.step if job is not None else ""
        return f"torchelastic-{elastic}" + (f"-step-{step}" if step else "")
    if job is not None and job.step and facts.world_size(environ) > 1:
        return f"step-{job.step}"
    if job is not None and environ.get("WORLD_SIZE", "1") != "1":
        return "ranks"
    if facts.world_size(environ) == 1:
        return ""
    known = ((kind, environ.get(name, "")) for kind, name in _CLUSTER_JOBS.items())
    found = (f"{kind}-{re.sub(_NOT_IN_NAMES, '-', job)}" for kind, job in known if job)
    return next(found, "")


def _claims_without_links(claim: Path, launch: str) -> bool:
    try:
        with claim.open("x", errors="replace") as stream:
            stream.write(launch)
    except FileExistsError:
        return _text(claim) == launch
    except OSError:
        return True
    return True


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_own(path).decode(errors="replace")
    return ""
