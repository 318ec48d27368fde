"""Counts the bytes of torch.distributed's collectives: DDP's, FSDP2's and the user's own.

Counts each collective's *payload* on this rank, the bytes of its input. The bytes on the wire
depend on the algorithm; ``algo_bytes`` estimates them by the ring model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from outlay.errors import MissingExtra

# c10d operator -> (collective, position of its input; the process group is the next argument).
# DDP's reducer, FSDP2 and every function of torch.distributed call one of these; functional
# collectives (torch.distributed._functional_collectives) do not, and are not counted.
SEEN: Final = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "allgather_coalesced_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "allgather_into_tensor_coalesced_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
}


class Traffic(NamedTuple):
    """A kind of collective and the size of its group."""

    operation: str
    group_size: int


class CollectiveMeter:
    """Counts payload bytes from ``start`` to ``stop``; only collectives are slowed down."""

    def __init__(self) -> None:
        self.payload_bytes: dict[Traffic, int] = {}
        self._taken = 0
        self._library: Any = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin counting.

        Raises:
            MissingExtra: torch is not installed.
        """
        try:
            import torch
        except ImportError:
            raise MissingExtra("counting collectives", "torch") from None
        if self._library is None and torch.distributed.is_available():
            self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
            for name, (operation, position) in SEEN.items():
                kernel = _counting_kernel(self._count, name, operation, position)
                self._library.impl(name, kernel, "Autograd", with_keyset=True)

    def stop(self) -> None:
        """Stop counting; the totals stay."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def take(self) -> int:
        """Return the payload bytes since the last call."""
        with self._lock:
            total = sum(self.payload_bytes.values())
            taken, self._taken = total - self._taken, total
        return taken

    def algo_bytes(self) -> int:
        """Return the bytes that a ring would have sent from this rank, by formula."""
        return sum(algo_bytes(traffic, size) for traffic, size in self.payload_bytes.items())

    def _count(self, traffic: Traffic, size: int) -> None:
        if getattr(_uncounted, "depth", 0):
            return
        with self._lock:
            self.payload_bytes[traffic] = self.payload_bytes.get(traffic, 0) + size


def algo_bytes(traffic: Traffic, payload_bytes: int) -> int:
    """Return the bytes one rank sends for a payload when the group is a ring, rounded down.

    All-reduce sends 2(p-1)/p of its input, all-gather p-1 times it, reduce-scatter and all-to-all
    (p-1)/p of it (Thakur, Rabenseifner and Gropp, 2005); the others send it once.
    """
    size = traffic.group_size
    match traffic.operation:
        case "all_reduce":
            return 2 * (size - 1) * payload_bytes // size
        case "all_gather":
            return (size - 1) * payload_bytes
        case "reduce_scatter" | "all_to_all":
            return (size - 1) * payload_bytes // size
        case _:
            return payload_bytes


@contextmanager
def uncounted() -> Iterator[None]:
    """Exclude this thread's collectives from every meter: they are outlay's own."""
    _uncounted.depth = getattr(_uncounted, "depth", 0) + 1
    try:
        yield
    finally:
        _uncounted.depth -= 1


_uncounted = threading.local()


def _counting_kernel(
    count: Callable[[Traffic, int], None], name: str, operation: str, position: int
) -> Callable[..., Any]:
    """Return a kernel that counts and then calls torch's."""
    import torch

    overload = getattr(torch.ops.c10d, name).default
    below_autograd = torch._C._after_autograd_keyset
    unbox = torch.distributed.ProcessGroup.unbox

    def kernel(keyset: Any, *args: Any) -> Any:
        group_size = unbox(args[position + 1]).size()
        count(Traffic(operation, group_size), _payload(args[position]))
        return overload.redispatch(keyset & below_autograd, *args)

    return kernel


def _payload(tensors: Any) -> int:
    if isinstance(tensors, list | tuple):
        return sum(map(_payload, tensors))
    return int(tensors.numel() * tensors.element_size())
