"""``outlay exec``: any unmodified command, wrapped: wall time, exit code, cost, GPU load.

The command keeps its terminal, its signals and its exit code. It is watched from outside, so that
without step data it is known to be busy or idle, never productive.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from outlay.clock import SYSTEM, Clock
from outlay.errors import NotARun, OutlayError
from outlay.handlers import handling
from outlay.record.meters.energy import worst_quality
from outlay.record.meters.quality import Quality
from outlay.runs.figures import RunFigures, read_figures
from outlay.runs.gpus import GpuLoad, find_gpus
from outlay.runs.options import Options
from outlay.runs.supervised import SupervisedAttempt, shell_code

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_SAMPLE_S = 1.0
_BEAT_EVERY_SAMPLES = 15


class CommandNotStarted(OutlayError):
    """The wrapped command could not be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"cannot start {command!r}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a wrapped command went: its exit code as a shell would give it, and the run's figures.

    There are no figures when recording is switched off or nothing could be written.

    Attributes:
        energy_quality: How the GPUs' energy is known: by counters, or sampled.
    """

    exit_code: int
    figures: RunFigures | None
    sampled_gpus: bool
    energy_quality: Quality = Quality.UNAVAILABLE


def execute(command: Sequence[str], options: Options, clock: Clock = SYSTEM) -> ExecResult:
    """Run the command to its end, recording it in ``options.dir``.

    Raises:
        CommandNotStarted: There is no such program, or it may not be executed.
        RunInUse: Another ``outlay exec`` records the same directory.
    """
    forwarder = _Forwarder()
    with handling(FORWARDED, forwarder.handle):
        attempt = SupervisedAttempt(options, clock)
        try:
            child = subprocess.Popen(command, env=attempt.environment(os.environ))
        except OSError as error:
            attempt.end("failed", f"not started: {error.strerror}")
            raise CommandNotStarted(command[0], error.strerror or str(error)) from None
        forwarder.forward_to(child)
        gpus = find_gpus()
        returncode = _watch(child, GpuLoad(attempt.recorder, gpus))
        attempt.reaped(returncode, received=forwarder.received)
    return ExecResult(
        exit_code=shell_code(returncode),
        figures=_figures(options, clock.wall_ns()),
        sampled_gpus=bool(gpus),
        energy_quality=worst_quality(gpus),
    )


def _figures(options: Options, now_ns: int) -> RunFigures | None:
    try:
        return read_figures(options.dir, now_ns)
    except NotARun:
        return None


def _watch(child: subprocess.Popen[bytes], load: GpuLoad) -> int:
    """Wait for the child, recording signs of life and what its GPUs do."""
    samples = 0
    while True:
        try:
            return child.wait(timeout=_SAMPLE_S)
        except subprocess.TimeoutExpired:
            samples += 1
            load.sample()
            if samples % _BEAT_EVERY_SAMPLES == 0:
                load.record()
        finally:
            if child.returncode is not None:
                load.sample()
                load.record()


class _Forwarder:
    """Hands the signals that reach outlay to the command, and remembers the last one."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def forward_to(self, child: subprocess.Popen[bytes]) -> None:
        """Name the command; a signal that came before it was started is delivered now."""
        self._child = child
        if self.received is not None:
            child.send_signal(self.received)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal, and hand it on if the command is there to get it."""
        del frame
        self.received = signal.Signals(number)
        if self._child is not None and not (number == signal.SIGINT and _has_terminal()):
            # With a terminal, Ctrl-C reaches the command directly: it shares our group.
            self._child.send_signal(number)


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
