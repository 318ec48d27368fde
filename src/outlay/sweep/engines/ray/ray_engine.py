"""The Ray engine: jobs by their submission id, through Ray's Jobs API.

Many pending jobs bring a head down, so that at most one of a sweep waits. Ray has no time limit of
its own: a job enforces its own, and obeys its marks.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import ClassVar, Final

from outlay.clock import SYSTEM, Clock
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.named_jobs import (
    JobFiles,
    NamedJob,
    NamedJobsEngine,
    portable_spec,
    read_jobs,
)
from outlay.sweep.engines.ray.jobs_api import JobsApi, remote_status
from outlay.sweep.engines.ray.ray_options import ray_options
from outlay.sweep.engines.remote.poller import RemoteStatus

_ON_NODE: Final = "outlay.sweep.engines.ray.node"


def jobs_in(root: Path) -> dict[str, str]:
    """Return the submission ids of a sweep's attempts, by ticket."""
    return {ticket: job.submission for ticket, job in read_jobs(root, RayEngine.name).items()}


class RayEngine(NamedJobsEngine):
    """Submits runs as jobs, which outlive this process."""

    name: ClassVar[str] = "ray"
    title: ClassVar[str] = "Ray"

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        super().__init__(root, clock)
        self._apis: dict[str, JobsApi] = {}

    def _api(self, job: NamedJob) -> JobsApi:
        if job.address not in self._apis:
            self._apis[job.address] = JobsApi(job.address)
        return self._apis[job.address]

    def _address(self, task: Task) -> str:
        return ray_options(task.options).address

    def _deliver(self, task: Task, job: NamedJob, files: JobFiles, node: str) -> None:
        options = ray_options(task.options)
        spec, secret = portable_spec(
            task, notice_ns=options.notice.ns, title=job.submission,
            brings_files="working_dir" in options.runtime_env,
        )  # fmt: skip
        words = ["exec", "python", "-m", _ON_NODE, *files.deliver(spec, secret)]
        self._api(job).submit(options.request(job.submission, shlex.join(words), node))

    def _find(self, job: NamedJob, *, is_marked: bool) -> tuple[RemoteStatus, str] | None:
        info = self._api(job).find(job.submission)
        if info is None:
            return None
        status = remote_status(job.submission, info, is_marked=is_marked)
        return status, info.driver_node_id or ""

    def _stop(self, job: NamedJob) -> None:
        self._api(job).stop(job.submission)

    def _has_node(self, job: NamedJob) -> bool:
        return self._api(job).has_node(job.node)

    def close(self) -> None:
        """Close the connections; jobs continue."""
        for api in self._apis.values():
            api.close()
        self._apis.clear()
