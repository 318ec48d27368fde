"""The keeper: the parent of supervised commands, between them and their supervisor.

It is a child subreaper, so that descendants which daemonise, rename themselves, start a session or
clear their environment stay below it. It starts and signals commands on the supervisor's orders and
writes each exit record before it reports the exit. When the supervisor dies (end of input) or
misses its deadline, the keeper ends all commands, or starts a successor if its terms name one.
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
from outlay.proc.cgroup import Cgroup
from outlay.proc.exit_record import ExitRecord, fields_of, write_exit
from outlay.proc.identity import (
    Process,
    all_processes,
    below,
    end_all,
    is_outliving,
    mark_of,
    own_children,
    read_process,
    send,
    signal_group,
)

Leftovers = Literal["kill", "report", "leave"]
SignalTarget = Literal["command", "group", "tree"]

LOOK_EVERY_S: Final = 0.05
_MOST_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperTerms:
    """What a keeper does without orders.

    Attributes:
        session: The prefix of its marks, and the name of its cgroup.
        notice_ns: From SIGTERM to SIGKILL when the supervisor closes or misses its deadline.
        orphan_notice_ns: The same when the supervisor has died.
        leftovers: Whether processes that an ended command left behind are killed, reported to the
            supervisor, or left alone.
        spared: Directories in which the processes are registered that may outlive a command.
        cgroup: Whether to put commands into a cgroup, where that is allowed.
        successor: The command to start when the supervisor has died, instead of ending the
            commands; the descriptors of the two pipes to the keeper are appended to its arguments.
        afterwards: The command to run after all were ended because the supervisor had died.
        record: The file with the process tree's record, removed at its end.
    """

    session: str
    notice_ns: int = 5 * 10**9
    orphan_notice_ns: int = 2 * 10**9
    leftovers: Leftovers = "kill"
    spared: tuple[str, ...] = ()
    cgroup: bool = True
    successor: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    record: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command to start.

    Attributes:
        ticket: Its name in orders and events.
        output: A file to append its output to; None: inherited.
        stdin: Whether it inherits standard input; otherwise /dev/null.
        group: The process group to put it into; 0 for its own.
        exit_file: The path of its exit record.
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
    """A command that was started.

    Attributes:
        shared_group: A process group that it shares with others, who must not be killed; or 0.
        returncode: None while it runs.
        reported: Whether it ended and left processes, whose end is still to be reported.
    """

    ticket: str
    process: Process
    started_ns: int
    exit_file: str = ""
    shared_group: int = 0
    asked: bool = False
    returncode: int | None = None
    reported: bool = False


@dataclass(slots=True)
class Keeper:
    """The commands of one supervisor and their descendants, as seen by their parent.

    The supervisor uses it itself after it has adopted the commands of a killed keeper.

    Attributes:
        parent: Whether the commands are children of this process, which then reaps them.
        helpers: Children that belong to no command.
        older: In a supervisor's process, its children from before; None in a keeper's own process.
    """

    terms: KeeperTerms
    notify: Callable[[dict[str, Any]], None]
    cgroup: Cgroup | None = None
    parent: bool = True
    helpers: set[int] = field(default_factory=set)
    older: frozenset[int] | None = None
    commands: dict[str, KeptCommand] = field(default_factory=dict)
    _shared_groups: set[int] = field(default_factory=set)
    _ended: dict[int, int] = field(default_factory=dict)

    # -- starting ----------------------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        """Start a command; send an event with its process, or with the error."""
        ticket, output, began_ns = launch.ticket, launch.output, SYSTEM.monotonic_ns()
        try:
            with contextlib.ExitStack() as opened:
                log = None if output is None else opened.enter_context(Path(output).open("ab", 0))
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
        started.returncode = 0  # Reaped by ``_collect`` like any child, not by this object.
        process = read_process(started.pid) or Process(started.pid, 0, os.getpid(), started.pid)
        self.commands[ticket] = KeptCommand(
            ticket=ticket, process=process, started_ns=began_ns, exit_file=launch.exit_file,
            shared_group=launch.group,
        )  # fmt: skip
        self._shared_groups.add(launch.group)
        self.notify(started_event(self.commands[ticket]))

    def adopt(self, started: Iterable[dict[str, Any]]) -> None:
        """Take over commands that another keeper started, by their events."""
        for known in started:
            fields = {name: known[name] for name in KeptCommand.__slots__}
            process = Process(**known["process"])
            self.commands[known["ticket"]] = KeptCommand(**fields | {"process": process})
            self._shared_groups.add(known["shared_group"])

    # -- process trees ----------------------------------------------------------------------------

    def process_tree(self, ticket: str | None = None) -> list[Process]:
        """Return the live processes of a command, or of all: descendants and orphans."""
        ours = [c for c in self.commands.values() if ticket in (None, c.ticket)]
        table = all_processes()
        self._add_fresh(table)
        roots = {c.process.pid for c in ours if _is_same(table.get(c.process.pid), c.process)}
        roots |= {orphan.pid for orphan in self._orphans(table) if self._owns(ticket, orphan)}
        if self.cgroup is not None and (ticket is None or len(self.commands) == 1):
            roots |= set(self.cgroup.members())
        found = below(table, roots)
        if not self.parent:  # Orphans are not our children: find them by group and session.
            # The kernel does not reuse a pid while a group or session has it: the id is the
            # command's if that is alive, or if no process has the pid.
            firsts = {pid for c in ours if (pid := c.process.pid) in roots or pid not in table}
            found |= {p.pid for p in table.values() if p.group in firsts or p.session in firsts}
        found -= below(table, filter(self._is_spared, found))
        return [table[pid] for pid in found if pid in table and self._may_end(table[pid])]

    def _add_fresh(self, table: dict[int, Process]) -> None:
        """Add children that are not in the table, or dead in it, as alive.

        A dead one may have forked just before: it counts until it is reaped, so that a chain of
        processes, each of which forks the next and exits, is never missed.
        """
        if self.parent and self.older is None:
            for pid in own_children():
                known = table.get(pid)
                if known is None or known.is_dead:
                    table[pid] = Process(pid, 0, os.getpid())

    def _orphans(self, table: dict[int, Process]) -> list[Process]:
        if not self.parent:
            return []
        adopted = [table[p] for p in own_children() if p in table and self._is_orphan(p)]
        if self.older is not None:
            here = os.getsid(0)
            adopted = [p for p in adopted if p.pid not in self.older and p.session != here]
        return adopted

    def _owns(self, ticket: str | None, orphan: Process) -> bool:
        """Return whether an orphan belongs to a command, by group, session or mark.

        An orphan without any of these may belong to any command that is older than it, and so
        belongs to the last of those that runs.
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
        return not self._is_spared(process.pid)

    def _is_spared(self, pid: int) -> bool:
        return bool(self.terms.spared) and is_outliving(self.terms.spared, pid)

    # -- signalling --------------------------------------------------------------------------

    def signal(self, ticket: str, number: int, whom: SignalTarget) -> None:
        """Signal a command, its process group, or its whole process tree."""
        command = self.commands.get(ticket)
        if command is None:
            return
        command.asked = True
        group = command.process.pid
        if whom == "command":
            if command.returncode is None:
                send(command.process, number)
            return
        tree = self.process_tree(ticket) if whom == "tree" else []
        if number == signal.SIGKILL and whom == "tree":
            self._kill(tree, ticket)
            return
        if command.returncode is None or any(process.group == group for process in tree):
            signal_group(group, number)
        for process in tree:
            if process.group != group:
                send(process, number)

    def end_tree(self, ticket: str | None = None) -> list[Process]:
        """Kill a process tree, or all, within a timeout; return what is left."""

        def look() -> list[Process]:
            self._collect()
            return self.process_tree(ticket) if self._may_have_tree(ticket) else []

        return end_all(look, SYSTEM, lambda found: self._kill(found, ticket))

    def _may_have_tree(self, ticket: str | None) -> bool:
        """Return cheaply whether a scan of all processes is needed.

        What a dead command left behind has become a child of ours: if every child is another
        command, there is nothing to find.
        """
        wanted = self.commands.get(ticket or "")
        if wanted is None or wanted.returncode is None or not self.parent:
            return True
        return any(map(self._is_orphan, own_children()))

    def _kill(self, found: list[Process], ticket: str | None) -> None:
        if self.cgroup is not None and (ticket is None or self.terms.leftovers == "report"):
            self._clear_cgroup()
        groups = {process.group for process in found} - self._shared_groups
        for group in groups - {0, os.getpgrp()}:
            # Reaches a fork in progress. The groups of sessions that a keeper or a command created
            # have no other members.
            signal_group(group, signal.SIGKILL)
        for process in found:
            send(process, signal.SIGKILL)
        for _ in range(_MOST_ROUNDS):
            if not self._kill_orphans(ticket):
                return

    def _kill_orphans(self, ticket: str | None) -> bool:
        """Kill adopted children one by one; return whether there were any.

        A scan of all processes is too slow for a chain of processes, each of which forks the next
        and exits. The pids of our children are not reused before we reap them.
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
        """Return whether a child is neither a running command nor a helper."""
        known = (c.process.pid for c in self.commands.values() if c.returncode is None)
        return pid not in self.helpers and pid not in known

    def _clear_cgroup(self) -> None:
        """Kill the whole cgroup, after this process and spared ones have left it."""
        assert self.cgroup is not None
        members = self.cgroup.members()
        spared = below(all_processes(), filter(self._is_spared, members))
        for pid in members:
            process = read_process(pid)
            may_end = process is None or process.is_dead or self._may_end(process)
            if not may_end or pid in spared:
                self.cgroup.leave(pid)
        self.cgroup.kill()

    # -- ending ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Reap children; the exit codes of commands are kept for ``reap``."""
        if self.older is None:
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])
            return
        for command in self.commands.values():  # Other children are not ours to reap.
            pid = command.process.pid
            if command.returncode is None and pid not in self._ended:
                with contextlib.suppress(ChildProcessError):
                    ended = os.waitpid(pid, os.WNOHANG)
                    if ended[0]:
                        self._ended[pid] = os.waitstatus_to_exitcode(ended[1])

    def reap(self) -> None:
        """Record and report commands that have ended."""
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
        """Return whether two scans in a row find nothing of a command."""
        if self.process_tree(ticket):
            return False
        self._collect()
        return not self.process_tree(ticket)

    def _conclude(self, command: KeptCommand, code: int) -> None:
        """Kill or count a command's leftovers, record its end, and report it."""
        left: list[Process] = []
        if self.terms.leftovers == "kill":
            left = self.end_tree(command.ticket)
        elif self.terms.leftovers == "report":
            left = [] if self._is_gone(command.ticket) else self.process_tree(command.ticket)
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
        self.notify({"event": "exited", "left": len(left), **fields_of(record)})

    def end_everything(self, notice_ns: int) -> list[Process]:
        """SIGTERM all commands, SIGKILL after the notice; return what does not end."""
        kill_ns = SYSTEM.monotonic_ns() + notice_ns
        for ticket in list(self.commands):
            self.signal(ticket, signal.SIGTERM, "tree")
        while self._anything_left() and SYSTEM.monotonic_ns() < kill_ns:
            SYSTEM.sleep(LOOK_EVERY_S)
        left = self.end_tree()
        self.reap()
        return left

    def _anything_left(self) -> bool:
        self.reap()
        return bool(self.commands) if self.parent else bool(self.process_tree())


def started_event(command: KeptCommand) -> dict[str, Any]:
    """Return the event with all that another keeper, or a successor, needs to know of a command."""
    return {"event": "started", **fields_of(command), "process": fields_of(command.process)}


def _is_same(found: Process | None, expected: Process) -> bool:
    return found is not None and (not expected.start or found.start == expected.start)
