"""Every reader on damaged input: a value, a finding or a documented error, and nothing else.

``make fuzz`` runs the same for an hour. What broke something once is in ``kept``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_targets import TARGETS, TOKENS, edited
from outlay.errors import OutlayError

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "190"))  # Times the targets: 5,000.
KEPT = sorted((Path(__file__).parent / "kept").glob("*/*"))
edits = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=55),
        st.floats(min_value=0, max_value=1, exclude_max=True),
        st.sampled_from(TOKENS) | st.binary(max_size=6),
    ),
    min_size=1,
    max_size=8,
)


def read(name: str, raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as where, contextlib.suppress(OutlayError):
        TARGETS[name].read(raw, Path(where))


@pytest.mark.parametrize("name", [*TARGETS])
def test_good_input_is_read(name: str) -> None:
    for seed in TARGETS[name].seeds:
        with tempfile.TemporaryDirectory() as where:
            if name != "vendor listing":  # Good for one vendor is another's damage.
                TARGETS[name].read(seed, Path(where))


@pytest.mark.parametrize("name", [*TARGETS])
@pytest.mark.timeout(7200)
@given(data=st.data(), changes=edits)
@settings(max_examples=EXAMPLES)
def test_damaged_input_ends_in_a_value_or_a_documented_error(
    name: str, data: st.DataObject, changes: list[tuple[int, float, bytes]]
) -> None:
    raw = data.draw(st.sampled_from(TARGETS[name].seeds))
    for kind, place, token in changes:
        raw = edited(raw, kind, place, token)
    read(name, raw)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_broke_a_reader_once_does_not_again(path: Path) -> None:
    read(path.parent.name.replace("-", " "), path.read_bytes())


def test_inputs_that_broke_something_are_kept() -> None:
    assert {path.parent.name.replace("-", " ") for path in KEPT} <= set(TARGETS)
    assert KEPT
