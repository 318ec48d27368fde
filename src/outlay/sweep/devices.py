"""Which GPUs there are to share out between runs, and whether the runs fit on them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from outlay.errors import Finding, InvalidValue
from outlay.record.machine import device_names
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.plan import Plan


def find_devices(stated: str | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs to share out: those named, those visible, those of the driver, or None.

    Raises:
        InvalidValue: They are named in no way that can be understood.
    """
    text = stated if stated is not None else environ.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        names = device_names(text)
        if stated is not None and (not names or len(set(names)) < len(names)):
            raise InvalidValue("--gpus", stated, 'GPUs, each once, such as "0,1,2,3"')
        return names or None
    with contextlib.suppress(OSError):
        count = sum(1 for _ in Path("/proc/driver/nvidia/gpus").iterdir())
        return tuple(map(str, range(count))) or None
    return None


def check_fit(plan: Plan, devices: tuple[str, ...] | None, elsewhere: Collection[str]) -> None:
    """Refuse a plan with runs that need more GPUs on this machine than there are.

    Args:
        plan: What is to be run.
        devices: What there is; None where nobody shares them out.
        elsewhere: The engines whose runs are not on this machine.

    Raises:
        InvalidGrid: Names each such run.
    """
    if devices is None:
        return
    findings = [
        Finding(
            source=plan.grid.source,
            message=f"{run.id} needs {run.world_size} GPUs here, and there are {len(devices)}",
        )
        for run in plan.runs
        if run.world_size > len(devices)
        and "CUDA_VISIBLE_DEVICES" not in run.env
        and run.settings.engine not in elsewhere
    ]
    if findings:
        raise InvalidGrid(findings)
