"""Options of the Ray engine: read from a grid's ``ray`` block, passed to Ray's Jobs API. Pure.

The API: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final
from urllib.parse import urlsplit

from outlay.errors import InvalidValue
from outlay.sweep.engines.base import EngineOptions
from outlay.sweep.grid import parsing as readers
from outlay.sweep.grid.parsing import Block
from outlay.units import Duration

NOTICE: Final = Duration(30 * 10**9)
STOP_MARGIN_S: Final = 20
"""How much later than the job's own kill Ray kills it: the job records its end in between."""
STOP_WAIT: Final = "RAY_JOB_STOP_WAIT_TIME_S"
NODE_ID: Final = "ray.io/node-id"
"""The label that Ray gives every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """How runs are submitted.

    Attributes:
        address: Of the cluster's dashboard.
        num_cpus: Of one node, like the others. Without any, Ray would run it on the head.
        label_selector: The labels of the node; also the name of its rate.
        runtime_env: Ray's, for packages, files and variables; no secrets, as others can read it.
        notice: How long a run that is stopped has to save its work.
    """

    address: str = ""
    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    notice: Duration = NOTICE

    @property
    def identity(self) -> list[object]:
        """Where a run executes; the time to save is not part of its configuration."""
        labels, env = dict(self.label_selector), dict(self.runtime_env)
        return [self.num_cpus, self.num_gpus, dict(self.resources), labels, env]

    @property
    def gpus_on_node(self) -> int | None:
        """GPUs on its node, a part of one counted whole; None without any."""
        return ceil(self.num_gpus) or None

    @property
    def stop_ns(self) -> int:
        """How long the harness waits for the end of a run that it stopped."""
        return self.notice.ns

    @property
    def partition(self) -> str:
        """The labels of its node, by which the rate is looked up, such as ``type=a100``."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.label_selector.items()))

    def request(self, submission: str, entrypoint: str, node: str = "") -> dict[str, Any]:
        """Return the body of a submission; ``node`` is Ray's id of the only node it may run on."""
        runtime_env = dict(self.runtime_env)
        # Ray's own default is three seconds, and then SIGKILL in the middle of a save.
        stop_s = ceil(self.notice.ns / 1e9) + STOP_MARGIN_S
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), STOP_WAIT: str(stop_s)}
        asked = {
            "num_cpus": self.num_cpus, "num_gpus": self.num_gpus,
            "resources": dict(self.resources),
            "label_selector": dict(self.label_selector) | ({NODE_ID: node} if node else {}),
        }  # fmt: skip
        return {
            "submission_id": submission,
            "entrypoint": entrypoint,
            "runtime_env": runtime_env,
            "metadata": {"submitted_by": "outlay"},
        } | {f"entrypoint_{name}": value for name, value in asked.items() if value}


def ray_options(options: object) -> RayOptions:
    """Return a task's options; the defaults for a task that is only reattached to."""
    return options if isinstance(options, RayOptions) else RayOptions()


def read_options(block: Block, stated: EngineOptions | None) -> RayOptions:
    """Return a ``ray`` block on top of the shared options."""
    return RayOptions(**block.read_all(KEYS, ray_options(stated)))


def _address(value: object) -> str:
    given = readers.text(value)
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise InvalidValue("address", value, "the dashboard's, such as http://head:8265")
    return given.rstrip("/")


def _amounts(value: object) -> dict[str, float]:
    return {name: readers.amount(each) for name, each in readers.mapping(value).items()}


def _labels(value: object) -> dict[str, str]:
    return {name: readers.word(each) for name, each in readers.mapping(value).items()}


KEYS: Final[readers.Parsers] = {
    "address": _address, "num_cpus": readers.amount, "num_gpus": readers.amount,
    "resources": _amounts, "label_selector": _labels, "runtime_env": readers.mapping,
    "notice": readers.timeout,
}  # fmt: skip
