"""One step of a loop that outlay does not drive: ``with run.step(tokens=4096): ...``."""

from __future__ import annotations

from outlay.ledger import Step
from outlay.record.recorder import Recorder


class StepTimer:
    """Times a step; what it used may be set while it runs."""

    comm_bytes = 0
    energy_mj = 0
    flops = 0
    count = 1

    def __init__(self, recorder: Recorder, tokens: int, samples: int) -> None:
        self._recorder = recorder
        self.tokens = tokens
        self.samples = samples

    def __enter__(self) -> StepTimer:
        self.number = self._recorder.begin_step()
        self._begun_ns = self._recorder.monotonic_ns()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            return  # A step that failed did not happen; its time falls to `other`.
        recorder = self._recorder
        ended_ns = recorder.monotonic_ns()
        recorder.end_step(
            Step(
                t_ns=ended_ns + recorder.wall_offset_ns,
                step=self.number,
                dur_ns=ended_ns - self._begun_ns,
                tokens=self.tokens,
                samples=self.samples,
                comm_bytes=self.comm_bytes,
                energy_mj=self.energy_mj,
                flops=self.flops,
                count=self.count,
            )
        )
