"""Google Cloud: project, zone and accelerator of this machine, and channels to its APIs.

Queries only the metadata service, and only for options that the user left out. Of a credentials
file only the project is read; Google's own clients use the rest. With an explicit endpoint, such as
an emulator, no credentials are used.
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
"""Accelerator by a part of the machine type's name; the first match counts."""


@dataclass(frozen=True, slots=True)
class GCPOptions:
    """A job's workload on Google Cloud, and which metrics are uploaded.

    Options that are None come from the machine's metadata service.
    """

    project_id: str | None = None
    location: str | None = None
    replica_id: str = "0"
    acc_type: str | None = None
    cluster_name: str | None = None
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


def completed(options: GCPOptions) -> GCPOptions:
    """Fill in missing options from the environment and the metadata service.

    Raises:
        InvalidValue: Project or location is not known.
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
    """Query the metadata service; None if there is no such service or value.

    Args:
        category: ``instance`` or ``project``.
        attribute: The path below it, such as ``zone``.
        timeout: In seconds.
        retries: How often to retry if the service does not answer or is too busy.
    """
    import httpx2

    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{category}/{attribute}"
    with httpx2.Client(timeout=timeout, trust_env=False) as client:
        for _ in range(retries + 1):
            try:
                answer = client.get(url, headers={"Metadata-Flavor": "Google"})
            except httpx2.ConnectError:
                break  # Not on Google Cloud: a retry would not change that.
            except httpx2.HTTPError:
                continue
            if answer.is_success:
                return answer.text
            if answer.status_code not in (429, 500, 502, 503, 504):
                break
    _log.info("the metadata service has no %s/%s", category, attribute)
    return None


PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
NOTHING_SAYS = "neither the environment nor a metadata service of this machine does"


def project_id() -> str | None:
    """Return the project, found as Google's clients find it.

    From ``GOOGLE_CLOUD_PROJECT``, else from the file ``GOOGLE_APPLICATION_CREDENTIALS``, else from
    the metadata service.
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
    """Return this machine's accelerator, by its machine type; else ``UNKNOWN``."""
    machine = (metadata("instance", "machine-type") or "").rpartition("/")[2].lower()
    fitting = (name for part, name in ACCELERATOR_OF_MACHINE_TYPE.items() if part in machine)
    return next(fitting, "UNKNOWN")


def cluster_name() -> str | None:
    """Return the name of this machine's cluster."""
    return metadata("instance", "attributes/cluster-name")


def plain_channel(variable: str) -> Any:
    """Return a gRPC channel without TLS and credentials to the endpoint in a variable.

    None if it is not set: then Google's client finds its service and credentials.

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
