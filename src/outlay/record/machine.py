"""The machine and the process a run is on: its GPUs, its nodes, and since when it was started.

Read from environment variables and the kernel's files. It knows what a launcher says of nodes and
what devices this process may use; what the user stated is the subject of ``outlay.runs.options``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType

_NONE_FROM_HERE = "-1"
"""What CUDA takes for the end of the list; alone, it hides every GPU."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DRIVER = Path("/proc/driver/nvidia/gpus")
_PROC = Path("/proc")
_START_TIME = 19
"""Of the fields in ``/proc/<pid>/stat`` after the program's name, the 22nd of all: see proc(5)."""

SERVERS = frozenset({
    "IPython", "ipykernel", "ray", "dask", "distributed", "optuna", "celery", "rq", "joblib",
    "concurrent", "uvicorn", "gunicorn", "flask", "starlette", "tornado", "_pytest",
})  # fmt: skip
"""Packages that call training from a process that was started for something else, or for more."""
_OWN_SERVERS = ("outlay.sweep", "outlay.demo", "outlay.cli", "multiprocessing.pool")


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """How many GPUs this node has for the run, and who says so (``gpus_source``); 0 for none."""

    count: int = 0
    source: str = ""


def node_gpus(environ: Mapping[str, str]) -> NodeGpus:
    """Return the GPUs of this node: of Slurm's allocation, else the visible ones, else all.

    Where each process of a node sees one device, it is its own: collectives do not share any.
    """
    if granted := whole_number(environ, "SLURM_GPUS_ON_NODE"):
        return NodeGpus(granted, "slurm")
    if listed := environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"):
        return NodeGpus(len(listed.split(",")), "slurm")
    visible = visible_devices(environ)
    if visible is None:
        with contextlib.suppress(OSError):
            return NodeGpus(sum(1 for _ in _DRIVER.iterdir()), "driver")
        return NodeGpus()
    local_processes = whole_number(environ, "LOCAL_WORLD_SIZE") or 1
    return NodeGpus(local_processes if len(visible) == 1 else len(visible), "visible")


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the devices that a process may use, by name; None where nothing limits them."""
    text = next((environ[name] for name in _VISIBLE if name in environ), None)
    return None if text is None else device_names(text)


def device_names(text: str) -> tuple[str, ...]:
    """Return the devices of a list such as ``"0,2"``; CUDA reads none from ``-1`` on."""
    listed = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(takewhile(lambda name: name != _NONE_FROM_HERE, listed))


def node_count(environ: Mapping[str, str]) -> int:
    """Return how many nodes the run has: of the Slurm step, else of the job, else of torchrun."""
    named = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")
    return next(filter(None, (whole_number(environ, name) for name in named)), 1)


def node_number(environ: Mapping[str, str]) -> int:
    """Return which of the run's nodes this is, as torchrun or Slurm count them."""
    return whole_number(environ, "GROUP_RANK") or whole_number(environ, "SLURM_NODEID") or 0


def init_start() -> str:
    """Return when process 1 was started, in ticks since boot: each start of a container differs."""
    ticks = _start_ticks(1)
    return "" if ticks is None else str(ticks)


# When the process was started


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """When this process, and the agent of torchrun that started it, began; 0 where unknown."""

    own_ns: int = 0
    agent_ns: int = 0


def process_start(environ: Mapping[str, str], now_ns: int, boot_ns: int) -> ProcessStart:
    """Return when this process was started, if that was to train.

    ``now_ns`` is the present on the axis that the answer is to be on, ``boot_ns`` since boot.
    """
    if _serves_others(sys._getframe(1)):
        return ProcessStart()
    own_ns = _start_ns(os.getpid(), now_ns, boot_ns)
    is_elastic = "TORCHELASTIC_RUN_ID" in environ
    agent_ns = _start_ns(os.getppid(), now_ns, boot_ns) if is_elastic else 0
    return ProcessStart(own_ns, agent_ns if agent_ns <= own_ns else 0)


def own_command() -> tuple[str, ...]:
    """Return the words that this process was started with, if that was to train; else none.

    A process that multiprocessing spawned has those of its parent.
    """
    if _serves_others(sys._getframe(1)):
        return ()
    is_spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
    return (sys.executable, *sys.argv) if is_spawned else tuple(sys.orig_argv)


def _serves_others(frame: FrameType) -> bool:
    """Say whether the process was started for something else than the run that now begins."""
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
    ticks = _start_ticks(pid)
    if ticks is None:
        return 0
    age_ns = boot_ns - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return now_ns - age_ns if age_ns > 0 else 0


def _start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None where it cannot be read.

    The program's name stands in parentheses and may hold anything, parentheses included.
    """
    try:
        after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return int(after_name[_START_TIME])
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return None


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """Return what a variable counts; None where it is not set, or no number."""
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
