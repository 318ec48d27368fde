"""The parent of supervised commands: a process between a supervisor and what it runs.

It adopts whatever a command leaves behind (a child subreaper), so that what daemonises, renames
itself, makes its own session or empties its environment is still below it. It starts and signals
commands as the supervisor tells it, one JSON line each, and writes down how each ended before it
says so. When the supervisor dies (end of input) or is silent past what it promised, the keeper ends
everything; or, where that was agreed, starts an heir that goes on watching.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from outlay.clock import SYSTEM
from outlay.proc.identity import (
    Cgroup,
    Process,
    all_processes,
    below,
    command_line,
    end_all,
    mark_of,
    own_children,
    read_process,
    send,
    signal_group,
)
from outlay.proc.strays import ExitRecord, write_exit

Leftovers = Literal["kill", "report", "leave"]
Whom = Literal["command", "group", "family"]

LOOK_EVERY_S: Final = 0.05
_MOST_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperTerms:
    """What a keeper does when nobody tells it.

    Attributes:
        session: What its marks begin with, and its control group is called.
        notice_ns: How long commands get to end when the supervisor closes or falls silent.
        orphan_notice_ns: How long they get when it has died, and nobody pays for them any more.
        leftovers: What becomes of what an ended command left behind: it is killed, it is reported
            to the supervisor, or it is left alone.
        spared: Modules of Python whose processes outlive a command by right.
        cgroup: Whether to put commands into a control group, where that is allowed.
        heir: What to start when the supervisor has died, instead of ending the commands; it is
            given the numbers of the two pipes on which it is the supervisor.
        afterwards: What to run when they were ended because the supervisor had died.
        record: A file that names this family while it lives; removed by who ends it.
    """

    session: str
    notice_ns: int = 5 * 10**9
    orphan_notice_ns: int = 2 * 10**9
    leftovers: Leftovers = "kill"
    spared: tuple[str, ...] = ()
    cgroup: bool = True
    heir: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    record: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command to start.

    Attributes:
        ticket: What it is called towards the keeper.
        output: A file to append its output to; None for our own output.
        stdin: Whether it reads our input; it reads nothing otherwise.
        group: The process group to put it into; 0 for one of its own.
        exit_file: Where the keeper writes down how it ended.
    """

    ticket: str
    command: Sequence[str]
    env: dict[str, str]
    cwd: str | None = None
    output: str | None = None
    stdin: bool = False
    group: int = 0
    exit_file: str = ""


@dataclass(slots=True, kw_only=True)
class KeptCommand:
    """One command that was started.

    Attributes:
        returncode: None while that runs.
        reported: Whether the supervisor waits to hear that nothing of it is left.
    """

    ticket: str
    process: Process
    started_ns: int
    exit_file: str = ""
    asked: bool = False
    returncode: int | None = None
    reported: bool = False


