"""The supervisor's end: commands that a keeper starts, watches, and ends should we die.

One keeper serves all commands of a supervisor, so that starting another one costs a line on a
pipe. Should the keeper be killed, the kernel hands its commands to us.
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
from outlay.proc.identity import (
    Cgroup,
    Process,
    all_processes,
    below,
    catches,
    own_children,
    read_process,
    send,
    set_subreaper,
)
from outlay.proc.keeper import Keeper, KeeperTerms, Launch, Whom
from outlay.proc.keeper_process import MessagePipe
from outlay.proc.strays import FamilyRecord, this_machine, write_record

_LOOK_EVERY_S: Final = 0.02
_WAKE_EVERY_NS: Final = 10**8
_MOST_KEEPERS: Final = 10
_ROOT: Final = str(Path(__file__).parent.parent.parent)
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, {!r}); import outlay.proc.keeper_process as k; k.main()"
)


class KeeperKilled(OutlayError):
    """The keeper was killed; what it kept was ended, unless it is only watched."""

    def __init__(self) -> None:
        super().__init__("the keeper of the command was killed; start it again")


class CommandNotStarted(OutlayError):
    """A command could not be started; exits as a shell does."""

    exit_code = NOT_FOUND

    def __init__(self, command: str, error: OSError, consequence: str = "") -> None:
        super().__init__(f"cannot start {command!r}: {error.strerror or error}{consequence}")
        if error.errno != ENOENT:
            self.exit_code = NOT_EXECUTABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEvent:
    """Something that happened to a command.

    Attributes:
        code: The errno of what could not be started.
        left: How many processes it left behind; once they are gone, ``gone`` says so.
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
        terms: What the keeper does when nobody tells it.
        own_session: Whether commands are kept away from our terminal.
        replaces: Whether a killed keeper is replaced, and its commands go on; otherwise they end.
        about: Describes the family to whoever finds it without a keeper.
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
        self._process: subprocess.Popen[bytes] | None = None  # Of an heir its keeper is the parent.
        self._keeper_process: Process | None = None
        self._pipe: MessagePipe | None = None
        self._cgroup: Cgroup | None = None
        self._direct: Keeper | None = None
        self._older: frozenset[int] = frozenset()
        self._introduced: dict[str, dict[str, Any]] = {}
        self._events: list[KeptEvent] = []
        self._until_ns: int | None = None
        self._terms_sent = False
        self._pending: set[str] = set()
        self._replaced = 0
        self._wake_ns = 0

    @classmethod
    def as_heir(cls, terms: KeeperTerms, line: MessagePipe) -> ProcessSupervisor:
        """Return the supervisor that a keeper started when the one before had died."""
        heir = cls(terms)
        heir._pipe = line
        return heir

    # -- what a supervisor does ---------------------------------------------------------------

    def begin(self) -> None:
        """Start the keeper; it learns its terms with the first command.

        Returns once it is ready, so that what a command takes does not hold what a keeper takes.
        """
        _adopt_orphans(+1)
        self._older = frozenset(own_children())
        self._start_keeper()
        assert self._pipe is not None
        if self._pipe.receive() is None:  # That it is ready, or that it has ended already.
            self._disconnect(farewell=False)
            raise OSError(None, "the keeper of processes could not be started")

    def submit(self, launch: Launch) -> None:
        """Have a command started; whether that worked is an event."""
        if self._pipe is None:
            self.begin()
        if not self._terms_sent:
            self._send_terms_once()
        self._pending.add(launch.ticket)
        self._send("start", **asdict(launch))

    def start(self, launch: Launch) -> KeptEvent:
        """Start a command and return once it runs."""
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

    def signal(self, ticket: str, number: int, whom: Whom = "family") -> None:
        """Send a signal to a command, to its group, or to everything of it."""
        if self._direct is not None:
            self._direct.signal(ticket, number, whom)
        elif self._pipe is not None:
            self._send("signal", ticket=ticket, number=int(number), whom=whom)

    def promise(self, until_ns: int) -> None:
        """Tell up to when, on the monotonic clock, commands may run without another promise."""
        self._until_ns = until_ns
        self._send("until", ns=until_ns)

    def wait(self, timeout_s: float) -> list[KeptEvent]:
        """Return what happened, as soon as something does; nothing after the time.

        Raises:
            KeeperKilled: The keeper was killed, and is not to be replaced.
        """
        if self._pipe is None and self._direct is None:
            return self._drain_events()
        self._wake_keeper()
        until_ns = SYSTEM.monotonic_ns() + round(timeout_s * 1e9)
        while True:
            left_s = max(0.0, (until_ns - SYSTEM.monotonic_ns()) / 1e9)
            if self._events:
                left_s = 0.0
            pause_s = left_s if self._direct is None else min(left_s, _LOOK_EVERY_S)
            received = self._receive(pause_s)
            if self._direct is not None:
                self._direct.reap()
            if not received and (self._events or left_s == 0.0):
                return self._drain_events()

    def process_of(self, ticket: str) -> Process | None:
        """Return the first process of a command that goes on."""
        message = self._introduced.get(ticket)
        return None if message is None else Process(message["pid"], message["start"])

    def with_handler(self, ticket: str, number: int) -> list[Process] | None:
        """Return what of a command has a handler for a signal; None where it cannot be seen."""
        command, table = self.process_of(ticket), all_processes()
        if command is None or command.pid not in table:
            return None
        family = below(table, [command.pid])
        return [table[pid] for pid in family if pid in table and catches(pid, number)]

    def close(self) -> None:
        """Let the keeper end what is left, and go."""
        self._disconnect(farewell=True)

    def abandon(self) -> None:
        """Let the keeper do what it does when we die; return when it has."""
        self._disconnect(farewell=False)

    # -- the keeper ---------------------------------------------------------------------------

    def _send_terms_once(self) -> None:
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
                start_new_session=self._own_session,  # What ends our session does not end it.
                process_group=None if self._own_session else 0,
            )
        finally:
            theirs.close()
        self._keeper_process = read_process(self._process.pid)
        self._pipe = ours

    def _send(self, what: str, **message: Any) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # It was killed, which the next wait finds out.
                self._pipe.send({"do": what, **message})

    def _receive(self, timeout_s: float) -> bool:
        """Handle what the keeper sends within the time; False when that is nothing."""
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
        self._pending.discard(event.ticket)
        if event.event == "started":
            self._introduced[event.ticket] = message
        elif event.event != "exited" or not event.left:
            self._introduced.pop(event.ticket, None)
        self._events.append(event)

    def _drain_events(self) -> list[KeptEvent]:
        events, self._events = self._events, []
        return events

    def _wake_keeper(self) -> None:
        """Let a keeper that somebody stopped go on; looked at now and then."""
        now_ns = SYSTEM.monotonic_ns()
        if self._keeper_process is not None and now_ns >= self._wake_ns:
            self._wake_ns = now_ns + _WAKE_EVERY_NS
            found = read_process(self._keeper_process.pid)
            if found is not None and found.state == "T":
                send(self._keeper_process, signal.SIGCONT)

    def _replace_keeper(self) -> None:
        """The keeper was killed: its commands are ours now."""
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        if self._process is None:
            raise KeeperKilled
        self._process.kill()
        self._process.wait()
        introduced = list(self._introduced.values())
        if self._direct is None:
            self._direct = Keeper(
                self.terms, self._handle_event, cgroup=self._cgroup, older=self._older
            )
            self._direct.adopt(introduced)
        if not self._replaces or self._pending:  # Whether those were started nobody knows.
            self._direct.end_family()
            self._direct = None
            self._finish()
            raise KeeperKilled
        self._replaced += 1
        if self._replaced > _MOST_KEEPERS:
            return  # Somebody kills them all, or none can start: we watch the commands alone.
        self._start_keeper()
        self._send_terms(introduced)
        if self._until_ns is not None:
            self._send("until", ns=self._until_ns)
        assert self._process is not None
        self._direct.helpers.add(self._process.pid)
        self._write_record()

    def _disconnect(self, *, farewell: bool) -> None:
        if self._pipe is None:
            if self._direct is not None:  # No keeper would start; we are alone.
                self._direct.end_everything(self.terms.notice_ns)
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
        self._direct = None
        self._keeper_process = None
        if self._cgroup is not None:
            self._cgroup.remove()
        if self.terms.record:
            with contextlib.suppress(OSError):
                Path(self.terms.record).unlink()

    def _write_record(self) -> None:
        """Name the family in a file, for the next command to find should both of us be killed."""
        if self.terms.record and self._keeper_process is not None:
            me = read_process(os.getpid())
            cgroup = "" if self._cgroup is None else str(self._cgroup.directory)
            commands = [Process(t["pid"], t["start"]) for t in self._introduced.values()]
            record = FamilyRecord(
                machine=this_machine(), session=self.terms.session,
                supervisor=me or Process(os.getpid(), 0), keeper=self._keeper_process,
                commands=tuple(commands), cgroup=cgroup, about=self.about,
            )  # fmt: skip
            write_record(Path(self.terms.record), record)


_adopting = 0


def _adopt_orphans(change: int) -> None:
    """Be handed the commands of a killed keeper, for as long as there is a keeper."""
    global _adopting
    _adopting += change
    set_subreaper(on=_adopting > 0)
