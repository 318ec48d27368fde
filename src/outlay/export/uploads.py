"""Uploaders: each reads at an interval, and passes the readings to every sink.

A process costs the training almost nothing, however long the run, and isolates the sinks' libraries
and errors. A thread is for a log that only this process can read, and for a sink that only it can
write. Each sink has a thread, so that one that hangs blocks neither the others nor the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import IO

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, decode
from outlay.export.background import Background, Limits
from outlay.export.scalars import FinishedReading
from outlay.export.sinks import BorrowedSink, Destination, Sink, destination_name, open_sink
from outlay.proc.identity import register_outliving
from outlay.runs.reading import RunReader
from outlay.store.home import outliving_dir

_log = logging.getLogger("outlay")
MARGIN_S = 0.5  # How long a process may take to exit after its timeout.


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An uploader's task; can be sent to another process.

    Attributes:
        finish_s: The timeout of its end.
    """

    job_name: str
    interval_s: float
    finish_s: float

    def uploads(self, report: Report = lambda _: None) -> Uploads:
        """Return the loop; ``report`` is called with the tally after each round."""
        raise NotImplementedError


class RunUpload(Upload, frozen=True, kw_only=True):
    """Uploads all figures of a run."""

    run_dir: str
    destinations: tuple[Destination, ...] = ()

    def uploads(
        self, report: Report = lambda _: None, local_sinks: Sequence[BorrowedSink] = ()
    ) -> Uploads:
        """Return the loop; ``local_sinks`` are sinks of this process to write to as well."""
        reader = RunReader(Path(self.run_dir))
        sinks = [(destination_name(each), partial(open_sink, each)) for each in self.destinations]
        return Uploads(self, [lambda: reader.read(SYSTEM.wall_ns())], sinks, local_sinks, report)


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many readings were uploaded and lost over all sinks, and why the last was lost."""

    uploaded: int = 0
    lost: int = 0
    trouble: str = ""


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Add up several tallies, with the last trouble."""
    every = list(tallies)
    return Tally(
        uploaded=sum(tally.uploaded for tally in every),
        lost=sum(tally.lost for tally in every),
        trouble=next((tally.trouble for tally in reversed(every) if tally.trouble), ""),
    )


def lost_text(name: str, tally: Tally) -> str:
    """Return the message about lost readings."""
    return (
        f"{name}: {tally.uploaded} readings were uploaded to trackers and {tally.lost} were lost; "
        f"last error: {tally.trouble}"
    )


class _SinkThread:
    """A sink with its thread, opened with the first reading; retried while opening fails."""

    def __init__(self, name: str, open_it: Callable[[], Sink]) -> None:
        self.background: Background[FinishedReading] = Background(
            name, self._write, Limits(waiting=16)
        )
        self._open = open_it
        self._sink: Sink | None = None

    @property
    def tally(self) -> Tally:
        outcome = self.background.outcome
        return Tally(uploaded=outcome.done, lost=outcome.lost, trouble=outcome.trouble)

    def _write(self, batch: Sequence[FinishedReading]) -> None:
        if self._sink is None:
            self._sink = self._open()
        for reading in batch:
            self._sink.write(reading)

    def close(self, timeout_s: float) -> None:
        """Write queued readings within the timeout; the rest is lost."""
        if not self.background.drain(timeout_s):
            self.background.abandon()
        elif self._sink is not None:
            self._sink.close()


OpenSink = Callable[[], Sink]
Report = Callable[[Tally], object]


class Uploads:
    """One uploader's loop.

    Args:
        upload: How often it reads, and the job's name in messages.
        reads: Each takes a reading.
        sinks: For each sink its name in messages, and a function that opens it.
        local_sinks: Sinks of this process to write to as well.
        report: Called with the tally after each round.
    """

    def __init__(
        self,
        upload: Upload,
        reads: Sequence[Callable[[], FinishedReading]],
        sinks: Sequence[tuple[str, OpenSink]],
        local_sinks: Sequence[BorrowedSink] = (),
        report: Report = lambda _: None,
    ) -> None:
        self._upload = upload
        self._reads = reads
        opened = [*sinks, *(("a sink of its own", each.opened) for each in local_sinks)]
        self._sinks = [
            _SinkThread(f"job {upload.job_name}: {name}", open_) for name, open_ in opened
        ]
        self._report = report
        self._failed = 0
        self._trouble = ""

    @property
    def tally(self) -> Tally:
        """Readings uploaded and lost so far; a failed read is one lost."""
        found = sum_tallies(sink.tally for sink in self._sinks)
        lost = found.lost + self._failed
        return msgspec.structs.replace(found, lost=lost, trouble=found.trouble or self._trouble)

    def run(self, stop: threading.Event, keep_running: Callable[[], bool] = lambda: True) -> None:
        """Read and upload until ``stop`` is set or ``keep_running`` returns False."""
        while keep_running() and not stop.wait(self._upload.interval_s):
            self.once()

    def finish(self, *, final: bool) -> None:
        """Upload a last time if ``final``, and close the sinks, within the timeout."""
        deadline_ns = SYSTEM.monotonic_ns() + round(self._upload.finish_s * 1e9)
        if final:
            self.once()
        for sink in self._sinks:
            sink.close(max(0.0, (deadline_ns - SYSTEM.monotonic_ns()) / 1e9))
        self._report(self.tally)

    def once(self) -> None:
        """Read once, and pass the readings to the sinks."""
        for read in self._reads:
            try:
                reading = read()
            except ValueError as error:  # Nothing was logged yet, or no time has passed.
                _log.info("job %s: nothing to upload: %s", self._upload.job_name, error)
            except Exception as error:  # noqa: BLE001 - a monitor continues; the loss is counted
                self._failed += 1
                self._warn(f"cannot read the goodput log: {type(error).__name__}: {error}"[:200])
            else:
                for sink in self._sinks:
                    sink.background.offer(reading)
        self._report(self.tally)

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("job %s: %s", self._upload.job_name, trouble)


