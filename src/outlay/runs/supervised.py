"""The supervisor's own segment of an attempt: begun before the spawn, ended after the reap.

Whoever starts a training from outside (``outlay exec``, ``guard run``, a sweep, a Slurm job) writes
one. Its two instants bound the attempt, whether or not the training records itself. It starts and
watches nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from outlay.clock import SYSTEM, Clock
from outlay.ledger import SUPERVISOR, EndStatus
from outlay.ledger.price import handed_on
from outlay.record import Recorder
from outlay.runs.opening import open_attempt
from outlay.runs.options import Options


class SupervisedAttempt:
    """One attempt as its supervisor records it; make it right before the process is started.

    ``options`` come from ``resolve(Arguments(model=None, dir=..., gpus=..., price=...), ...)``: a
    supervisor does not know the model.

    Raises:
        RunInUse: Another supervisor records the same directory.
    """

    def __init__(self, options: Options, clock: Clock = SYSTEM) -> None:
        self._opening = open_attempt(options, clock, rank=SUPERVISOR)
        self.options = self._opening.options
        self._ended = False

    @property
    def run_id(self) -> str:
        """The run, as in its directory's ``run.json``."""
        return self._opening.run_id

    @property
    def recorder(self) -> Recorder:
        """What writes the segment, for signs of life and notes."""
        return self._opening.recorder

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with which a process that records itself joins the run.

        GPUs are handed on where somebody stated them: what was found or guessed out here, the
        process finds by itself, and its launcher may know better.
        """
        options = self.options
        environment = dict(inherited) | {"OUTLAY_RUN_DIR": str(options.dir)}
        if options.gpus_source == "stated":
            environment["OUTLAY_GPUS"] = str(options.gpus)
        if options.price is not None:
            environment["OUTLAY_PRICE"] = handed_on(options.price)
        if options.stopped_price is not None:
            environment["OUTLAY_STOPPED_PRICE"] = str(options.stopped_price.rate)
        return environment

    def reaped(self, returncode: int, *, received: signal.Signals | None = None) -> None:
        """Record how the process ended, right after it was reaped.

        Args:
            returncode: As ``subprocess`` gives it: negative for the signal that killed it.
            received: The signal that the supervisor was sent and passed on, if any.
        """
        status, reason = outcome_of(returncode, received)
        self.end(status, reason, exit_code=shell_code(returncode))

    def end(self, status: EndStatus, reason: str = "", *, exit_code: int | None = None) -> None:
        """Record an end that says more than an exit code (or less); further calls do nothing."""
        if self._ended:
            return
        self._ended = True
        self.recorder.close(status, reason, exit_code)
        if self._opening.lock is not None:
            self._opening.lock.release()


def shell_code(returncode: int) -> int:
    """Return an exit code as a shell gives it: 128 plus the signal for a process it killed."""
    return returncode if returncode >= 0 else 128 - returncode


def outcome_of(returncode: int, received: signal.Signals | None = None) -> tuple[EndStatus, str]:
    """Return how a process ended, and by what.

    Whoever ends a whole job sends SIGTERM to the command and to its supervisor, in any order.
    """
    name = f"exit code {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
    if received is signal.SIGTERM or returncode == -signal.SIGTERM:
        return "terminated", name if returncode else "SIGTERM"
    if returncode == 0:
        return "completed", ""
    return ("interrupted" if received is signal.SIGINT else "failed"), name
