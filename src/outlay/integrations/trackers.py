"""A run's numbers into trackers while it trains, and once more when it has ended.

Nothing here is on the path of a step. A tracker in this process (W&B) has a thread; any other has
a process of its own, which reads the run's log and outlives the training until it is done.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence

from outlay.errors import InvalidValue
from outlay.export.monitor import ProcessUploader, ThreadUploader, Uploader
from outlay.export.sinks import BorrowedSink, Destination, Sink
from outlay.export.uploads import Tally, Upload, UploadLog, WholeRun, lost_text
from outlay.record import facts
from outlay.runs.live import Run
from outlay.units import Duration

_log = logging.getLogger("outlay")
EVERY = "30s"
FINISH_S = 3.0
_PROCESS_FINISH_S = 60.0


class TrackerAttachment:
    """What tells a tracker of a run; made by ``attach``.

    Args:
        run: The run; only its rank 0 tells anything, and nothing with ``OUTLAY_DISABLED=1``.
        places: Destinations that another process opens, or sinks that only this one can write to.
        every: How long between two readings.
        finish_s: How long the end of the run may wait for the last reading.
    """

    def __init__(
        self,
        run: Run,
        places: Sequence[Destination | Sink],
        *,
        every: object = EVERY,
        finish_s: float = FINISH_S,
    ) -> None:
        interval_s = Duration.parse(every, name="every").seconds
        if not interval_s:
            raise InvalidValue("every", every, 'a time such as "30s"')
        self._name = run.options.name
        self._finish_s = finish_s
        self._uploader: Uploader | None = None
        self._tally = Tally()
        if facts.rank(os.environ) != 0 or facts.is_disabled(os.environ) or not places:
            return
        away = tuple(place for place in places if isinstance(place, Destination))
        lent = [BorrowedSink(place) for place in places if not isinstance(place, Destination)]
        upload = Upload(
            job_name=self._name,
            logger_name="",
            question=WholeRun(),
            destinations=away,
            interval_s=interval_s,
            log=UploadLog(str(run.dir.absolute())),
        )
        self._waits = bool(lent)
        try:
            self._uploader = (
                ThreadUploader(upload, finish_s, None, lent)
                if lent
                else ProcessUploader(upload, _PROCESS_FINISH_S)
            )
        except (OSError, RuntimeError) as error:  # No process, or no thread, could be started.
            self.lose(f"cannot start: {error}")
            return
        run.on_close(self.stop)
        atexit.register(self._detach_all)

    @property
    def tally(self) -> Tally:
        """How many readings arrived and were lost so far, and why the last one was."""
        return self._tally if self._uploader is None else self._uploader.tally()

    def stop(self) -> None:
        """Tell the last numbers and end; the run's end calls it.

        A tracker in this process has ``finish_s`` for that. A process is not waited for.
        """
        uploader, self._uploader = self._uploader, None
        if uploader is None:
            return
        if self._waits:
            uploader.stop(self._finish_s, final=True)
        else:
            uploader.detach()
        self._tally = uploader.tally()
        atexit.unregister(self._detach_all)
        if self._tally.lost:
            _log.warning("%s", lost_text(self._name, self._tally))

    def lose(self, trouble: str) -> None:
        """Count and log that nothing is told at all."""
        self._tally = Tally(lost=1, trouble=trouble)
        _log.warning("%s: trackers are not told: %s", self._name, trouble)

    def _detach_all(self) -> None:
        if self._uploader is not None:
            self._uploader.detach()


def attach(
    run: Run, *places: Destination | Sink, every: object = EVERY, finish_s: float = FINISH_S
) -> TrackerAttachment:
    """Tell trackers a run's numbers while it trains, and once more when it has ended.

    Args:
        run: From ``outlay.run()``.
        places: A ``CsvFile``, ``JsonLinesFile``, ``MlflowRun``, ``OtlpEndpoint``, ``PluginSink``,
            or any object with the methods of a ``Sink``.
        every: How long between two readings.
        finish_s: How long the end of the run may wait for a sink of this process.

    Raises:
        InvalidValue: ``every`` is no time.
    """
    return TrackerAttachment(run, places, every=every, finish_s=finish_s)