class ProcessUploader:
    """An uploader in a separate process, which also ends when this process does."""

    def __init__(self, upload: Upload) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by detach
        self._last = Tally()
        kind = f"{type(upload).__module__}:{type(upload).__qualname__}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlay.export.uploads", kind],
                bufsize=0,  # A write to a dead process must fail at once, not at the next flush.
                stdin=subprocess.PIPE,
                stdout=self._output,
                start_new_session=True,  # Ctrl-C must end the training only; this ends after it.
            )
        except OSError:
            self._output.close()
            raise
        register_outliving(outliving_dir("uploaders"), self._process.pid)
        self._send(msgspec.json.encode(upload) + b"\n")

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        if not self._output.closed:
            text = os.pread(self._output.fileno(), TALLY_BYTES, 0)
            with contextlib.suppress(BadDocument):  # None yet, or half overwritten.
                self._last = decode(text, Tally)
        return self._last

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """Stop within the timeout, after a last upload if ``final``."""
        self._send(b"stop\n" if final else b"quit\n")
        try:
            self._process.wait(timeout_s + MARGIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode
        self.detach()
        if code:
            lost = self._last.lost + 1
            trouble = f"the uploader ended with {code}"
            self._last = msgspec.structs.replace(self._last, lost=lost, trouble=trouble)

    def detach(self) -> None:
        """Close its input, so that it uploads a last time and ends; do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.tally()
        self._output.close()
        # Popen must not warn that nobody waited.
        self._process.returncode = self._process.poll() or 0

    def _send(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # It is gone; its exit code shows that.
            self._process.stdin.write(text)


class ThreadUploader:
    """An uploader in a thread of this process."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._final = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlay uploader", daemon=True)
        self._thread.start()

    def tally(self) -> Tally:
        """Return what was uploaded and lost so far."""
        return self._uploads.tally

    def stop(self, timeout_s: float, *, final: bool) -> None:
        """Stop within the timeout, after a last upload if ``final``."""
        self._final = final
        self._stop.set()
        self._thread.join(timeout_s + MARGIN_S)

    def detach(self) -> None:
        """Do not wait; the thread ends with its process."""
        self._stop.set()

    def _run(self) -> None:
        self._uploads.run(self._stop)
        self._uploads.finish(final=self._final)


Uploader = ProcessUploader | ThreadUploader

# The process of an uploader: ``python -m outlay.export.uploads MODULE:CLASS``
#
# The first line of input is its task, an ``Upload`` of that class. A later line ends it: ``stop``
# after a last upload, ``quit`` without one. End of file, which also follows if the monitoring
# process dies, means ``stop``. The tally is at the start of the output, a file.

NICENESS = 10
TALLY_BYTES = 512


def encode_tally(tally: Tally) -> bytes:
    """Encode a tally in a fixed length, so that it can be overwritten in place."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in tally.trouble[:200])
    text = msgspec.json.encode(msgspec.structs.replace(tally, trouble=plain)).ljust(TALLY_BYTES)
    assert len(text) == TALLY_BYTES, "200 characters, each of them escaped, leave room for numbers"
    return text


def serve(kind: type[Upload]) -> None:
    """Run an uploader's process until its input says to end, or ends."""
    upload = decode(sys.stdin.buffer.readline(), kind)
    logging.basicConfig(format="outlay monitor: %(message)s", level=logging.WARNING)
    os.nice(NICENESS)
    stop = threading.Event()
    commands: list[bytes] = []

    def listen() -> None:
        commands.append(sys.stdin.buffer.readline())
        stop.set()

    parent = os.getppid()
    threading.Thread(target=listen, daemon=True).start()
    report = partial(os.pwrite, sys.stdout.fileno())
    uploads = upload.uploads(lambda tally: report(encode_tally(tally), 0))
    # A process forked by the training may hold the input open: check the parent as well.
    uploads.run(stop, keep_running=lambda: os.getppid() == parent)
    uploads.finish(final=commands != [b"quit\n"])
    if uploads.tally.lost and commands not in ([b"quit\n"], [b"stop\n"]):  # No monitor logs it.
        _log.warning("%s", lost_text(upload.job_name, uploads.tally))
    sys.stderr.flush()
    os._exit(0)  # A sink that hangs must not keep the process.


if __name__ == "__main__":
    serve(resolve_name(sys.argv[1]))
