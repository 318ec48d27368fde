"""What the GPUs of a wrapped command do, sampled from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence

from outlay.record import Recorder
from outlay.record.meters.nvml import NvmlSource


def find_gpus() -> list[NvmlSource]:
    """Return the GPUs that the command may use; none where NVML cannot be read."""
    try:
        return NvmlSource.detect(os.environ)
    except OSError:
        return []


class GpuLoad:
    """Adds up how long GPUs were busy and what they used since the last record."""

    def __init__(self, recorder: Recorder, gpus: Sequence[NvmlSource]) -> None:
        self._recorder = recorder
        self._gpus = gpus
        self._at_ns = recorder.now_ns()
        self._busy_ns = 0
        self._energy_uj = 0

    def sample(self) -> None:
        """Look once; a GPU that does not answer is not seen to do anything."""
        now_ns = self._recorder.now_ns()
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        for gpu in self._gpus:
            try:
                self._busy_ns += round(gpu.busy() * elapsed_ns) // len(self._gpus)
                self._energy_uj += gpu.take_uj()
            except OSError:
                continue

    def record(self) -> None:
        """Write what was seen since the last record, as a sign of life."""
        used_mj, self._energy_uj = divmod(self._energy_uj, 1000)
        self._recorder.heartbeat(gpu_busy_ns=self._busy_ns, energy_mj=used_mj)
        self._busy_ns = 0
