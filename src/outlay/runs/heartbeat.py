"""A background thread that records signs of life, so that a time of death is known."""

from __future__ import annotations

import threading

from outlay.record import Recorder
from outlay.units import Duration


class Heartbeat:
    """Beats until stopped; never keeps the process alive."""

    def __init__(self, recorder: Recorder, every: Duration) -> None:
        self._recorder = recorder
        self._every_s = every.seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="outlay-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Record no further signs of life."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._recorder.heartbeat()
            # A beat is also when a deleted segment is noticed and begun anew.
            self._recorder.writer.sync()
