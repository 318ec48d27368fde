"""The name of a process in files, and whether the process that one names has ended.

It has host, pid and start time, since pids are reused, and the pid namespace, boot and machine,
since a container or a host of the same name has other processes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, Self

from outlay.proc.identity import PidScope, pid_scope, read_process


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process as holds and notes name it: ``HOST:PID:START:NAMESPACE-BOOT-MACHINE``.

    Lines of earlier versions end after the start time or the pid: ``scope`` is then None, and
    ``start`` may be 0.
    """

    host: str
    pid: int
    start: int = 0
    scope: PidScope | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the process that a text names; None if it names none."""
        match = _PROCESS.fullmatch(text)
        if match is None:
            return None
        host, pid, start, scope = match.groups()
        namespace, boot, machine = (scope or "--").split("-")
        known = PidScope(host, boot, namespace, machine) if scope else None
        return cls(host, int(pid), int(start or 0), known)

    def __str__(self) -> str:
        text = f"{self.host}:{self.pid}"
        if self.start:
            text += f":{self.start}"
            if self.scope is not None:
                text += f":{self.scope.namespace}-{self.scope.boot}-{self.scope.machine}"
        return text


_PROCESS = re.compile(
    "(.*?):([0-9]{1,10})(?::([0-9]{1,20})(?::([0-9]*-[0-9a-f]*-[0-9a-f]*))?)?", re.DOTALL
)
_HOST_NAMESPACE = "4026531836"
"""The pid namespace of every Linux host, outside all containers."""


def this_process() -> str:
    """Return this process's name in holds and notes."""
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    found, scope = read_process(pid), _short_scope()
    return str(ProcessName(scope.host, pid, 0 if found is None else found.start, scope))


os.register_at_fork(after_in_child=_name_of.cache_clear)


def _short_scope() -> PidScope:
    """Return the scope of this process's pids as a name has it."""
    scope = pid_scope()
    namespace = "".join(filter(str.isdigit, scope.namespace))
    return scope._replace(boot=scope.boot[:8], namespace=namespace)


def state_of_process(process: str) -> Literal["alive", "ended", "unknown"]:
    """Return whether a process runs; unknown on another host or in another pid namespace."""
    named, here = ProcessName.parse(process), _short_scope()
    if named is None or named.host != here.host:
        return "unknown"
    if named.scope is None:
        # An earlier version's. Inside a container its pid may be that of a process outside.
        if here.namespace not in ("", _HOST_NAMESPACE):
            return "unknown"
    elif named.scope != here:
        return "ended" if here.is_later_boot_of(named.scope) else "unknown"
    return "ended" if _is_gone(named) else "alive"


def _is_gone(named: ProcessName) -> bool:
    found = read_process(named.pid)
    if found is not None:
        return found.is_dead or bool(named.start and found.start != named.start)
    try:
        os.kill(named.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended."""
    return state_of_process(process) == "ended"


def is_here(process: str) -> bool:
    """Return whether a process is known to run on this machine."""
    return state_of_process(process) == "alive"
