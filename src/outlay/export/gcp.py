"""Google Cloud: who and where this machine is, and how its APIs are reached.

Only the metadata service is asked here, and only for what the user left out. Of credentials no more
is read than which project they belong to: they are the business of Google's own clients. Where an
endpoint is named, such as an emulator's, none are used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue, MissingExtra

_log = logging.getLogger("outlay")

ACCELERATOR_OF_MACHINE_TYPE = {
    "tpu7x": "TPU-7x",
    "ct6e": "TPU-v6e",
    "ct5p": "TPU-v5p",
    "ct5lp": "TPU-v5e",
    "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p",
    "ct3p": "TPU-v3",
    "ct3": "TPU-v3",
    "tpu-v2": "TPU-v2",
    "tpu": "TPU",
    "a3-edgegpu": "NVIDIA-H100",
    "a3-highgpu": "NVIDIA-H100",
    "a3-megagpu": "NVIDIA-H100",
    "a3-ultragpu": "NVIDIA-H200",
    "a2": "NVIDIA-A100",
    "gpu": "GPU",
}
"""Part of a machine type's name, and what accelerator such machines have; the first that fits."""


@dataclass(frozen=True, slots=True)
class GCPOptions:
    """Which workload a job is on Google Cloud, and what of it is uploaded.

    What is None comes from the machine's metadata service.
    """

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


def completed(options: GCPOptions) -> GCPOptions:
    """Return the options with what is missing taken from the environment and metadata service.

    Raises:
        InvalidValue: Neither says which project, or where, the workload is.
    """

    def needed(name: str, given: str | None, ask: Callable[[], str | None]) -> str:
        value = given or ask()
        if not value:
            expected = f"GCPOptions to name it: {NOTHING_SAYS}"
            raise InvalidValue(name, given, expected)
        return value

    return replace(
        options,
        project_id=needed("project_id", options.project_id, project_id),
        location=needed("location", options.location, zone),
        acc_type=options.acc_type or accelerator_type(),
        cluster_name=options.cluster_name or cluster_name(),
    )


def metadata(
    category: str, attribute: str, timeout: float | None = 5, retries: int = 3
) -> str | None:
    """Return what the metadata service says; None where there is no such service or value.

    Args:
        category: ``instance`` or ``project``.
        attribute: The path below it, such as ``zone``.
        timeout: How many seconds an answer may take.
        retries: How often the service is asked again that did not answer, or was too busy.
    """
    import httpx2

    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{category}/{attribute}"
    with httpx2.Client(timeout=timeout, trust_env=False) as client:
        for _ in range(retries + 1):
            try:
                answer = client.get(url, headers={"Metadata-Flavor": "Google"})
            except httpx2.ConnectError:
                break  # Not on Google Cloud: asking again would not change that.
            except httpx2.HTTPError:
                continue
            if answer.is_success:
                return answer.text
            if answer.status_code not in (429, 500, 502, 503, 504):
                break
    _log.info("the metadata service says nothing about %s/%s", category, attribute)
    return None


PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
NOTHING_SAYS = "neither the environment nor a metadata service of this machine does"


def project_id() -> str | None:
    """Return the project, from where Google's clients take it.

    From ``GOOGLE_CLOUD_PROJECT``, else from the credentials that ``GOOGLE_APPLICATION_CREDENTIALS``
    names, else from the metadata service of this machine.
    """
    named = next(filter(None, map(os.environ.get, PROJECT_VARIABLES)), None)
    return named or _project_of_credentials() or metadata("project", "project-id")


def _project_of_credentials() -> str | None:
    path = os.environ.get(CREDENTIALS_VARIABLE)
    if not path:
        return None
    try:
        project = read_document(Path(path), dict[str, Any]).get("project_id")
    except (OSError, BadDocument) as error:
        _log.warning("the file that %s names cannot be read: %s", CREDENTIALS_VARIABLE, error)
        return None
    return project if isinstance(project, str) else None


def zone() -> str | None:
    """Return this machine's zone, such as ``us-central1-a``."""
    path = metadata("instance", "zone")
    return path.rpartition("/")[2] if path else None


def accelerator_type() -> str:
    """Return what accelerator this machine has, by its machine type; ``UNKNOWN`` where none."""
    machine = (metadata("instance", "machine-type") or "").rpartition("/")[2].lower()
    fitting = (name for part, name in ACCELERATOR_OF_MACHINE_TYPE.items() if part in machine)
    return next(fitting, "UNKNOWN")


def cluster_name() -> str | None:
    """Return the name of the cluster that this machine belongs to."""
    return metadata("instance", "attributes/cluster-name")


def plain_channel(variable: str) -> Any:
    """Return a gRPC channel without TLS and credentials to the endpoint that a variable names.

    None, when it is not set: then Google's client finds its service and its credentials.

    Raises:
        MissingExtra: Google's clients are not installed.
    """
    endpoint = os.environ.get(variable)
    if not endpoint:
        return None
    try:
        import grpc
    except ImportError:
        raise MissingExtra("reaching Google Cloud", "gcp") from None
    return grpc.insecure_channel(endpoint)
