"""What this machine gives its runs: GPUs, each to one run at a time, and ports of their own."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.sweep.engines.ports import Ports
from outlay.sweep.plan import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one attempt was given; nothing of it for one that runs elsewhere.

    Attributes:
        port: Where its processes meet; None where the node finds one.
        devices: The GPUs that it may use; None leaves that to the environment.
    """

    port: int | None = None
    devices: tuple[str, ...] | None = None


ELSEWHERE = Share()


class Room:
    """What is free.

    Args:
        devices: The GPUs to share out; None leaves CUDA_VISIBLE_DEVICES alone.
    """

    def __init__(self, devices: tuple[str, ...] | None) -> None:
        self._free = None if devices is None else list(devices)
        self._ports = Ports()

    def has_gpus_for(self, run: PlannedRun) -> bool:
        """Say whether a run need not wait for GPUs."""
        free = self._free_for(run)
        return free is None or len(free) >= run.world_size

    def take(self, run: PlannedRun) -> Share:
        """Return what a run may use, for as long as it is not given back.

        Raises:
            NoPortFree: There is no port left.
        """
        port, free = self._ports.reserve(), self._free_for(run)
        if free is None:
            return Share(port=port)
        devices = tuple(free[: run.world_size])
        del free[: run.world_size]
        return Share(port=port, devices=devices)

    def give_back(self, share: Share) -> None:
        """Let others have it."""
        if share.port is not None:
            self._ports.release(share.port)
        if self._free is not None:
            self._free += share.devices or ()

    def _free_for(self, run: PlannedRun) -> list[str] | None:
        """Return the GPUs that a run can be given; None where it is not for us to give any."""
        return None if "CUDA_VISIBLE_DEVICES" in run.env else self._free
