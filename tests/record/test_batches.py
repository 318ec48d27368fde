"""Tokens and samples of a batch: the common forms of batches, with NumPy and with torch."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlay
from outlay.clock import SYSTEM
from outlay.integrations.driver import LoopCallback
from outlay.ledger import Step, read_run
from outlay.record.meters.batches import count_samples, count_tokens, count_views, describe_batch

IDS, LONGER = np.zeros((2, 8), np.int64), np.zeros((2, 9), np.int64)
FLAGS, PIXELS = np.zeros((2, 8), bool), np.zeros((2, 3, 4, 4), np.uint8)
FLOATS, EMBEDDED = np.zeros((2, 8)), np.zeros((2, 8, 4), np.float32)
CLASSES = np.zeros(2, np.int64)
Named = namedtuple("Named", ["mask", "input_ids"])


@dataclass
class Encoded:
    """A batch as an object."""

    labels: Any
    input_ids: Any


COUNTED: dict[str, tuple[Any, int]] = {
    "a tensor": (IDS, 16),
    "short integers": (IDS.astype(np.int32), 16),
    "unsigned integers": (IDS.astype(np.uint16), 16),
    "inputs and targets": ((IDS, IDS), 16),
    "a list of inputs and targets": ([IDS, LONGER], 16),
    "inputs, masks and classes": ((IDS, FLAGS, CLASSES), 16),
    "inputs alone in a list": ([IDS], 16),
    "input_ids": ({"input_ids": IDS, "attention_mask": FLAGS, "labels": LONGER}, 16),
    "input_ids after images": ({"image": PIXELS, "input_ids": IDS}, 16),
    "input_ids of another mapping": (UserDict({"labels": CLASSES, "input_ids": IDS}), 16),
    "packed input_ids": ({"input_ids": np.zeros(40, np.int64)}, 40),
    "input_ids as lists": ({"input_ids": [[1, 2, 3], [4, 5]]}, 5),
    "input_ids as a list of tensors": ({"input_ids": [np.zeros(3, int), np.zeros(4, int)]}, 7),
    "an object with input_ids": (Encoded(LONGER, IDS), 16),
    "a named tuple with input_ids": (Named(FLAGS, IDS), 16),
    "inputs and labels by name": ({"tokens": IDS, "labels": LONGER, "name": ["a", "b"]}, 16),
    "inputs and outputs of one shape": ({"inputs": IDS, "outputs": IDS}, 16),
    "a mapping and labels": (({"input_ids": IDS}, CLASSES), 16),
    "nested": ({"text": {"input_ids": IDS}, "id": ["a", "b"], "index": CLASSES}, 16),
    "nested in a tuple": (((IDS, FLAGS), LONGER), 16),
    "samples that are not collated": ([{"input_ids": [1, 2]}, {"input_ids": [3]}], 3),
    "crops": ({"crops": [FLOATS, FLOATS], "image": FLOATS}, 4),
    "views": ({"view1": FLOATS, "view2": FLOATS, "label": CLASSES}, 4),
    "an image": ({"image": FLOATS, "label": CLASSES}, 2),
}
UNTOLD: dict[str, Any] = {
    "floats": FLOATS,
    "embeddings": EMBEDDED,
    "images and classes": [EMBEDDED, CLASSES],
    "pixels": (PIXELS, CLASSES),
    "flags": FLAGS,
    "classes": CLASSES,
    "two views": [FLOATS, FLOATS],
    "images and classes by name": {"pixel_values": EMBEDDED, "labels": CLASSES},
    "images and captions": {"pixel_values": EMBEDDED, "labels": IDS},
    "an image and a caption": {"image": PIXELS, "caption": IDS},
    "two inputs of different length": {"source": IDS, "translation": LONGER},
    "integers beside floats": {"features": FLOATS, "categories": IDS},
    "two nested batches": {"chosen": {"ids": IDS}, "rejected": {"ids": IDS}},
    "prompts": [{"prompt": "one"}, {"prompt": "two"}],
    "text": "text",
    "a number": 3,
    "nothing": None,
    "an empty list": [],
    "an empty mapping": {},
}


def with_torch(batch: Any) -> Any:
    """Return a batch with its arrays as tensors of torch."""
    import torch

    match batch:
        case np.ndarray() if batch.dtype == np.uint16:
            return torch.from_numpy(batch.astype(np.int16))
        case np.ndarray():
            return torch.from_numpy(batch)
        case Encoded():
            return Encoded(with_torch(batch.labels), with_torch(batch.input_ids))
        case Named():
            return Named(*map(with_torch, batch))
        case dict() | UserDict():
            return type(batch)({key: with_torch(value) for key, value in batch.items()})
        case list() | tuple():
            return type(batch)(map(with_torch, batch))
        case _:
            return batch


LIBRARIES = [
    pytest.param(lambda batch: batch, id="numpy"),
    pytest.param(with_torch, id="torch", marks=pytest.mark.xdist_group("torch")),
]


@pytest.mark.parametrize("of", LIBRARIES)
@pytest.mark.parametrize(("batch", "tokens"), COUNTED.values(), ids=COUNTED)
def test_the_tokens_of_a_batch_are_those_of_its_inputs(
    batch: Any, tokens: int, of: Callable[[Any], Any]
) -> None:
    assert count_tokens(of(batch)) == tokens


@pytest.mark.parametrize("of", LIBRARIES)
@pytest.mark.parametrize("batch", UNTOLD.values(), ids=UNTOLD)
def test_a_batch_that_does_not_tell_its_tokens_has_none(
    batch: Any, of: Callable[[Any], Any]
) -> None:
    assert count_tokens(of(batch)) is None


@pytest.mark.xdist_group("torch")
def test_tokens_of_sequences_of_unequal_length_are_counted_without_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # Else torch does.
    ragged = torch.nested.nested_tensor(
        [torch.zeros(3, dtype=torch.long), torch.zeros(5, dtype=torch.long)], layout=torch.jagged
    )
    assert count_tokens(ragged) == 8


TWO, THREE = np.zeros((2, 8)), np.zeros((3, 8))


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (TWO, 2),
        ([TWO, TWO], 4),
        ((TWO, [TWO, THREE]), 7),
        ({"crops": [TWO, TWO, THREE], "image": TWO}, 7),
        ({"view1": TWO, "view2": TWO, "image": TWO, "index": THREE}, 4),
        ({"image": THREE, "label": TWO}, 3),
        ({"index": THREE, "nested": {"image": TWO}}, 2),
        ({"index": THREE}, 0),
        ({"name": "x", "input_ids": THREE}, 3),
        (np.float64(3.0), 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_a_batch_holds_the_samples_of_all_its_views(batch: Any, samples: int) -> None:
    assert count_views(batch) == samples


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (FLOATS, "float64[2, 8]"),
        ((EMBEDDED, CLASSES), "tuple of float32[2, 8, 4], int64[2]"),
        ({"x": FLOATS, "name": "a"}, "dict of x: float64[2, 8], name: str"),
        ([1, 2, 3, 4, 5, 6], "list of int, int, int, int, 2 more"),
        ([], "list of nothing"),
        (3, "int"),
    ],
)
def test_a_batch_is_described_by_its_shapes(batch: Any, text: str) -> None:
    assert describe_batch(batch) == text


# Through a loop of one's own, and through what the trainers' callbacks share


def steps_of(run_dir: Path) -> list[Step]:
    return [record for record in read_run(run_dir).records if isinstance(record, Step)]


def train_own(run_dir: Path, batch: Any, **options: Any) -> None:
    with outlay.run("m", dir=run_dir, **options) as run:
        for _ in run.steps([batch] * 5):
            pass


def train_driven(run_dir: Path, batch: Any, **options: Any) -> None:
    shared = LoopCallback(
        {"model": "m", "dir": run_dir, **options}, SYSTEM, count_tokens, count_samples
    )
    driver = shared.driver
    driver.start()
    try:
        for _ in range(5):
            tokens, samples = shared._size_of(batch)
            if driver.ask(tokens=tokens, samples=samples):
                break
            driver.begin_step()
            driver.end_step(tokens=tokens, samples=samples)
    finally:
        driver.finish()


LOOPS = [train_own, train_driven]


@pytest.mark.parametrize("train", LOOPS)
@pytest.mark.parametrize(("batch", "tokens"), COUNTED.values(), ids=COUNTED)
def test_a_limit_on_tokens_stops_a_loop_over_any_form(
    batch: Any, tokens: int, train: Callable[..., None], tmp_path: Path
) -> None:
    train(tmp_path, batch, budget=outlay.iso_tokens(3 * tokens + 1))
    assert [step.tokens for step in steps_of(tmp_path)] == [tokens] * 3


@pytest.mark.parametrize("train", LOOPS)
@pytest.mark.parametrize("batch", UNTOLD.values(), ids=UNTOLD)
def test_limited_tokens_that_cannot_be_counted_are_refused_before_the_first_step(
    batch: Any, train: Callable[..., None], tmp_path: Path
) -> None:
    with pytest.raises(outlay.BudgetRefused, match=r"max_tokens is set, but a batch .*tokens="):
        train(tmp_path, batch, budget=outlay.iso_tokens(100))
    assert steps_of(tmp_path) == []


@pytest.mark.parametrize("train", LOOPS)
def test_tokens_that_cannot_be_counted_do_not_disturb_a_loop_without_a_limit_on_them(
    train: Callable[..., None], tmp_path: Path
) -> None:
    train(tmp_path, (FLOATS, CLASSES), budget=outlay.iso_time("1h"))
    assert [step.tokens for step in steps_of(tmp_path)] == [0] * 5


def test_a_function_that_counts_no_tokens_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with (
        pytest.raises(outlay.BudgetRefused, match="tokens= counts none in the first batch"),
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(100)) as run,
    ):
        list(run.steps([CLASSES], tokens=lambda batch: 0 * len(batch)))
    assert steps_of(tmp_path) == []
