"""Handing a batch of jobs to Slurm through submitit, and telling why it would not take them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from outlay.errors import MissingExtra, OutlayError
from outlay.sweep.engines.slurm.spec import list_specs

_LATER = re.compile(
    r"unable to contact|temporarily|timed out|connection refused|connect failure|try again"
    r"|job submit limit|MaxSubmit|limit on number of jobs|maximum job count|socket",
    re.IGNORECASE,
)
"""What Slurm says when the same request may go through later: see ``slurm_strerror``."""
_KEPT: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_SPECS: Final = "specs.json"
_ON_NODE: Final = "outlay.sweep.engines.slurm.job"


class NoSlurm(OutlayError):
    """Slurm's commands are not here."""

    def __init__(self) -> None:
        super().__init__(
            "engine: slurm needs Slurm's commands (sbatch, squeue, scancel) on the PATH; "
            "start the sweep on a login node of the cluster"
        )


class NotTaken(Exception):
    """Slurm did not take a batch; ``later`` when it may, if it is asked again."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.later = _LATER.search(said) is not None


def check_available() -> None:
    """Refuse where nothing could be submitted.

    Raises:
        MissingExtra: submitit is not installed.
        NoSlurm: There is no ``sbatch``.
    """
    if importlib.util.find_spec("submitit") is None:
        raise MissingExtra("engine: slurm", "slurm")
    if shutil.which("sbatch") is None:
        raise NoSlurm


def submit_jobs(
    folder: Path, specs: Sequence[Path], parameters: Mapping[str, Any], secret: Mapping[str, str]
) -> str:
    """Submit jobs, as an array where they are several; return Slurm's number of the whole.

    Args:
        folder: Where the list of specs goes, and what submitit needs.
        specs: What each job is told.
        parameters: Of ``sbatch``, in submitit's names.
        secret: Variables that are handed over by environment alone.

    Raises:
        NotTaken: Slurm refused.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    listed = folder / _SPECS
    list_specs(listed, specs)
    # submitit lets us say what Python is on a node. We say that it is our own module: submitit's
    # would load NumPy and wait for a pickle, which takes longer than many a program.
    on_node = shlex.join([sys.executable, "-m", _ON_NODE, str(listed)])
    executor = submitit.SlurmExecutor(folder=folder, python=on_node)
    executor.update_parameters(**parameters)
    # submitit prints what sbatch says against it; we say it once, with the run it is about.
    with _environment(secret), contextlib.redirect_stderr(io.StringIO()):
        try:
            with executor.batch():
                jobs = [executor.submit(int) for _ in specs]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise NotTaken(str(error).strip() or type(error).__name__) from error
    number: str = jobs[0].job_id
    return number.partition("_")[0]


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Give ``sbatch`` our environment, with secrets and without the job that we may be part of."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("SLURM_") and name not in _KEPT:
            del os.environ[name]
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
