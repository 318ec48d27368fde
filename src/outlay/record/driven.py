"""A loop that calls outlay at its events: steps begin and end, phases change.

For callbacks, which can hold no ``with`` open and own no ``for``. Like the Recorder it raises
nothing into the loop for its own reasons; an end without a begin is the caller's error, and raises.
"""

from __future__ import annotations

from outlay.errors import InvalidValue
from outlay.ledger import Step
from outlay.ledger.records import LARGEST
from outlay.record.recorder import Recorder


class DrivenLoop:
    """The step and the phase that are open."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._phase: int | None = None
        self._number: int | None = None
        self._begun_ns = 0
        self._wait_ns = 0

    def begin_step(self, wait_ns: int) -> int:
        """Begin the next step, for whose data the loop waited; return its number.

        Ends the phase that is open. A step that was begun and never ended did not happen.
        """
        if self._phase is not None:
            self.end_phase()
        self._number = self._recorder.begin_step()
        self._wait_ns = _count("wait_ns", wait_ns)
        self._begun_ns = self._recorder.monotonic_ns()
        return self._number

    def end_step(self, tokens: int, samples: int) -> None:
        """Record the step that runs.

        Raises:
            InvalidValue: None was begun, or an amount is below zero.
        """
        recorder, number = self._recorder, self._number
        ended_ns = recorder.monotonic_ns()
        if number is None:
            raise InvalidValue("end_step", None, "a call of begin_step() before it")
        self._number = None
        recorder.end_step(
            Step(
                t_ns=ended_ns + recorder.wall_offset_ns,
                step=number,
                dur_ns=ended_ns - self._begun_ns,
                wait_ns=self._wait_ns,
                tokens=_count("tokens", tokens),
                samples=_count("samples", samples),
            )
        )

    def begin_phase(self, name: str) -> None:
        """End the phase that is open and begin another."""
        self.end_phase()
        self._phase = self._recorder.begin_span(name, overlapped=False)

    def end_phase(self) -> None:
        """End the phase that is open, if there is one."""
        begun, self._phase = self._phase, None
        if begun is not None:
            self._recorder.end_span(begun)


def _count(name: str, value: int) -> int:
    if not 0 <= value <= LARGEST:
        raise InvalidValue(name, value, "a whole number, zero or more")
    return int(value)
