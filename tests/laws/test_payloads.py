"""Laws of payloads: they become ledger records, however they are delivered and folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from goodput_log import START_S
from outlay.account.payloads import PayloadTranslator
from outlay.account.run import RunAccount
from outlay.errors import Finding
from outlay.ledger import Chunk, Record, Unknown, encode_line
from outlay.ledger.codec import decode_block

INSTANTS = st.integers(START_S, START_S + 12).map(float)
NUMBERS = st.integers(0, 5)


def edges(stem: str) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from([f"{stem}_start_time", f"{stem}_end_time"])
    return st.builds(lambda key, t: {key: t}, keys, INSTANTS)


STEPS = st.fixed_dictionaries({"step_count": NUMBERS, "step_start_time": INSTANTS})
OTHERS = st.one_of(
    edges("job"),
    edges("tpu_init"),
    edges("data_loading"),
    edges("custom_badput_event").map(lambda edge: {"custom_badput_event_type": "x"} | edge),
    st.fixed_dictionaries({"checkpoint_step": NUMBERS, "checkpoint_start_time": INSTANTS}),
    st.fixed_dictionaries(
        {
            "event_type": st.just("save"),
            "checkpoint_manager_blocking_start_time": st.none() | INSTANTS,
            "checkpoint_manager_blocking_duration_secs": st.sampled_from([1, 2.5, 1e10]),
        }
    ),
    st.fixed_dictionaries(
        {
            "active_slices": st.just(1),
            "total_slices": st.just(2),
            "available_slices": NUMBERS,
            "elastic_slice_counts_timestamp": INSTANTS,
        }
    ),
    st.sampled_from([{}, None, 7, {"step_count": 1}, {"step_count": -1, "step_start_time": 1.0}]),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Any]:
    """Payloads in any order: late, malformed, and some of them delivered again."""
    payloads: list[Any] = draw(st.lists(STEPS | OTHERS, max_size=14))
    again = draw(st.integers(0, len(payloads)))
    beyond = draw(st.integers(again, len(payloads)))
    return [*payloads, *payloads[again:beyond], *draw(st.lists(STEPS, max_size=3))]


def batches_of(payloads: list[Any], data: st.DataObject) -> list[list[Any]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payloads)), max_size=6)))
    bounds = zip([0, *cuts], [*cuts, len(payloads)], strict=True)
    return [payloads[begin:end] for begin, end in bounds]


def translated(batches: Sequence[Sequence[Any]]) -> tuple[list[Chunk], list[Finding]]:
    translator = PayloadTranslator("log")
    chunks = [chunk for batch in batches for chunk in translator.translate(batch)]
    return chunks, translator.findings()


def account_of(chunks: Sequence[Chunk]) -> object:
    """Return everything that an account holds after folding some records."""
    account = RunAccount()
    for chunk in chunks:
        account.fold(chunk.segment, chunk.records)
    return [
        (
            segment,
            (of.life.header, of.life.end, of.life.last_sign_ns),
            [column.tolist() for column in of.steps.all()],
            (list(of.spans), list(of.overlapped), of.open),
            (of.checkpoints, of.life.slices, of.work),
        )
        for segment, of in sorted(account.segments.items())
    ]


@given(logs(), st.data())
def test_result_does_not_depend_on_batches(payloads: list[Any], data: st.DataObject) -> None:
    whole, findings = translated([payloads])
    for batches in (batches_of(payloads, data), [[payload] for payload in payloads]):
        parts, findings_of_parts = translated(batches)
        assert account_of(parts) == account_of(whole)
        assert findings_of_parts == findings


@given(logs())
def test_steps_in_bulk_fold_as_step_records(payloads: list[Any]) -> None:
    chunks, _ = translated([payloads])
    assert account_of([Chunk(c.segment, list(c.records)) for c in chunks]) == account_of(chunks)


@given(logs())
def test_translated_records_can_be_encoded(payloads: list[Any]) -> None:
    for chunk in translated([payloads])[0]:
        assert [_written(record) for record in chunk.records] == list(chunk.records)


def _written(record: Record) -> Record:
    assert not isinstance(record, Unknown)
    (read,) = decode_block(encode_line(record, record.seq)).records
    return read
