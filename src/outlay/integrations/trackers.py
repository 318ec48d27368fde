"""Sending a run's figures to trackers while it trains, and once more after its end.

Nothing here is on the path of a step. A tracker in this process (W&B) is written by a thread; any
other by a separate process, which reads the run's log and may outlive the training.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence

from outlay.errors import InvalidValue
from outlay.export.sinks import BorrowedSink, Destination, Sink
from outlay.export.uploads import (
    ProcessUploader,
    RunUpload,
    Tally,
    ThreadUploader,
    Uploader,
    lost_text,
)
from outlay.record import facts
from outlay.runs.live import Run
from outlay.units import Duration

_log = logging.getLogger("outlay")
EVERY = "30s"
FINISH_S = 3.0
_PROCESS_FINISH_S = 60.0


class TrackerAttachment:
    """The upload of a run's figures to trackers; created by ``attach``.

    Args:
        run: The run; does nothing except on rank 0, and nothing with ``OUTLAY_DISABLED=1``.
        places: Destinations that another process opens, or sinks of this process.
        every: The interval between two readings.
        finish_s: The timeout for the last reading at the end of the run.
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
        destinations = tuple(place for place in places if isinstance(place, Destination))
        sinks = [BorrowedSink(place) for place in places if not isinstance(place, Destination)]
        self._waits = bool(sinks)
        upload = RunUpload(
            job_name=self._name,
            run_dir=str(run.dir.absolute()),
            destinations=destinations,
            interval_s=interval_s,
            finish_s=finish_s if self._waits else _PROCESS_FINISH_S,
        )
        try:
            self._uploader = (
                ThreadUploader(upload.uploads(local_sinks=sinks))
                if self._waits
                else ProcessUploader(upload)
            )
        except (OSError, RuntimeError) as error:  # The process or thread could not be started.
            self.lose(f"cannot start: {error}")
            return
        run.on_close(self.stop)
        atexit.register(self._detach_all)

    @property
    def tally(self) -> Tally:
        """How many readings were uploaded and lost, and why the last one was lost."""
        return self._tally if self._uploader is None else self._uploader.tally()

    def stop(self) -> None:
        """Upload the last figures and stop; called at the run's end.

        Waits at most ``finish_s`` for a thread, and not at all for a process.
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
        """Count and log that nothing can be uploaded."""
        self._tally = Tally(lost=1, trouble=trouble)
        _log.warning("%s: nothing is sent to trackers: %s", self._name, trouble)

    def _detach_all(self) -> None:
        if self._uploader is not None:
            self._uploader.detach()


def attach(
    run: Run, *places: Destination | Sink, every: object = EVERY, finish_s: float = FINISH_S
) -> TrackerAttachment:
    """Send a run's figures to trackers while it trains, and once more after its end.

    Args:
        run: From ``outlay.run()``.
        places: A ``CsvFile``, ``JsonLinesFile``, ``MlflowRun``, ``OtlpEndpoint``, ``PluginSink``,
            or any object with the methods of a ``Sink``.
        every: The interval between two readings.
        finish_s: The timeout for a sink of this process at the end of the run.

    Raises:
        InvalidValue: ``every`` is not a duration above zero.
    """
    return TrackerAttachment(run, places, every=every, finish_s=finish_s)
