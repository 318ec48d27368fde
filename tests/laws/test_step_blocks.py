"""Decoding a block in bulk gives exactly what decoding it line by line gives."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ledger_strategies as some
from ledgers import START_NS, Segment, scratch_dir, to_lines
from outlay.account import step_blocks
from outlay.account.columns import MetricColumns, StepColumns, Work
from outlay.account.run import RunAccount, SegmentAccount
from outlay.account.step_blocks import StepBlock, decode_steps
from outlay.goodput.attempt import OwnTimes
from outlay.ledger import LedgerReader, Metric, Record, Step, encode_line
from outlay.ledger.codec import Decoded, decode_block

NAMES = ("wait_ns", "tokens", "samples", "comm_bytes", "energy_mj", "flops", "count")


@pytest.fixture(autouse=True, scope="module")
def short_blocks_in_bulk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_blocks, "_MIN_LINES", 1)
        yield


def sealed(body: bytes) -> bytes:
    return body + b',"crc":"%08x"}\n' % crc32(body)


def written(seq: int, text: str, kind: str = "step") -> bytes:
    """Return a sealed line of a step, or a metric, with some text for its numbers."""
    return sealed(b'{"v":1,"seq":%d,"kind":"%b",%b' % (seq, kind.encode(), text.encode()))


Parts = tuple[list[list[int]], Work, list[tuple[str, list[str]]], list[Record]]


def split(decoded: Decoded) -> Parts:
    """Return what a fold uses of a block: steps and metrics by column, totals, other records."""
    records = decoded.records
    if isinstance(records, StepBlock):
        columns, metrics, others = records.steps, records.metrics, list(records.others)
    else:
        columns = StepColumns.of([record for record in records if isinstance(record, Step)])
        metrics = defaultdict(MetricColumns)
        for record in records:
            if isinstance(record, Metric):
                metrics[record.name].append(record)
        others = [record for record in records if not isinstance(record, Step | Metric)]
    return (
        [column.tolist() for column in columns.all()],
        columns.work,
        [(name, values_of(each)) for name, each in metrics.items()],
        others,
    )


def values_of(columns: MetricColumns) -> list[str]:
    """Return all values of a metric as texts: a zero has a sign, and no number equals NaN."""
    rows = zip(columns.t_ns, columns.value, columns.step, strict=True)
    return [f"{t_ns} {value!r} {step}" for t_ns, value, step in rows]


def assert_decoded_alike(block: bytes) -> None:
    bulk, slow = decode_steps(block), decode_block(block)
    assert bulk.complaints == slow.complaints
    assert len(bulk.records) == len(slow.records)
    assert list(bulk.records) == list(slow.records)
    assert split(bulk) == split(slow)
    if bulk.first_seq is not None:
        assert [r.seq for r in slow.records] == list(
            range(bulk.first_seq, bulk.first_seq + block.count(b"\n"))
        )


METRICS = ["loss", "loss", "val/acc5", 'a "quoted" name', "verlust-\u00fc", '",x:1', "", "step"]
VALUES: list[float | str] = [
    "nan", "inf", "-inf", 0.0, -0.0, 1.0, 10.5, -2.25, 0.1, 1 / 3, -1 / 3, 2.5e-05, 3e-7, 1e22,
    5e-324, 1.7976931348623157e308, 123456789.12345679, 0.30000000000000004, 9007199254740993.0,
]  # fmt: skip
EDGES = [0, 1, 9, 10, 9999, 10_000, 10**18, 4_609_999_999_999_999_999, 2**62 - 1]


@st.composite
def plain_blocks(draw: st.DrawFn) -> list[bytes]:
    """Lines as a loop writes them: the same names in each, the numbers alike or not.

    Hypothesis draws how many lines and which names; a draw for each number would cost more than
    the test.
    """
    names = draw(st.sets(st.sampled_from(NAMES)))
    metrics = draw(st.lists(st.sampled_from(METRICS), max_size=2))
    first = draw(st.integers(min_value=0, max_value=10**7))
    count = draw(st.integers(min_value=1, max_value=8))
    kind = draw(st.sampled_from(["any", "one digit", "four digits"]))
    chance = random.Random(draw(st.integers(0, 2**63)))

    def number() -> int:
        if kind == "one digit":
            return chance.randint(0, 9)
        if kind == "four digits":
            return chance.randint(1000, 9999)
        return chance.choice([*EDGES, chance.getrandbits(62), chance.getrandbits(62)])

    def step() -> Step:
        fields = {name: number() for name in sorted(names | {"step", "dur_ns"})}
        if "count" in fields:
            fields["count"] = fields["count"] or 1
        return Step(t_ns=chance.choice([*EDGES, chance.getrandbits(62)]), **fields)

    def metric() -> Metric:
        known = chance.random() < 0.9
        return Metric(
            t_ns=number(),
            name=chance.choice(metrics),
            value=chance.choice(VALUES) if kind == "any" else chance.uniform(-9, 9),
            step=number() if known else None,
        )

    def line(seq: int) -> bytes:
        return encode_line(metric() if metrics and chance.random() < 0.5 else step(), seq)

    return [line(seq) for seq in range(first, first + count)]


@given(lines=plain_blocks())
@settings(deadline=None, max_examples=200)
def test_steps_read_in_bulk_are_those_read_one_by_one(lines: list[bytes]) -> None:
    assert_decoded_alike(b"".join(lines))


unusual_lines = st.one_of(
    some.records.map(lambda record: lambda seq: encode_line(record, seq)),
    st.sampled_from(
        [
            '"t_ns":5,"step":1,"dur_ns":1.0',
            '"t_ns":5,"step":1.5,"dur_ns":1',
            '"t_ns":5,"step":01,"dur_ns":1',
            '"t_ns":05,"step":1,"dur_ns":10',
            '"t_ns":5,"step":-1,"dur_ns":1',
            '"t_ns":5,"step": 1,"dur_ns":1',
            '"t_ns":5,"step":1,"dur_ns":1,"new":7',
            '"t_ns":5,"step":1,"dur_ns":1,"count":1',
            '"t_ns":5,"step":1,"dur_ns":1,"count":0',
            '"t_ns":5,"step":1,"dur_ns":4611686018427387904',
            '"t_ns":5,"step":9223372036854775808,"dur_ns":1',
            '"t_ns":5,"step":1,"step":2,"dur_ns":1',
            '"t_ns":5,"dur_ns":1,"step":1',
            '"t_ns":5,"step":1',
            '"t_ns":5,"step":1,"dur_ns":1,"flops":100000000000000000000',
            '"t_ns":"5","step":1,"dur_ns":1',
        ]
    ).map(lambda text: lambda seq: written(seq, text)),
    st.sampled_from(
        [
            '"t_ns":5,"name":"loss","value":1',
            '"t_ns":5,"name":"loss","value":-0,"step":3',
            '"t_ns":5,"name":"loss","value":01.5',
            '"t_ns":5,"name":"loss","value":1.',
            '"t_ns":5,"name":"loss","value":.5',
            '"t_ns":5,"name":"loss","value":1e999',
            '"t_ns":5,"name":"loss","value":2.5E3',
            '"t_ns":5,"name":"loss","value":2.5e+3',
            '"t_ns":5,"name":"loss","value":1.00000000000000000001',
            '"t_ns":5,"name":"loss","value":9999999999999999999',
            '"t_ns":5,"name":"loss","value":1.5,"step":-3',
            '"t_ns":5,"name":"loss","value":1.5,"step":9223372036854775807',
            '"t_ns":5,"name":"loss","value":1.5,"new":3',
            '"t_ns":5,"name":"loss","value":1.5,"value":2.5',
            '"t_ns":5,"value":1.5,"name":"loss"',
            '"t_ns":5,"name":"lo\\u0073s","value":1.5',
            '"t_ns":5,"name":"lo\tss","value":1.5',
            '"t_ns":9300000000000000000,"name":"loss","value":1.5',
            '"t_ns":5,"name":"loss"',
            '"t_ns":5,"name":"loss","value":"1.5"',
        ]
    ).map(lambda text: lambda seq: written(seq, text, "metric")),
    st.just(lambda seq: sealed(b'{"v":1,"seq":%d,"kind":"news","t_ns":5' % seq)),
    st.just(lambda seq: sealed(b'{"v":2,"seq":%d,"kind":"step","t_ns":5' % seq)),
    st.binary(max_size=30).map(lambda junk: lambda _: junk.replace(b"\n", b"") + b"\n"),
)


@given(lines=plain_blocks(), odd=st.lists(st.tuples(st.integers(0, 9), unusual_lines), max_size=3))
@settings(deadline=None, max_examples=300)
def test_unusual_lines_are_decoded_as_by_the_codec(
    lines: list[bytes], odd: list[tuple[int, object]]
) -> None:
    assert_decoded_alike(b"".join(with_unusual_lines(lines, odd)))


def with_unusual_lines(lines: Sequence[bytes], odd: list[tuple[int, object]]) -> list[bytes]:
    """Replace some lines by unusual ones with the same sequence numbers."""
    mixed = list(lines)
    for at, line in odd:
        place = at % len(mixed)
        seq = decode_block(lines[place]).records[0].seq
        mixed[place] = line(seq)  # type: ignore[operator]
    return mixed


@given(
    lines=plain_blocks(),
    order=st.lists(st.integers(min_value=0, max_value=7), min_size=1, max_size=10),
)
@settings(deadline=None)
def test_lost_repeated_and_swapped_lines_are_decoded_as_by_the_codec(
    lines: list[bytes], order: list[int]
) -> None:
    assert_decoded_alike(b"".join(lines[place % len(lines)] for place in order))


@given(
    lines=plain_blocks(),
    flips=st.lists(st.tuples(st.integers(min_value=0), st.integers(0, 7)), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=200)
def test_flipped_bits_are_decoded_as_by_the_codec(
    lines: list[bytes], flips: list[tuple[int, int]]
) -> None:
    block = bytearray(b"".join(lines))
    for at, bit in flips:
        block[at % len(block)] ^= 1 << bit
    assert_decoded_alike(bytes(block) if block.endswith(b"\n") else bytes(block) + b"\n")


def usual_lines(count: int) -> list[bytes]:
    """Return the lines of a loop whose steps take about 50 ms, with notes between them."""
    draw = random.Random(7)
    lines = []
    for seq in range(count):
        t_ns = START_NS + seq * 50_000_000 + draw.randrange(1_000_000)
        step = Step(
            t_ns=t_ns,
            step=seq,
            dur_ns=draw.randrange(9_000_000, 90_000_000),
            wait_ns=draw.randrange(200_000),
            tokens=draw.randrange(900, 4096),
        )
        usual = draw.random() < 0.99
        lines.append(
            encode_line(step, seq)
            if usual
            else sealed(b'{"v":1,"seq":%d,"kind":"note","t_ns":%d' % (seq, t_ns))
        )
    return lines


def test_every_flipped_bit_of_a_line_is_one_complaint_about_it() -> None:
    lines = usual_lines(5)
    start = sum(map(len, lines[:3]))
    for offset in range(start, start + len(lines[3]) - 1):
        for bit in range(8):
            block = bytearray(b"".join(lines))
            block[offset] ^= 1 << bit
            if block[offset] == ord("\n"):
                continue  # It would make two lines of one.
            complaints = decode_steps(bytes(block)).complaints
            assert [line for line, _ in complaints] == [3], (offset, bit)


def test_a_usual_log_is_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks, "_MIN_LINES", 256)
    block = b"".join(usual_lines(5000))
    records = decode_steps(block).records
    assert isinstance(records, StepBlock)
    assert len(records.steps.end) + len(records.others) == len(records) == 5000
    assert_decoded_alike(block)


def lines_with_metrics(count: int) -> list[bytes]:
    """Return the lines of a loop that logs its loss at each step and its accuracy at some."""
    draw = random.Random(7)
    records: list[Step | Metric] = []
    for number in range(count):
        t_ns = START_NS + number * 50_000_000 + draw.randrange(1_000_000)
        records.append(Step(t_ns=t_ns, step=number, dur_ns=draw.randrange(9_000_000, 90_000_000)))
        loss = 2.5 + draw.gauss(0, 0.3)
        records.append(Metric(t_ns=t_ns + 900, name="loss", value=loss, step=number))
        if number % 40 == 0:
            records.append(Metric(t_ns=t_ns + 950, name="accuracy", value=round(1 / loss, 3)))
    return [encode_line(record, seq) for seq, record in enumerate(records)]


def test_metrics_of_a_usual_log_are_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_blocks, "_MIN_LINES", 256)
    block = b"".join(lines_with_metrics(4000))
    by_line: list[int] = []

    def counted(lines: bytes) -> Decoded:
        by_line.append(lines.count(b"\n"))
        return decode_block(lines)

    monkeypatch.setattr(step_blocks, "decode_block", counted)
    records = decode_steps(block).records
    assert isinstance(records, StepBlock)
    assert {name: len(each.value) for name, each in records.metrics.items()} == {
        "loss": 4000,
        "accuracy": 100,
    }
    assert sum(by_line) < 1000  # Of 8,100 lines: the accuracy, rare lengths, one of each shape.
    monkeypatch.undo()
    assert_decoded_alike(block)


def test_records_of_a_block_are_indexed_in_line_order() -> None:
    lines = usual_lines(200)
    records = decode_steps(b"".join(lines)).records
    whole = decode_block(b"".join(lines)).records
    assert (records[0], records[-1], records[3:5]) == (whole[0], whole[-1], whole[3:5])


def test_sums_beyond_64_bits_are_exact() -> None:
    steps = [Step(t_ns=9, step=n, dur_ns=1, flops=4 * 10**18) for n in range(50)]
    records = decode_steps(b"".join(encode_line(s, n) for n, s in enumerate(steps))).records
    assert isinstance(records, StepBlock)
    assert records.steps.work.flops == 200 * 10**18


def folds(run_dir: Path, *, bulk: bool) -> tuple[RunAccount, list[str]]:
    reader = LedgerReader(run_dir, decode_steps) if bulk else LedgerReader(run_dir)
    fold = RunAccount()
    for chunk in reader.poll():
        fold.fold(chunk.segment, chunk.records)
    return fold, [str(finding) for finding in reader.findings()]


def contents_of(fold: SegmentAccount) -> tuple[object, ...]:
    columns = [column.tolist() for column in fold.steps.all()]
    own = [part.tolist() for part in OwnTimes(fold).before()]
    metrics = [(name, values_of(each)) for name, each in fold.metrics.items()]
    spans = list(fold.spans)
    return columns, own, fold.work, fold.life, spans, fold.open, fold.checkpoints, metrics


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A segment as a crash leaves it: its lines damaged, lost or torn anywhere."""
    segment = Segment()
    for _ in range(draw(st.integers(min_value=1, max_value=12))):
        segment.step(draw(st.sampled_from([1, 2, 0.5, 20])), tokens=draw(st.integers(0, 2000)))
        for value in draw(st.lists(st.sampled_from(VALUES), max_size=2)):
            segment.add(Metric(t_ns=segment.now_ns, name="loss", value=value))
        if draw(st.integers(0, 4)) == 0:
            segment.checkpoint()
    kept = [line for line in to_lines(segment.records) if draw(st.integers(0, 19))]
    log = bytearray(b"".join(kept))
    if log and draw(st.booleans()):
        log[draw(st.integers(0, len(log) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(log[: len(log) - draw(st.integers(0, 150))])


@given(log=logs())
@settings(deadline=None, max_examples=150)
@example(log=b"")
def test_damaged_logs_fold_the_same_in_bulk_and_by_line(log: bytes) -> None:
    with scratch_dir() as folder:
        path = Segment().write(Path(folder))
        path.write_bytes(log)
        bulk, bulk_findings = folds(Path(folder), bulk=True)
        slow, slow_findings = folds(Path(folder), bulk=False)
    assert bulk_findings == slow_findings
    assert {s: contents_of(f) for s, f in bulk.segments.items()} == {
        s: contents_of(f) for s, f in slow.segments.items()
    }


@pytest.mark.parametrize(
    "odd",
    [
        "0",
        "05",
        "5:",
        "/5",
        "5e",
        "-5",
        "5.",
        " 5",
        "5 ",
        "9300000000000000000",
        "9223372036854775808",
        "4611686018427387904",
    ],
)
@pytest.mark.parametrize("name", ["tokens", "count", "flops"])
def test_invalid_numbers_are_left_to_the_codec(odd: str, name: str) -> None:
    usual = "2" * len(odd)
    texts = [f'"t_ns":7,"step":3,"dur_ns":2,"{name}":{number}' for number in (usual, odd, usual)]
    assert_decoded_alike(b"".join(written(seq, text) for seq, text in enumerate(texts)))


@pytest.mark.parametrize("number", ["-0", "0", "7", "9999999999999999999", "1e308", "1e309", "07"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_unusual_values_of_a_metric_are_read_as_by_the_codec(sign: str, number: str) -> None:
    texts = [f'"t_ns":7,"name":"loss","value":{value}' for value in ("1.5", sign + number, "2.5")]
    lines = [written(seq, text, "metric") for seq, text in enumerate(texts)]
    assert_decoded_alike(b"".join(lines))
