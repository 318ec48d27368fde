"""Jobs on nodes that do not see the run's directory: what storage carries in both directions.

The submitting side writes a few small objects (the job's spec, and marks), which a process on the
node fetches. The node works in a directory of its own and ships its files, which the submitting
side fetches into the run's directory. Knows neither specs nor schedulers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import decode
from outlay.errors import OutlayError
from outlay.files import make_private
from outlay.shipping.shipper import LINGER_S, ShippingProcess, ShippingTask
from outlay.shipping.storage import described, open_storage, without_login
from outlay.store.home import outlay_home

ALSO: Final = ["*.csv"]
"""The artefacts that a sweep's report reads; a run that records has them in its log."""
LATE_NS: Final = round((LINGER_S + 15) * 1e9)
"""How long after its job the last files of a run may come."""


class NoSharedDirectory(OutlayError):
    """A node does not see the run's directory, and nothing says where else to."""

    def __init__(self, node: str, directory: Path) -> None:
        super().__init__(
            f"its node {node} does not see {directory}, or may not write it. Put the sweep's "
            "directory on a file system that the nodes share, or state storage that they reach in "
            "the grid: `ship: s3://bucket/runs`"
        )


class SecretNotOnNode(OutlayError):
    """A job needs a secret, which does not travel through storage."""

    def __init__(self, node: str, names: Collection[str]) -> None:
        super().__init__(
            f"{', '.join(sorted(names))} is secret, and does not travel to a node that shares no "
            f"directory: set it in the environment of node {node}, and name it in the command as "
            "a variable there"
        )


class StorageNotCommon(OutlayError):
    """A node cannot read what the submitting side wrote to storage."""

    def __init__(self, to: str, trouble: str) -> None:
        super().__init__(
            f"its node cannot read its job from {without_login(to)} ({trouble}): `ship` must be "
            "storage that this machine and the nodes reach, with credentials to read and to write"
        )


class DirectoryElsewhere(OutlayError):
    """A run has begun elsewhere, and its directory is not on this node."""

    def __init__(self, node: str, run: str) -> None:
        super().__init__(
            f"{run} has begun on another node, or node {node} has lost its directory: it would "
            "begin anew, with its whole budget. Start it in a new sweep"
        )


class StorageNotWritten(OutlayError):
    """An object cannot be written."""

    def __init__(self, to: str, error: Exception) -> None:
        super().__init__(f"{without_login(to)} cannot be written: {described(error)}")


class DirectoryGone(OutlayError):
    """The node that has a run's directory is gone, or unknown."""

    def __init__(self, node: str, run: str) -> None:
        super().__init__(
            f"the directory of {run} is on a node that is gone ({node or 'unknown'}): it is not "
            "started on another one, where it would begin anew, with its whole budget. Start it "
            "in a new sweep"
        )


def send(task: ShippingTask, file: str, content: bytes) -> None:
    """Write an object for the node of a run.

    Raises:
        StorageNotWritten: It is not certain that it is there.
    """
    try:
        open_storage(task.to).put(f"{task.name}/{file}", content)
    except Exception as error:  # noqa: BLE001 - any error of a storage's library
        raise StorageNotWritten(task.to, error) from None


# On the node


@dataclass(frozen=True, slots=True)
class OwnDirectory:
    """A directory of this node's own for a run, and the process that ships it."""

    path: Path
    shipping: ShippingProcess

    @classmethod
    def open(cls, stated: str, inbox: list[str]) -> OwnDirectory:
        """Make or find the directory of a ``ShippingTask``, fetch the inbox, and begin to ship.

        Raises:
            StorageNotCommon: The inbox cannot be fetched.
            OSError: The directory cannot be made.
        """
        task = decode(stated, ShippingTask)
        path = outlay_home() / "jobs" / task.name
        make_private(path)
        task = msgspec.structs.replace(task, inbox=inbox, also=ALSO)
        shipping = ShippingProcess(task, path)
        if trouble := shipping.wait_for_inbox():
            raise StorageNotCommon(task.to, trouble)
        return cls(path, shipping)

    def read(self, file: str, home: str) -> bytes:
        """Return a fetched file, with this directory for that of the submitting side."""
        text = (self.path / file).read_text()
        here = msgspec.json.encode(str(self.path)).decode()[1:-1]
        there = msgspec.json.encode(home).decode()[1:-1]
        # Not of `/runs/1` in `/runs/10`.
        found = re.compile(re.escape(there) + r"(?![A-Za-z0-9_.=+@-])")
        return found.sub(lambda _: here, text).encode()
