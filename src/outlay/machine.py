"""This machine and process: boot, GPUs and which of them are visible, nodes, start.

Read from the launcher's environment variables and ``/proc``, without commands. What the user stated
is handled by ``outlay.runs.options``. Standard library only: the keeper loads this in its own
interpreter.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Final

from outlay.files import first_line

_END_OF_DEVICES = "-1"
"""CUDA ignores this entry and all after it; alone, it hides every GPU."""
CUDA_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""The variable that makes only these GPUs visible to a process."""
_VISIBLE = (CUDA_VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DRIVER = Path("/proc/driver/nvidia/gpus")
_START_TIME = 19
"""Index of field 22 of ``/proc/<pid>/stat`` among those after the program's name: see proc(5)."""

SERVERS = frozenset({
    "IPython", "ipykernel", "ray", "dask", "distributed", "optuna", "celery", "rq", "joblib",
    "concurrent", "uvicorn", "gunicorn", "flask", "starlette", "tornado", "_pytest",
})  # fmt: skip
"""Packages that call training from a process that was not started only for it."""
_OWN_SERVERS = ("outlay.sweep", "outlay.demo", "outlay.cli", "multiprocessing.pool")


@cache
def boot_id() -> str:
    """Return an id that changes with every boot of this machine, or ""."""
    return first_line("/proc/sys/kernel/random/boot_id")


@cache
def machine_digest() -> str:
    """Return a digest of the machine id, which must not be published; "" if there is none."""
    machine = first_line("/etc/machine-id")
    return hashlib.sha256(machine.encode()).hexdigest()[:8] if machine else ""


def host_key() -> str:
    """Return the name of this host and what tells it from another of the same name: ``gpu1@3f2a``.

    That is the digest of the machine id, else of the boot, which changes: the host is then another.
    """
    boot = hashlib.sha256(boot_id().encode()).hexdigest()[:8]
    return f"{os.uname().nodename}@{machine_digest() or boot}"


# GPUs


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """How many GPUs this node has for the run, and the source of that (``gpus_source``)."""

    count: int = 0
    source: str = ""


def node_gpus(environ: Mapping[str, str]) -> NodeGpus:
    """Return the GPUs of this node: Slurm's allocation, else the visible ones, else all.

    If each process of a node sees one device, each has its own: collectives never share one.
    """
    if granted := whole_number(environ, "SLURM_GPUS_ON_NODE"):
        return NodeGpus(granted, "slurm")
    if listed := environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"):
        return NodeGpus(len(listed.split(",")), "slurm")
    text = next((environ[name] for name in _VISIBLE if name in environ), None)
    if text is None:
        return NodeGpus(driver_gpus(), "driver")
    visible, processes = len(device_names(text)), whole_number(environ, "LOCAL_WORLD_SIZE") or 1
    return NodeGpus(processes if visible == 1 else visible, "visible")


def device_names(text: str) -> tuple[str, ...]:
    """Parse a list of devices such as ``"0,2"``, up to the first ``-1``."""
    listed = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(takewhile(lambda name: name != _END_OF_DEVICES, listed))


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return how many NVIDIA GPUs this process may use; 0 if unknown."""
    if listed := environ.get(CUDA_VISIBLE, "").strip():
        return len(device_names(listed))
    return driver_gpus()


def driver_gpus() -> int:
    """Return how many GPUs NVIDIA's driver has; 0 without a driver."""
    return sum(1 for _ in _DRIVER.glob("*"))


def gpu_model() -> str:
    """Return this host's NVIDIA model from the driver's files, or ""."""
    for information in sorted(_DRIVER.glob("*/information")):
        with contextlib.suppress(OSError):
            for line in information.read_text().splitlines():
                if line.startswith("Model:"):
                    return line.removeprefix("Model:").strip()
    return ""


# Nodes, as the launcher numbers them


def node_count(environ: Mapping[str, str]) -> int:
    """Return how many nodes the run has: those of the Slurm step, else the job, else torchrun."""
    named = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")
    return next(filter(None, (whole_number(environ, name) for name in named)), 1)


def node_number(environ: Mapping[str, str]) -> int:
    """Return this node's number, from torchrun or Slurm."""
    return whole_number(environ, "GROUP_RANK") or whole_number(environ, "SLURM_NODEID") or 0


def init_start() -> str:
    """Return the start of process 1 in ticks since boot: it differs for each container start."""
    ticks = start_ticks(1)
    return "" if ticks is None else str(ticks)


# Start of the process


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Start times of this process and of its torchrun agent, UTC nanoseconds; 0 if unknown."""

    own_ns: int = 0
    agent_ns: int = 0


def process_start(environ: Mapping[str, str], now_ns: int, boot_ns: int) -> ProcessStart:
    """Return when this process was started; zeros if it was not started to train.

    ``now_ns`` is the present time on the result's axis, ``boot_ns`` the time since boot.
    """
    if _is_server(sys._getframe(1)):
        return ProcessStart()
    own_ns = _start_ns(os.getpid(), now_ns, boot_ns)
    is_elastic = "TORCHELASTIC_RUN_ID" in environ
    agent_ns = _start_ns(os.getppid(), now_ns, boot_ns) if is_elastic else 0
    return ProcessStart(own_ns, agent_ns if agent_ns <= own_ns else 0)


def own_command() -> tuple[str, ...]:
    """Return the command line of this process; empty if it was not started to train.

    A process spawned by multiprocessing has its parent's.
    """
    if _is_server(sys._getframe(1)):
        return ()
    is_spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
    return (sys.executable, *sys.argv) if is_spawned else tuple(sys.orig_argv)


def _is_server(frame: FrameType) -> bool:
    """Return whether the process was started for something other than the run that begins."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return True
    return any(
        module.partition(".")[0] in SERVERS or module.startswith(_OWN_SERVERS)
        for module in _callers(frame)
    )


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def _start_ns(pid: int, now_ns: int, boot_ns: int) -> int:
    ticks = start_ticks(pid)
    if ticks is None:
        return 0
    age_ns = boot_ns - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return now_ns - age_ns if age_ns > 0 else 0


def start_ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it cannot be read."""
    try:
        return int(read_stat(pid)[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None


def read_stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` after the program's name; raises OSError."""
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The program's name is in parentheses, and may contain anything.
        return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
    finally:
        os.close(descriptor)


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable's value as an integer; None if it is unset or not a number."""
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