@dataclass(slots=True)
class Keeper:
    """The commands of one supervisor and everything below them, seen from their parent.

    The supervisor uses it in its own process should its keeper be killed: it adopts the commands.

    Attributes:
        parent: Whether the commands are children of this process, so that it learns how they ended.
        helpers: Children that are none of a command's.
        older: Children that were there before, of a process that has a life of its own.
    """

    terms: KeeperTerms
    notify: Callable[[dict[str, Any]], None]
    cgroup: Cgroup | None = None
    parent: bool = True
    helpers: set[int] = field(default_factory=set)
    older: frozenset[int] | None = None
    commands: dict[str, KeptCommand] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)

    # -- beginning ---------------------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        """Start a command; report its process, or why it could not be started."""
        ticket, output, began_ns = launch.ticket, launch.output, SYSTEM.monotonic_ns()
        try:
            with contextlib.ExitStack() as opened:
                log = None if output is None else opened.enter_context(Path(output).open("ab"))
                started = subprocess.Popen(
                    launch.command, env=launch.env, cwd=launch.cwd, process_group=launch.group,
                    stdin=None if launch.stdin else subprocess.DEVNULL,
                    stdout=log, stderr=None if log is None else subprocess.STDOUT,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            code = getattr(error, "errno", None) or 0
            self.notify(
                {"event": "not_started", "ticket": ticket, "problem": problem, "code": code}
            )
            return
        started.returncode = 0  # Reaped below, with everything else, and not by this object.
        process = read_process(started.pid) or Process(started.pid, 0, os.getpid(), started.pid)
        self.commands[ticket] = KeptCommand(
            ticket=ticket, process=process, started_ns=began_ns, exit_file=launch.exit_file
        )
        self.notify(introduction(self.commands[ticket]))

    def adopt(self, introductions: Iterable[dict[str, Any]]) -> None:
        """Take over commands that another keeper started."""
        for known in introductions:
            process = Process(known["pid"], known["start"], 0, known["group"], known["session"])
            self.commands[known["ticket"]] = KeptCommand(
                ticket=known["ticket"], process=process, started_ns=known["started_ns"],
                exit_file=known["exit_file"], asked=known["asked"],
            )  # fmt: skip

    # -- looking -----------------------------------------------------------------------------

    def family(self, ticket: str | None = None) -> list[Process]:
        """Return what lives of a command, or of all: its descendants and whoever it left behind."""
        ours = [c for c in self.commands.values() if ticket in (None, c.ticket)]
        table = all_processes()
        self._add_fresh(table)
        roots = {c.process.pid for c in ours if _is_same(table.get(c.process.pid), c.process)}
        roots |= {orphan.pid for orphan in self._orphans(table) if self._owns(ticket, orphan)}
        if ticket is None or len(self.commands) == 1:
            roots |= self._grouped()
        found = below(table, roots)
        if not self.parent:  # Of what is not below us, its group is all there is to go by.
            # A number is not used again while a group or a session has it: it is the command's
            # where that lives, or where nobody has it.
            firsts = {pid for c in ours if (pid := c.process.pid) in roots or pid not in table}
            found |= {p.pid for p in table.values() if p.group in firsts or p.session in firsts}
        return [table[pid] for pid in found if pid in table and self._may_end(table[pid])]

    def _add_fresh(self, table: dict[int, Process]) -> None:
        """Add children that were not there when the table was read.

        One that has ended by now has been alive a moment ago, and may have started another: it
        counts until it is reaped, so that a chain of processes, each of which starts the next and
        ends, is never looked past.
        """
        if self.parent and self.older is None:
            for pid in own_children():
                known = table.get(pid)
                if known is None or known.is_dead:
                    table[pid] = Process(pid, 0, os.getpid())

    def _grouped(self) -> set[int]:
        return set() if self.cgroup is None else set(self.cgroup.members())

    def _orphans(self, table: dict[int, Process]) -> list[Process]:
        """Return what we have adopted: children that are neither commands nor our own."""
        if not self.parent:
            return []
        adopted = [table[p] for p in own_children() if p in table and self._is_orphan(p)]
        if self.older is not None:
            here = os.getsid(0)
            adopted = [p for p in adopted if p.pid not in self.older and p.session != here]
        return adopted

    def _owns(self, ticket: str | None, orphan: Process) -> bool:
        """Say whether an orphan is a command's; of one that nothing tells, whose it can only be.

        It can only be that of a command that was there when it was started. So it is ended with
        the last of those.
        """
        if ticket is None or len(self.commands) == 1:
            return True
        mark = mark_of(orphan.pid)
        for command in self.commands.values():
            pid = command.process.pid
            if orphan.group == pid or orphan.session == pid or (mark and mark == command.ticket):
                return command.ticket == ticket
        started = self.commands[ticket].process.start
        others = [c for c in self.commands.values() if c.returncode is None]
        return started <= orphan.start and not any(
            c.process.start <= orphan.start for c in others if c.ticket != ticket
        )

    def _may_end(self, process: Process) -> bool:
        if process.is_dead or process.pid == os.getpid() or process.pid in self.helpers:
            return False
        if not self.terms.spared:
            return True
        words = command_line(process.pid)
        return not any(module in words for module in self.terms.spared)

    # -- signalling --------------------------------------------------------------------------

    def signal(self, ticket: str, number: int, whom: Whom) -> None:
        """Send a signal to a command, to its group, or to everything of it."""
        command = self.commands.get(ticket)
        if command is None:
            return
        command.asked = True
        group = command.process.pid
        if whom == "command":
            if command.returncode is None:
                send(command.process, number)
            return
        family = self.family(ticket) if whom == "family" else []
        if number == signal.SIGKILL and whom == "family":
            self._kill(family, ticket)
            return
        if command.returncode is None or any(process.group == group for process in family):
            signal_group(group, number)
        for process in family:
            if process.group != group:
                send(process, number)

    def end_family(self, ticket: str | None = None) -> list[Process]:
        """Kill until two looks in a row find nothing, for a bounded time; return what is left."""

        def look() -> list[Process]:
            self._collect()
            return self.family(ticket) if self._anybody(ticket) else []

        return end_all(look, SYSTEM, lambda found: self._kill(found, ticket))

    def _anybody(self, ticket: str | None) -> bool:
        """Say at little cost whether a longer look is worth it.

        Whatever a dead command left behind has become a child of ours, so that where every child
        is another command there is nothing to look for.
        """
        wanted = self.commands.get(ticket or "")
        if wanted is None or wanted.returncode is None or not self.parent:
            return True
        return any(map(self._is_orphan, own_children()))

    def _kill(self, found: list[Process], ticket: str | None) -> None:
        if self.cgroup is not None and (ticket is None or self.terms.leftovers == "report"):
            self._clear_cgroup()
        for group in {process.group for process in found} - {0, os.getpgrp()}:
            # Reaches what a member is just starting. Nobody else can be in a group of a session
            # that a keeper or a command made, and where there is neither nothing is killed.
            signal_group(group, signal.SIGKILL)
        for process in found:
            send(process, signal.SIGKILL)
        for _ in range(_MOST_ROUNDS):
            if not self._kill_orphans(ticket):
                return

    def _kill_orphans(self, ticket: str | None) -> bool:
        """Kill what we have adopted, one by one and without a look at anybody else.

        Of a chain of processes, each of which starts the next and ends, a longer look only finds
        who is gone by then. Our own children keep their numbers until we reap them.
        """
        self._collect()
        found = False
        for pid in own_children() if self.parent and self.older is None else ():
            orphan = read_process(pid)
            if orphan is None or orphan.is_dead or not self._is_orphan(pid):
                continue
            if self._owns(ticket, orphan) and self._may_end(orphan):
                found = True
                os.kill(pid, signal.SIGKILL)
        return found

    def _is_orphan(self, pid: int) -> bool:
        """Say whether a child is neither a command that runs nor our own."""
        known = (c.process.pid for c in self.commands.values() if c.returncode is None)
        return pid not in self.helpers and pid not in known

    def _clear_cgroup(self) -> None:
        """Kill the whole group, after we and whoever is spared have left it."""
        assert self.cgroup is not None
        for pid in self.cgroup.members():
            process = read_process(pid)
            if process is not None and not process.is_dead and not self._may_end(process):
                self.cgroup.leave(pid)
        self.cgroup.kill()

    # -- ending ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Reap children; how commands ended is kept for ``reap``."""
        if self.older is None:
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])
            return
        for command in self.commands.values():  # Of the others somebody else may want to hear.
            pid = command.process.pid
            if command.returncode is None and pid not in self._ended:
                with contextlib.suppress(ChildProcessError):
                    ended = os.waitpid(pid, os.WNOHANG)
                    if ended[0]:
                        self._ended[pid] = os.waitstatus_to_exitcode(ended[1])

    def reap(self) -> None:
        """Record and report how commands ended."""
        self._collect()
        for command in list(self.commands.values()):
            code = self._ended.pop(command.process.pid, None)
            if command.returncode is None and code is not None:
                command.returncode = code
                self._conclude(command, code)
            if command.reported and self._is_gone(command.ticket):
                self.notify({"event": "gone", "ticket": command.ticket})
                command.reported = False
                del self.commands[command.ticket]

    def _is_gone(self, ticket: str) -> bool:
        """Say whether two looks in a row find nothing of a command."""
        if self.family(ticket):
            return False
        self._collect()
        return not self.family(ticket)

    def _conclude(self, command: KeptCommand, code: int) -> None:
        """Deal with what a command left behind, record its end, and report it."""
        left: list[Process] = []
        if self.terms.leftovers == "kill":
            left = self.end_family(command.ticket)
        elif self.terms.leftovers == "report":
            left = [] if self._is_gone(command.ticket) else self.family(command.ticket)
        record = ExitRecord(
            ticket=command.ticket, returncode=code, asked=command.asked,
            elapsed_ns=SYSTEM.monotonic_ns() - command.started_ns,
            ended_ns=SYSTEM.wall_ns(),
        )  # fmt: skip
        if command.exit_file:
            write_exit(Path(command.exit_file), record)
        command.reported = self.terms.leftovers == "report" and bool(left)
        if not command.reported:
            del self.commands[command.ticket]
        message: dict[str, Any] = {
            "event": "exited", "ticket": command.ticket, "returncode": code,
            "asked": command.asked, "elapsed_ns": record.elapsed_ns,
            "ended_ns": record.ended_ns, "left": len(left),
        }  # fmt: skip
        self.notify(message)

    def end_everything(self, notice_ns: int) -> list[Process]:
        """SIGTERM all commands, SIGKILL after the notice; return what does not end."""
        kill_ns = SYSTEM.monotonic_ns() + notice_ns
        for ticket in list(self.commands):
            self.signal(ticket, signal.SIGTERM, "family")
        while self._anything_left() and SYSTEM.monotonic_ns() < kill_ns:
            SYSTEM.sleep(LOOK_EVERY_S)
        left = self.end_family()
        self.reap()
        return left

    def _anything_left(self) -> bool:
        self.reap()
        return bool(self.commands) if self.parent else bool(self.family())


def introduction(command: KeptCommand) -> dict[str, Any]:
    """Return what another keeper, or an heir, has to know of a command."""
    process = command.process
    return {
        "event": "started", "ticket": command.ticket, "pid": process.pid, "start": process.start,
        "group": process.group, "session": process.session, "started_ns": command.started_ns,
        "exit_file": command.exit_file, "asked": command.asked,
    }  # fmt: skip


def _is_same(found: Process | None, expected: Process) -> bool:
    return found is not None and (not expected.start or found.start == expected.start)
