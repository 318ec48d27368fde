"""Ray's Jobs REST API, over HTTP alone: the submitting machine needs no Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec

from outlay.decoding import BadDocument, Decoder
from outlay.sweep.engines.base import How
from outlay.sweep.engines.named_jobs import JobRefused, NoAnswer
from outlay.sweep.engines.ray.node import REFUSAL
from outlay.sweep.engines.remote.poller import RemoteStatus

_TIMEOUT_S: Final = 20.0
_EXISTS: Final = "already exists"


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a job's details."""

    status: str
    message: str | None = None
    error_type: str | None = None
    driver_node_id: str | None = None


_decoder = Decoder[JobInfo](JobInfo)


class JobsApi:
    """The jobs of one cluster."""

    def __init__(self, address: str, environ: Mapping[str, str] = os.environ) -> None:
        self.address = address
        token = _token(environ)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.Client(
            base_url=address, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job; one that exists already under its name is that job.

        Raises:
            NoAnswer: It is unknown whether the job exists; ``find`` tells.
            JobRefused: It does not.
        """
        answer = self._ask("POST", "/api/jobs/", json=dict(request))
        if answer.is_success or _EXISTS in answer.text:
            return
        if answer.status_code >= 500:
            raise NoAnswer(_said(answer))
        raise JobRefused(_said(answer))

    def find(self, submission: str) -> JobInfo | None:
        """Return a job; None if the cluster has none of this name.

        Raises:
            NoAnswer: The cluster does not say.
        """
        answer = self._ask("GET", f"/api/jobs/{quote(submission, safe='')}")
        if answer.status_code == 404:
            return None
        if not answer.is_success:
            raise NoAnswer(_said(answer))
        try:
            return _decoder.decode(answer.content)
        except BadDocument as error:
            raise NoAnswer(str(error)) from None

    def stop(self, submission: str) -> bool:
        """Ask for a job's end; False if the cluster did not accept that."""
        try:
            return self._ask("POST", f"/api/jobs/{quote(submission, safe='')}/stop").is_success
        except NoAnswer:
            return False

    def has_node(self, node: str) -> bool:
        """Return whether a node of the cluster is alive, by Ray's id.

        Raises:
            NoAnswer: The cluster does not say.
        """
        wanted = [("filter_keys", "node_id"), ("filter_predicates", "="), ("filter_values", node)]
        answer = self._ask("GET", "/api/v0/nodes", params=wanted)
        if not answer.is_success:
            raise NoAnswer(_said(answer))
        return '"ALIVE"' in answer.text

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        try:
            return self._client.request(method, path, **more)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoAnswer(f"{self.address} does not answer: {error}") from None


def _said(answer: httpx2.Response) -> str:
    lines = answer.text.strip().splitlines() or [""]
    return f"Ray answered {answer.status_code}: {lines[-1][:300]}"


def _token(environ: Mapping[str, str]) -> str:
    """Return Ray's token, where the environment states it as for Ray itself."""
    if stated := environ.get("RAY_AUTH_TOKEN", ""):
        return stated.strip()
    path = environ.get("RAY_AUTH_TOKEN_PATH", "")
    return Path(path).read_text().strip() if path else ""


# A job's status.

_BY_ERROR: Final[dict[str, tuple[How, str]]] = {
    "JOB_SUPERVISOR_ACTOR_DIED": ("preempted", "Ray's supervisor of it died, or its node"),
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": ("not_started", "Ray could not start its supervisor"),
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": ("not_started", "Ray found no room for it in time"),
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": ("not_started", "no node of the cluster fits it"),
    "RUNTIME_ENV_SETUP_FAILURE": ("not_started", "its runtime_env could not be made"),
}


def remote_status(submission: str, info: JobInfo, *, is_marked: bool = False) -> RemoteStatus:
    """Return Ray's status of a job in terms that all schedulers share.

    One that was marked as cancelled before is over if it waits: Ray starts it, and it runs nothing.
    """
    never_starts = is_marked and info.status == "PENDING"
    is_stopped = never_starts or info.status == "STOPPED"
    known = _BY_ERROR.get(info.error_type or "")
    how, reason = known or ("lost", f"Ray reports {info.status}, and it recorded no end")
    if REFUSAL in (info.message or ""):
        how, reason = "not_started", str(info.message).rpartition(REFUSAL)[2].splitlines()[0]
    elif is_stopped:
        how, reason = "exited", "cancelled before it started" if never_starts else "stopped in Ray"
    elif how == "not_started" and info.message:
        reason = f"{reason}: {info.message.strip().splitlines()[-1][:300]}"
    return RemoteStatus(
        job=submission, text=info.status.lower(), how=how, reason=reason, cancelled=is_stopped,
        is_over=is_stopped or info.status in ("SUCCEEDED", "FAILED"),
        queued=info.status == "PENDING" and not is_marked,
        explains=known is not None or info.status == "STOPPED",
    )  # fmt: skip
