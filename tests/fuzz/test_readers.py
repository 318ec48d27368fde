"""Every reader on damaged input: a value, a finding or a documented error, and nothing else.

``make fuzz`` runs the same for an hour. What broke something once is in ``kept``.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_targets import TARGETS, mutated
from ledgers import scratch_dir
from outlay.errors import OutlayError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "190"))  # Times the targets: 5,000.
KEPT = sorted((Path(__file__).parent / "kept").glob("*/*"))


def read(name: str, raw: bytes) -> None:
    with scratch_dir() as where, contextlib.suppress(OutlayError):
        TARGETS[name].read(raw, Path(where))


@pytest.mark.parametrize("name", [*TARGETS])
def test_good_input_is_read(name: str) -> None:
    for seed in TARGETS[name].seeds:
        with scratch_dir() as where:
            if name != "vendor listing":  # Good for one vendor is another's damage.
                TARGETS[name].read(seed, Path(where))


@pytest.mark.parametrize("name", [*TARGETS])
@pytest.mark.timeout(7200)
@given(seed=st.integers(0, 2**63))
@settings(max_examples=EXAMPLES)
def test_damaged_input_ends_in_a_value_or_a_documented_error(name: str, seed: int) -> None:
    # One draw of a seed: a draw for each change takes longer than the reader.
    chance = random.Random(seed)
    read(name, mutated(chance.choice(TARGETS[name].seeds), chance))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_inputs_that_once_broke_a_reader_are_read(path: Path) -> None:
    read(path.parent.name.replace("-", " "), path.read_bytes())


def test_inputs_that_broke_something_are_kept() -> None:
    assert {path.parent.name.replace("-", " ") for path in KEPT} <= set(TARGETS)
    assert KEPT
