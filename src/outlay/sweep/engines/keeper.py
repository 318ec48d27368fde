"""The parent of a harness's runs: ``python -m outlay.sweep.engines.keeper``.

It starts and ends runs as the harness tells it, one JSON line each, and writes down how each ended
before it says so. When the harness dies (end of input), it ends everything, writes that down too,
brings the manifest up to date, and goes. So no run outlives its harness, and none ends unseen.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import decode_as_python
from outlay.errors import OutlayError
from outlay.escaping import terminal_text
from outlay.guard.processes import signal_group
from outlay.sweep.engines.exits import ExitRecord, write_exit
from outlay.sweep.engines.leftovers import kill_marked, signal_marked

_NOTICE_NS = 5 * 10**9
_LOOK_EVERY_S = 0.05


@dataclass(slots=True)
class Child:
    """One running attempt."""

    process: subprocess.Popen[bytes]
    directory: Path
    thorough: bool
    started_ns: int
    asked: bool = False


@dataclass(slots=True)
class Keeper:
    """The runs that go on, by ticket, and whether the harness has said goodbye."""

    children: dict[str, Child] = field(default_factory=dict)
    dismissed: bool = False

    def hear(self, line: bytes) -> None:
        """Do what one line says."""
        told: dict[str, Any] = decode_as_python(line)  # Takes variables that are no text, too.
        match told.pop("do"):
            case "start":
                self._start(**told)
            case "signal":
                self._signal(**told)
            case _:
                self.dismissed = True

    def _start(
        self,
        *,
        ticket: str,
        command: list[str],
        env: dict[str, str],
        cwd: str,
        log: str,
        directory: str,
        thorough: bool,
    ) -> None:
        try:
            with Path(log).open("ab") as output:
                process = subprocess.Popen(
                    command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, process_group=0,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            _tell(ticket=ticket, not_started=getattr(error, "strerror", None) or str(error))
            return
        self.children[ticket] = Child(process, Path(directory), thorough, SYSTEM.monotonic_ns())
        _tell(ticket=ticket, pid=process.pid)

    def _signal(self, *, ticket: str, number: int) -> None:
        child = self.children.get(ticket)
        if child is not None:
            self._end(ticket, child, number)

    @staticmethod
    def _end(ticket: str, child: Child, number: int) -> None:
        """Signal the group and, for launchers that give workers groups of their own, the rest."""
        child.asked = True
        signal_group(child.process.pid, number)
        if number == signal.SIGKILL:
            signal_marked(ticket, number)

    def reap(self) -> None:
        """Write down and tell how children ended."""
        for ticket, child in list(self.children.items()):
            code = child.process.poll()
            if code is None:
                continue
            signal_group(child.process.pid, signal.SIGKILL)
            if child.thorough or code != 0:
                kill_marked(ticket)
            record = ExitRecord(
                ticket=ticket,
                returncode=code,
                asked=child.asked,
                elapsed_ns=SYSTEM.monotonic_ns() - child.started_ns,
            )
            write_exit(child.directory, record)
            del self.children[ticket]
            _tell(**msgspec.to_builtins(record))

    def end_everything(self) -> None:
        """End all runs: told first, killed after the notice."""
        for ticket, child in self.children.items():
            self._end(ticket, child, signal.SIGTERM)
        kill_ns = SYSTEM.monotonic_ns() + _NOTICE_NS
        while self.children:
            if SYSTEM.monotonic_ns() >= kill_ns:
                for ticket, child in self.children.items():
                    self._end(ticket, child, signal.SIGKILL)
            SYSTEM.sleep(_LOOK_EVERY_S)
            self.reap()


def _tell(**message: object) -> None:
    # A harness that is gone hears nothing; what it should know is on disk.
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(message) + b"\n")


def listen(keeper: Keeper, woken: int) -> None:
    """Hear lines and reap children until the harness says goodbye or is gone."""
    heard = b""
    while not keeper.dismissed:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            keeper.reap()
        if 0 in ready:
            more = os.read(0, 1 << 16)
            if not more:
                return
            *lines, heard = (heard + more).split(b"\n")
            for line in lines:
                keeper.hear(line)
            keeper.reap()  # One that ended before its SIGCHLD could be told apart.


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable whenever a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def main() -> None:
    """Keep the runs of one harness; a terminal's signals are the harness's to answer."""
    session, root = sys.argv[1], Path(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, for runs would inherit SIG_IGN and never hear that they are to end.
        signal.signal(number, lambda *_: None)
    keeper = Keeper()
    listen(keeper, _wake_on_child())
    abandoned = not keeper.dismissed
    keeper.end_everything()
    # A run may have been on its way into being when the harness died.
    if left := kill_marked(session):
        pids = ", ".join(map(str, left))
        lasting = f"outlay: processes {pids} of {root} were killed and do not end"
        sys.stderr.write(f"{terminal_text(lasting)}\n")
    if abandoned:
        from outlay.sweep.manifest import bring_up_to_date

        # The journal has it all; where the manifest cannot be written, the next harness will.
        with contextlib.suppress(OutlayError):
            bring_up_to_date(root)


if __name__ == "__main__":
    main()
