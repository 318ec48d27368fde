"""The ranks of a torch.distributed training, as a group that can agree."""

from __future__ import annotations

import sys
from typing import Any, Final

from outlay.budget.agreement import AgreementLost, Group
from outlay.record.meters.collectives import uncounted

PAYLOAD_BYTES: Final = 2048
_LENGTH_BYTES: Final = 4


class TorchGroup:
    """All ranks of the default process group; works with every backend that can all-gather.

    With NCCL the payload travels through this rank's current device.
    """

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else "cpu"
        self._sent = torch.zeros(PAYLOAD_BYTES, dtype=torch.uint8, device=device)
        self._received = [torch.zeros_like(self._sent) for _ in range(self.size)]

    def gather(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, in rank order."""
        framed = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload
        assert len(framed) <= PAYLOAD_BYTES
        # A copy that may be written to, as frombuffer warns about any other.
        content = self._torch.frombuffer(bytearray(framed), dtype=self._torch.uint8)
        self._sent[: len(framed)] = content
        try:
            with uncounted():
                self._dist.all_gather(self._received, self._sent)
        except RuntimeError as error:  # What every backend raises for a lost peer or a time-out.
            raise AgreementLost(self.rank, error) from error
        return [_unframe(tensor.cpu().numpy().tobytes()) for tensor in self._received]


def _unframe(framed: bytes) -> bytes:
    length = int.from_bytes(framed[:_LENGTH_BYTES], "little")
    return framed[_LENGTH_BYTES : _LENGTH_BYTES + length]


def torch_group() -> Group | None:
    """Return the ranks that train together, or None where torch.distributed is not in use.

    Looks at what is loaded already: a training that does not use torch pays nothing.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return TorchGroup() if dist.get_world_size() > 1 else None
