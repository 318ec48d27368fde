"""How many tokens a batch holds, by its shape: every augmented view counts.

Needs no torch: anything with a ``shape`` is a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def count_tokens(batch: Any) -> int:
    """Return the samples of a batch over all its views.

    A tensor holds its first dimension. A mapping holds its list of ``crops``; else its entries
    named ``view...``; else its ``image``; else the first entry that holds anything, ``index``
    aside. A list or tuple holds the sum of its parts, so a pair of images and labels needs a
    function of its own: ``run.steps(loader, tokens=lambda batch: len(batch[0]))``.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        return _count_mapping(batch)
    if isinstance(batch, list | tuple):
        return sum(map(count_tokens, batch))
    return 0


def _count_mapping(batch: Mapping[Any, Any]) -> int:
    if isinstance(batch.get("crops"), list | tuple):
        return count_tokens(batch["crops"])
    views = [batch[key] for key in batch if str(key).startswith("view")]
    if views:
        return sum(map(count_tokens, views))
    if "image" in batch:
        return count_tokens(batch["image"])
    counts = (count_tokens(value) for key, value in batch.items() if key != "index")
    return next(filter(None, counts), 0)
