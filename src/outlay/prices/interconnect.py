"""Whether the GPUs of an offer are joined by NVLink, from what its name and its card say."""

from __future__ import annotations

import re

from outlay.prices.gpus import family_of

# Boards of SXM form are wired with NVLink, and NVL cards come bridged. RunPod names the SXM
# board of the H100 by its HBM3 memory; the newest chips exist in no other form.
_WIRED = re.compile(r"SXM|NVL\b|HBM3|\bG?B[23]00\b|\bG?H200\b", re.IGNORECASE)


def nvlink_between(name: str, gpu: str, gpu_count: int) -> bool | None:
    """Return True or False where it is certain, None where it depends on the machine.

    Args:
        name: The vendor's, form factor included.
        gpu: The card's canonical name.
        gpu_count: Of the offer; one GPU has nothing to be joined to.
    """
    cards = family_of(gpu)
    if gpu_count < 2 or not cards:
        return None
    if not cards[0].nvlink:
        return False
    return True if _WIRED.search(name) else None
