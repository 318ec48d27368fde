"""The supervisor's side: starts, signals and waits for commands through a keeper.

One keeper serves all commands of a supervisor, so that starting another costs one message. If the
keeper is killed, its commands become children of the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from errno import ENOENT
from pathlib import Path
from typing import Any, Final, Literal

from outlay.clock import SYSTEM
from outlay.errors import NOT_EXECUTABLE, NOT_FOUND, OutlayError
from outlay.proc.cgroup import Cgroup
from outlay.proc.exit_record import fields_of
from outlay.proc.identity import (
    Process,
    all_processes,
    below,
    catches,
    own_children,
    pid_scope,
    read_process,
    send,
    set_subreaper,
)
from outlay.proc.keeper import Keeper, KeeperTerms, Launch, SignalTarget
from outlay.proc.keeper_process import MessagePipe
from outlay.proc.orphaned_tree import TreeRecord, write_record

_LOOK_EVERY_S: Final = 0.02
_WAKE_EVERY_NS: Final = 10**8
_MOST_KEEPERS: Final = 10
_ROOT: Final = str(Path(__file__).parent.parent.parent)
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, {!r}); import outlay.proc.keeper_process as k; k.main()"
)


class KeeperKilled(OutlayError):
    """The keeper was killed, and its commands with it, unless this is a successor."""

    def __init__(self) -> None:
        super().__init__("the keeper of the command was killed; start it again")


class CommandNotStarted(OutlayError):
    """A command could not be started; exit codes are those of a shell."""

    exit_code = NOT_FOUND

    def __init__(self, command: str, error: OSError, consequence: str = "") -> None:
        super().__init__(f"cannot start {command!r}: {error.strerror or error}{consequence}")
        if error.errno != ENOENT:
            self.exit_code = NOT_EXECUTABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEvent:
    """An event of a command.

    Attributes:
        code: The errno of ``not_started``.
        left: How many processes an ``exited`` command left behind; ``gone`` follows when they end.
    """

    event: Literal["started", "not_started", "exited", "gone"]
    ticket: str
    problem: str = ""
    code: int = 0
    returncode: int = 0
    asked: bool = False
    elapsed_ns: int = 0
    ended_ns: int = 0
    left: int = 0


class ProcessSupervisor:
    """Commands under a keeper.

    Args:
        terms: What the keeper does without orders.
        own_session: Whether commands get a session of their own, without our terminal.
        replaces: Whether a killed keeper is replaced and its commands continue; otherwise they end.
        about: Describes the process tree in its record, for when it is orphaned.
    """

    def __init__(
        self,
        terms: KeeperTerms,
        *,
        own_session: bool = True,
        replaces: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.terms = terms
        self._own_session = own_session
        self._replaces = replaces
        self.about = dict(about or {})
        self._process: subprocess.Popen[bytes] | None = (
            None  # None in a successor, a keeper's child.
        )
        self._keeper_process: Process | None = None
        self._pipe: MessagePipe | None = None
        self._cgroup: Cgroup | None = None
        self._own_keeper: Keeper | None = None
        self._older: frozenset[int] = frozenset()
        self._running: dict[str, dict[str, Any]] = {}
        self._events: list[KeptEvent] = []
        self._until_ns: int | None = None
        self._terms_sent = False
        self._starting: set[str] = set()
        self._replaced = 0
        self._wake_ns = 0

    @classmethod
    def as_successor(cls, terms: KeeperTerms, line: MessagePipe) -> ProcessSupervisor:
        """Return the supervisor in a successor, which the keeper started."""
        successor = cls(terms)
        successor._pipe = line
        return successor

    # -- commands -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the keeper and wait until it is ready, so that no command's time includes that.

        The terms are sent with the first command.
        """
        _adopt_orphans(+1)
        self._older = frozenset(own_children())
        self._start_keeper()
        assert self._pipe is not None
        if self._pipe.receive() is None:  # Not "ready", but the end of input: it has failed.
            self._disconnect(farewell=False)
            raise OSError(None, "the keeper of processes could not be started")

    def submit(self, launch: Launch) -> None:
        """Order the start of a command; the result is an event."""
        if self._pipe is None:
            self.begin()
        if not self._terms_sent:
            self._configure_keeper()
        self._starting.add(launch.ticket)
        self._send("start", **fields_of(launch))

    def start(self, launch: Launch) -> KeptEvent:
        """Start a command and wait until it runs; raises OSError if it can't be started."""
        self.submit(launch)
        while True:
            events = self.wait(1.0)
            mine = [e for e in events if e.event in ("started", "not_started")]
            self._events += [e for e in events if e not in mine]  # It may have ended already.
            if mine:
                break
        if mine[0].event == "not_started":
            raise OSError(mine[0].code, mine[0].problem)
        self._write_record()
        return mine[0]

    def signal(self, ticket: str, number: int, whom: SignalTarget = "tree") -> None:
        """Signal a command, its process group, or its whole process tree."""
        if self._own_keeper is not None:
            self._own_keeper.signal(ticket, number, whom)
        elif self._pipe is not None:
            self._send("signal", ticket=ticket, number=int(number), whom=whom)

    def set_deadline(self, until_ns: int | None) -> None:
        """Send the keeper the monotonic time at which it ends the commands by itself."""
        self._until_ns = until_ns
        self._send("until", ns=until_ns)

    def leave_rest(self) -> None:
        """Let processes that an ended command left behind run on, whatever the terms say."""
        self._send("leave")

    def wait(self, timeout_s: float) -> list[KeptEvent]:
        """Return events as soon as there are any; none after the timeout.

        Raises:
            KeeperKilled: The keeper was killed, and is not replaced.
        """
        if self._pipe is None and self._own_keeper is None:
            return self._drain_events()
        self._wake_keeper()
        until_ns = SYSTEM.monotonic_ns() + round(timeout_s * 1e9)
        while True:
            left_s = max(0.0, (until_ns - SYSTEM.monotonic_ns()) / 1e9)
            if self._events:
                left_s = 0.0
            pause_s = left_s if self._own_keeper is None else min(left_s, _LOOK_EVERY_S)
            received = self._receive(pause_s)
            if self._own_keeper is not None:
                self._own_keeper.reap()
            if not received and (self._events or left_s == 0.0):
                return self._drain_events()

    def process_of(self, ticket: str) -> Process | None:
        """Return the first process of a running command."""
        message = self._running.get(ticket)
        return None if message is None else Process(**message["process"])

    def with_handler(self, ticket: str, number: int) -> list[Process] | None:
        """Return the processes of a command that handle a signal; None if it can't be read."""
        command, table = self.process_of(ticket), all_processes()
        if command is None or command.pid not in table:
            return None
        tree = below(table, [command.pid])
        return [table[pid] for pid in tree if pid in table and catches(pid, number)]

    def close(self) -> None:
        """Let the keeper end what is left and exit; wait for it."""
        self._disconnect(farewell=True)

    def abandon(self) -> None:
        """Let the keeper do what it does when the supervisor dies; wait for it."""
        self._disconnect(farewell=False)

    # -- the keeper ---------------------------------------------------------------------------

    def _configure_keeper(self) -> None:
        self._terms_sent = True
        if self.terms.cgroup:
            self._cgroup = Cgroup.make(f"outlay-{self.terms.session}")
        self._send_terms()
        self._write_record()

    def _send_terms(self, adopted: Sequence[dict[str, Any]] = ()) -> None:
        cgroup = "" if self._cgroup is None else str(self._cgroup.directory)
        self._send("keep", terms=asdict(self.terms), adopted=list(adopted), cgroup=cgroup)

    def _start_keeper(self) -> None:
        ours, theirs = MessagePipe.pair()
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(_ROOT)]
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, theirs.descriptors)],
                pass_fds=theirs.descriptors,
                start_new_session=self._own_session,  # It survives the end of our session.
                process_group=None if self._own_session else 0,
            )
        finally:
            theirs.close()
        self._keeper_process = read_process(self._process.pid)
        self._pipe = ours

    def _send(self, what: str, **message: Any) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # It was killed, which the next wait detects.
                self._pipe.send({"do": what, **message})

    def _receive(self, timeout_s: float) -> bool:
        """Handle the keeper's messages within the timeout; False if there were none."""
        if self._pipe is None:
            SYSTEM.sleep(timeout_s)
            return False
        if not select.select([self._pipe.reading], [], [], timeout_s)[0]:
            return False
        received = self._pipe.receive()
        if received is None:
            self._replace_keeper()
        for message in received or ():
            self._handle_event(message)
        return bool(received)

    def _handle_event(self, message: dict[str, Any]) -> None:
        if message["event"] == "ready":
            return
        known = {name: message[name] for name in KeptEvent.__slots__ if name in message}
        event = KeptEvent(**known)
        self._starting.discard(event.ticket)
        if event.event == "started":
            self._running[event.ticket] = message
        elif event.event != "exited" or not event.left:
            self._running.pop(event.ticket, None)
        self._events.append(event)

    def _drain_events(self) -> list[KeptEvent]:
        events, self._events = self._events, []
        return events

    def _wake_keeper(self) -> None:
        """Send SIGCONT to a stopped keeper; checked every 100 ms."""
        now_ns = SYSTEM.monotonic_ns()
        if self._keeper_process is not None and now_ns >= self._wake_ns:
            self._wake_ns = now_ns + _WAKE_EVERY_NS
            found = read_process(self._keeper_process.pid)
            if found is not None and found.state == "T":
                send(self._keeper_process, signal.SIGCONT)

    def _replace_keeper(self) -> None:
        """Adopt the commands of a killed keeper, and start another one if the terms allow."""
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        if self._process is None:
            raise KeeperKilled
        self._process.kill()
        self._process.wait()
        running = list(self._running.values())
        if self._own_keeper is None:
            self._own_keeper = Keeper(
                self.terms, self._handle_event, cgroup=self._cgroup, older=self._older
            )
            self._own_keeper.adopt(running)
        if not self._replaces or self._starting:  # Pending ones may or may not have been started.
            self._own_keeper.end_tree()
            self._own_keeper = None
            self._finish()
            raise KeeperKilled
        self._replaced += 1
        if self._replaced > _MOST_KEEPERS:
            return  # Every keeper is killed or fails to start: watch the commands without one.
        self._start_keeper()
        self._send_terms(running)
        if self._until_ns is not None:
            self._send("until", ns=self._until_ns)
        assert self._process is not None
        self._own_keeper.helpers.add(self._process.pid)
        self._write_record()

    def _disconnect(self, *, farewell: bool) -> None:
        if self._pipe is None:
            if self._own_keeper is not None:  # There is no keeper any more.
                self._own_keeper.end_everything(self.terms.notice_ns)
                self._finish()
            return
        if farewell:
            self._send("bye")
        self._pipe.close_writing()
        while self._pipe.receive() is not None:
            pass
        self._pipe.close()
        self._pipe = None
        if self._process is not None:
            self._process.wait()
        self._finish()

    def _finish(self) -> None:
        if self._process is not None:
            _adopt_orphans(-1)
        self._own_keeper = None
        self._keeper_process = None
        if self._cgroup is not None:
            self._cgroup.remove()
        if self.terms.record:
            with contextlib.suppress(OSError):
                Path(self.terms.record).unlink()

    def _write_record(self) -> None:
        """Write the record by which the process tree is found if both processes are killed."""
        if self.terms.record and self._keeper_process is not None:
            me = read_process(os.getpid())
            cgroup = "" if self._cgroup is None else str(self._cgroup.directory)
            commands = [Process(**message["process"]) for message in self._running.values()]
            record = TreeRecord(
                machine=tuple(pid_scope()), session=self.terms.session,
                supervisor=me or Process(os.getpid(), 0), keeper=self._keeper_process,
                commands=tuple(commands), cgroup=cgroup, about=self.about,
                spared=self.terms.spared,
            )  # fmt: skip
            write_record(Path(self.terms.record), record)


_adopting = 0


def _adopt_orphans(change: int) -> None:
    """Count keepers: while there is one, this process is a subreaper for its commands."""
    global _adopting
    _adopting += change
    set_subreaper(on=_adopting > 0)
