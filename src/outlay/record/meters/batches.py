"""Tokens and samples of a batch, by its names and shapes; no value is read from an accelerator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

_IDS: Final = "input_ids"
_TOKEN_DTYPE: Final = re.compile(r"int(16|32|64)\b")
"""Eight bits are pixels or flags: a vocabulary does not fit into them."""
_NOT_INPUTS: Final = re.compile(
    r"(?:^|_)(?:index|indices|label|target|y|mask|length|position|type)s?(?:_|$)", re.IGNORECASE
)
"""Words in the names of what goes with the inputs."""
_SHOWN: Final = 4

# Tokens


def count_tokens(batch: Any) -> int | None:
    """Return a batch's tokens; None if its names and shapes do not tell.

    Padding counts, since it is computed. The tokens are the elements of ``input_ids``; else the
    samples of all views in a mapping that names them (``count_views``); else the elements of its
    input: an integer tensor of two or more dimensions. Of a list or tuple the first part is the
    input, and the labels after it do not count. Class labels, images and embeddings have no tokens.
    """
    if isinstance(batch, Mapping):
        return _tokens_of_mapping(batch)
    if isinstance(batch, list | tuple) and not hasattr(batch, _IDS):
        return _tokens_of_parts(batch)
    ids = getattr(batch, _IDS, None)
    if ids is not None:
        return _elements(ids)
    return _elements(batch) if _dimensions(batch) >= 2 and _holds_ids(batch.dtype) else None


def _tokens_of_mapping(batch: Mapping[Any, Any]) -> int | None:
    if batch.get(_IDS) is not None:
        return _elements(batch[_IDS])
    views = _views_of(batch)
    inputs = [
        value
        for key, value in batch.items()
        if _is_input(str(key)) and _is_data(value) and not any(value is view for view in views)
    ]
    counts = [count_tokens(value) for value in inputs]
    if views:
        return sum(map(count_views, views)) if not any(counts) else None
    # Inputs and targets have the same shape; two nested batches are not one twice.
    nested = any(isinstance(value, Mapping | list | tuple) for value in inputs)
    if len(set(counts)) != 1 or (nested and len(counts) > 1):
        return None
    return counts[0]


def _tokens_of_parts(batch: list[Any] | tuple[Any, ...]) -> int | None:
    if len(batch) > 1 and all(isinstance(part, Mapping) and _IDS in part for part in batch):
        # Samples that were not collated, or the batches of several loaders.
        counts = [count_tokens(part) for part in batch]
        return None if None in counts else sum(filter(None, counts))
    return count_tokens(batch[0]) if batch else None


def _elements(ids: Any) -> int | None:
    """Return how many numbers a tensor, or a list of lists of numbers, has."""
    if isinstance(ids, list | tuple):
        counts = [1 if isinstance(part, int) else _elements(part) for part in ids]
        return None if None in counts else sum(filter(None, counts))
    if callable(numel := getattr(ids, "numel", None)):  # Also of tensors with ragged shapes.
        return int(numel())
    shape = getattr(ids, "shape", None)
    return None if shape is None else math.prod(map(int, shape))


@cache
def _holds_ids(dtype: Any) -> bool:
    return _TOKEN_DTYPE.search(str(getattr(dtype, "name", dtype))) is not None


@cache
def _is_input(name: str) -> bool:
    return _NOT_INPUTS.search(name) is None


def _is_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return bool(value) and _is_data(value[0])
    return _dimensions(value) >= 2


def _dimensions(value: Any) -> int:
    """Return the dimensions of a tensor; 0 of anything else."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return 0
    return value.ndim if hasattr(value, "ndim") else len(value.shape)


# Samples


def count_views(batch: Any) -> int:
    """Return the number of samples in a batch, summed over all augmented views.

    For a tensor (anything with a ``shape``), its first dimension. For a mapping, the sum over its
    list of ``crops``; else over its entries named ``view...``; else its ``image``; else its first
    non-empty entry except ``index``. For a list or tuple, the sum of its parts, so a pair of images
    and labels needs its own function: ``run.steps(loader, tokens=lambda batch: len(batch[0]))``.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        if views := _views_of(batch):
            return sum(map(count_views, views))
        counts = (count_views(value) for key, value in batch.items() if key != "index")
        return next(filter(None, counts), 0)
    if isinstance(batch, list | tuple):
        return sum(map(count_views, batch))
    return 0


def count_samples(batch: Any) -> int:
    """Return a batch's samples: the first dimension of its first tensor."""
    if isinstance(batch, Mapping):
        shapes = [list(getattr(value, "shape", ())) for value in batch.values()]
        return int(next((shape[0] for shape in shapes if shape), 0))
    return count_views(batch[0] if isinstance(batch, list | tuple) and batch else batch)


def _views_of(batch: Mapping[Any, Any]) -> list[Any]:
    """Return the views that a mapping names; empty if it names none."""
    if isinstance(batch.get("crops"), list | tuple):
        return [batch["crops"]]
    views = [batch[key] for key in batch if str(key).startswith("view")]
    return views or [batch["image"]] if "image" in batch else views


# For messages


def describe_batch(batch: Any) -> str:
    """Return what a batch is made of, such as ``list of float32[16, 8] and int64[16]``."""
    if isinstance(batch, Mapping):
        parts = [f"{key}: {_part_text(batch[key])}" for key in list(batch)[:_SHOWN]]
    elif isinstance(batch, list | tuple):
        parts = [_part_text(part) for part in batch[:_SHOWN]]
    else:
        return _part_text(batch)
    more = [f"{len(batch) - _SHOWN:,} more"] if len(batch) > _SHOWN else []
    return f"{type(batch).__name__} of {', '.join([*parts, *more]) or 'nothing'}"


def _part_text(part: Any) -> str:
    if not hasattr(part, "shape") or not hasattr(part, "dtype"):
        return type(part).__name__
    dtype = str(getattr(part.dtype, "name", part.dtype)).rpartition(".")[2]
    return f"{dtype}[{', '.join(map(str, part.shape))}]"
