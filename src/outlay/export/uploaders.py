"""How an uploader runs beside training: in a process of its own, or in a thread.

A process costs the training next to nothing, whatever the length of the run, and takes its sinks'
libraries and troubles elsewhere. A thread is for a log that only this process can read, and for a
sink that only it can write to.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Protocol

import msgspec

from outlay.decoding import BadDocument, decode
from outlay.export.sinks import LentSink
from outlay.export.uploads import Tally, Upload, Uploads
from outlay.export.worker import TALLY_BYTES, Order
from outlay.goodput.logs import GoodputLogger

MARGIN_S = 0.5  # What a process may take to end beyond the time that it is given.


class Uploader(Protocol):
    """Uploads until it is stopped."""

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""

    def let_go(self) -> None:
        """Do not wait: let it end by itself."""


class ProcessUploader:
    """An uploader in a process of its own, which also ends when this process does."""

    def __init__(self, upload: Upload, finish_s: float) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by let_go
        self._last = Tally()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlay.export.worker"],
                bufsize=0,  # What a dead process does not read must not wait for the next word.
                stdin=subprocess.PIPE,
                stdout=self._output,
                start_new_session=True,  # Ctrl-C is for the training; this ends after it.
            )
        except OSError:
            self._output.close()
            raise
        self._say(msgspec.json.encode(Order(upload=upload, finish_s=finish_s)) + b"\n")

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        if not self._output.closed:
            text = os.pread(self._output.fileno(), TALLY_BYTES, 0)
            with contextlib.suppress(BadDocument):  # None yet, or one half replaced.
                self._last = decode(text, Tally)
        return self._last

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""
        self._say(b"stop\n" if final else b"quit\n")
        try:
            self._process.wait(timeout_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode
        self.let_go()
        if code:
            lost = self._last.lost + 1
            trouble = f"the uploader ended with {code}"
            self._last = msgspec.structs.replace(self._last, lost=lost, trouble=trouble)

    def let_go(self) -> None:
        """Do not wait: its input ends, so that it uploads a last time and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.tally()
        self._output.close()
        self._process.returncode = self._process.poll() or 0  # Nobody waits for it any more.

    def _say(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # It is gone, which its exit code tells.
            self._process.stdin.write(text)


class ThreadUploader:
    """An uploader in a thread of this process."""

    def __init__(
        self,
        upload: Upload,
        finish_s: float,
        logger: GoodputLogger | None,
        lent: Sequence[LentSink] = (),
    ) -> None:
        self._uploads = Uploads(upload, logger, lent=lent)
        self._finish_s = finish_s
        self._final = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlay uploader", daemon=True)
        self._thread.start()

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        return self._uploads.tally

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """End within the time, after a last upload if that is wanted."""
        self._final = final
        self._stop.set()
        self._thread.join(timeout_s + MARGIN_S)

    def let_go(self) -> None:
        """Do not wait; a thread ends with its process."""
        self._stop.set()

    def _run(self) -> None:
        self._uploads.run(self._stop)
        self._uploads.finish(self._finish_s, final=self._final)
