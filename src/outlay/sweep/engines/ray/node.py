"""The process on a Ray job's node: ``python -m outlay.sweep.engines.ray.node SPEC [SHIPPING]``.

A node that does not see the run's directory, and with it the spec, works in a directory of its own
and ships that as the second argument says. Ray does not dependably end what it started: a second
process therefore waits for this one and ends what it leaves. Every job loads this, so that it
imports little.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from outlay.decoding import BadDocument, decode, read_document
from outlay.errors import OutlayError
from outlay.proc.identity import ending_leftovers
from outlay.sweep.engines.remote.job_run import JobAllocation, JobRun
from outlay.sweep.engines.remote.job_spec import HIDDEN_WORD, JobSpec, times_path

if TYPE_CHECKING:
    from outlay.shipping.apart import OwnDirectory

REFUSAL: Final = "outlay: refused: "
"""How the last line of output begins of a job that started nothing; the reason follows."""


def main() -> None:
    """Run the spec that the first argument names."""
    try:
        spec, own = _find_spec(Path(sys.argv[1]), sys.argv[2:])
    except (OutlayError, OSError) as error:
        sys.exit(f"{REFUSAL}{error}")
    here = JobAllocation(
        job=spec.title, number=crc32(spec.title.encode()), node=gethostname(),
        apart="" if own is None else str(own.path),
    )  # fmt: skip
    with ending_leftovers(f"{spec.ticket}/"):
        code = JobRun(spec, here).run()
    if own is not None:
        own.shipping.finish()
    sys.exit(code)


def _find_spec(path: Path, shipping: list[str]) -> tuple[JobSpec, OwnDirectory | None]:
    """Return the spec: from the run's directory if this node shares it, else from storage.

    The name of the file is in no other directory. It is its user's alone: another user of the same
    directory does not share it.
    """
    with suppress(OSError, BadDocument):  # It does not share the directory.
        os.listdir(path.parent)  # NFS may remember that there was no such file.  # noqa: PTH208
        if os.access(path.parent, os.W_OK):
            return read_document(path, JobSpec), None
    from outlay.shipping.apart import NoSharedDirectory, OwnDirectory

    if not shipping:
        raise NoSharedDirectory(gethostname(), path.parent)
    own = OwnDirectory.open(shipping[0], [path.name, path.with_suffix(".mark").name])
    return _localised(decode(own.read(path.name, str(path.parent)), JobSpec), own.path), own


def _localised(spec: JobSpec, own: Path) -> JobSpec:
    """Return a spec that came through storage, if it can be run on this node."""
    from outlay.shipping.apart import DirectoryElsewhere, SecretNotOnNode

    if missing := {name for name in spec.sealed if name not in os.environ}:
        words = {name for name in missing if name.startswith(HIDDEN_WORD)}
        raise SecretNotOnNode(
            gethostname(), missing - words | ({"a word of its command"} if words else set())
        )
    if spec.again and not times_path(own, spec.ticket).exists():
        raise DirectoryElsewhere(gethostname(), spec.name)
    env = {n: value for n, value in spec.env.items() if n != "OUTLAY_SHIP_TO"}  # It is shipped.
    return replace(spec, env=env, cwd=spec.cwd if Path(spec.cwd).is_dir() else "")


if __name__ == "__main__":
    main()
