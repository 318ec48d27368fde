"""The process of one uploader: ``python -m outlay.export.worker``, started by a monitor.

Its first line of input says what to do. Then a line says how to end: ``stop`` after a last upload,
``quit`` without one. The input also ends when the process that monitors dies, however it dies: that
is a ``stop``. The tally stands at the beginning of the output, which is a file.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import msgspec

from outlay.decoding import decode
from outlay.export.uploads import Tally, Upload, Uploads, lost_text

_log = logging.getLogger("outlay")
NICENESS = 10
TALLY_BYTES = 512


class UploadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and how long the end may take."""

    upload: Upload
    finish_s: float


def padded(tally: Tally) -> bytes:
    """Return a tally as it stands in the output: always as long, so that it can be replaced."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in tally.trouble[:200])
    text = msgspec.json.encode(msgspec.structs.replace(tally, trouble=plain)).ljust(TALLY_BYTES)
    assert len(text) == TALLY_BYTES, "200 characters, each of them escaped, leave room for numbers"
    return text


def main() -> None:
    """Do what the input says, until it says otherwise or ends."""
    order = decode(sys.stdin.buffer.readline(), UploadOrder)
    logging.basicConfig(format="outlay monitor: %(message)s", level=logging.WARNING)
    os.nice(NICENESS)
    stop = threading.Event()
    words: list[bytes] = []

    def listen() -> None:
        words.append(sys.stdin.buffer.readline())
        stop.set()

    parent = os.getppid()
    threading.Thread(target=listen, daemon=True).start()
    uploads = Uploads(order.upload, report=lambda tally: _tell(padded(tally)))
    # The input may stay open in a process that the training forked; its own death always shows.
    uploads.run(stop, go_on=lambda: os.getppid() == parent)
    uploads.finish(order.finish_s, final=words != [b"quit\n"])
    if uploads.tally.lost and words not in ([b"quit\n"], [b"stop\n"]):  # Nobody waits to say it.
        _log.warning("%s", lost_text(order.upload.job_name, uploads.tally))
    sys.stderr.flush()
    os._exit(0)  # A sink that hangs must not keep the process.


def _tell(text: bytes) -> None:
    os.pwrite(sys.stdout.fileno(), text, 0)


if __name__ == "__main__":
    main()
