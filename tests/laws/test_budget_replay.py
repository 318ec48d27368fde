"""Law: replay from the last statement equals replay of everything.

Under rollbacks, restarts, several ranks, prices that change, spans that never end, and damage.
Where a record is lost the two readings still agree with each other, and neither gives budget back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from outlay.account.run import RunAccount
from outlay.account.step_blocks import decode_steps
from outlay.budget import gate
from outlay.budget.fold import FORM, ProcessSpend, join_attempts
from outlay.budget.gate import StatementWriter
from outlay.budget.history import History, read_history, read_since_statements
from outlay.budget.report import replay
from outlay.budget.surviving import Surviving
from outlay.budget.usage import clocks_of
from outlay.clock import ManualClock
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    CheckpointCommitted,
    Heartbeat,
    KnownRecord,
    LedgerReader,
    Metric,
    Note,
    Price,
    PriceChanged,
    SegmentId,
    SegmentWriter,
    SpanBegun,
    SpanEnded,
    Step,
    encode_line,
    ledger_dir,
    read_run,
    segment_paths,
)
from outlay.ledger.codec import decode_block

S = 10**9
Op = tuple[str, int]

OPS = ("step",) * 6 + (
    "rollback", "checkpoint", "span", "span_end", "heartbeat", "price", "metric", "event",
)  # fmt: skip
processes = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 9)), max_size=40)
currencies = st.sampled_from(["USD", "EUR"])
attempts = st.lists(st.lists(processes, min_size=1, max_size=2), min_size=1, max_size=3)


@dataclass
class Process:
    """Writes one segment by a script, with statements."""

    run_dir: Path
    segment: SegmentId
    next_step: int = 0
    currency: str = "USD"
    now_ns: int = 0
    spans: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now_ns = self.segment.start_ns
        header = AttemptStarted(
            t_ns=self.now_ns, rank=self.segment.rank, pid=self.segment.pid, boot_id="same",
            price=Price(3_600_000, self.currency), launch=str(self.segment.start_ns),
        )  # fmt: skip
        path = ledger_dir(self.run_dir) / self.segment.file_name
        self.writer = SegmentWriter(path, header, ManualClock())
        self.statements = StatementWriter(self.segment, header, self.writer)

    def put(self, record: KnownRecord) -> int:
        seq = self.writer.append(record)
        self.statements.observe(replace(record, seq=seq), seq)
        return seq

    def play(self, op: str, size: int) -> None:
        self.now_ns += (size + 1) * S
        t_ns = self.now_ns
        match op:
            case "step" | "rollback":
                if op == "rollback":
                    self.next_step = max(0, self.next_step - size)
                self.put(
                    Step(
                        t_ns=t_ns, step=self.next_step, dur_ns=S, wait_ns=size * S, tokens=size,
                        flops=size % 3, energy_mj=size, count=1 + size // 8,
                    )
                )  # fmt: skip
                self.next_step += 1 + size // 8
            case "checkpoint":
                self.put(CheckpointCommitted(t_ns=t_ns, step=max(0, self.next_step - 1)))
            case "span":
                name = ("evaluation", "checkpoint_save", "logging", "mine")[size % 4]
                self.spans.append(self.put(SpanBegun(t_ns=t_ns, name=name)))
            case "span_end" if self.spans:
                self.put(SpanEnded(t_ns=t_ns, begun=self.spans.pop()))
            case "heartbeat":
                self.put(Heartbeat(t_ns=t_ns, energy_mj=size))
            case "price":
                price = Price(3_600_000 * size, "GBP" if size == 7 else self.currency)
                self.put(PriceChanged(t_ns=t_ns, price=price, gpus=1))
            case "event":
                money = {f"max_cost_{self.currency.lower()}": size + 1}
                terms = {"mode": "iso_tokens", "limits": {"max_tokens": size + 1, **money}}
                self.put(BudgetEvent(t_ns=t_ns, event="set", data=terms))
            case _:
                self.put(Metric(t_ns=t_ns, name="loss", value=0.5, step=size))

    def end(self) -> None:
        self.statements.catch_up(state=True)
        self.put(AttemptEnded(t_ns=self.now_ns, status="failed"))


@contextmanager
def statements_every(every: int) -> Iterator[None]:
    """Make statements after so many records, so that small logs have several."""
    with (
        mock.patch.object(gate, "EVERY", every),
        mock.patch.object(gate, "FOLD_EVERY", 2),
    ):
        yield


def write_run(
    run_dir: Path, script: list[list[list[Op]]], ends: list[bool], currency: str = "USD"
) -> None:
    start_ns, resume = 100 * S, 0
    for index, ranks in enumerate(script):
        last_ns = start_ns
        for rank, ops in enumerate(ranks):
            segment = SegmentId(start_ns, rank, "", 10 * index + rank)
            process = Process(run_dir, segment, resume, currency)
            for op, size in ops:
                process.play(op, size)
            if ends[index % len(ends)]:
                process.end()
            process.writer.close()
            last_ns = max(last_ns, process.now_ns)
        start_ns, resume = last_ns + 7 * S, max(0, resume + 3)


def values_of(spend: ProcessSpend) -> tuple[object, ...]:
    return (
        spend.life.segment, spend.life.header, spend.life.end, spend.life.prices,
        spend.life.last_sign_ns, spend.surviving.runs(), spend.surviving.next_step,
        spend.surviving.lowest, spend.executed, spend.periods, clocks_of(spend.periods),
        spend.first_step_ns, spend.before_steps_ns,
    )  # fmt: skip


def figures(history: History) -> list[object]:
    """Everything that a budget makes of a history, at any place that a run may resume at."""
    spend = history.spend(10**6 * S)
    totals = [
        spend.total(charge=charge, below=below)
        for charge in ("training", "all")
        for below in (None, 0, 1, 5, 20)
    ]
    spends = sorted(history.spends, key=lambda each: each.life.segment)
    return [totals, history.stated, [values_of(each) for each in spends]]


def by_column(history: History) -> list[object]:
    """What a replay by column has to agree with a replay record by record in."""
    spend = history.spend(10**6 * S)
    totals = [
        spend.total(charge=charge, charge_cost=charge, below=below)
        for charge in ("training", "all")
        for below in (None, 0, 1, 5, 20)
    ]
    each = [
        (
            one.life.segment, one.executed, one.surviving.lowest, one.surviving.below(4),
            [(p.since_ns, {k: v for k, v in p.spent_ns.items() if v}) for p in one.periods],
            [event.event for event in one.events], one.first_step_ns, one.before_steps_ns,
        )
        for one in sorted(history.spends, key=lambda one: one.life.segment)
    ]  # fmt: skip
    return [totals, spend.parts, spend.start_ups_ns, history.stated, each]


OPEN_OVER_THE_FIRST_STEP: list[Op] = [("span", 0), ("checkpoint", 0), ("step", 0), ("span_end", 0)]


@settings(max_examples=100, deadline=None)
@given(attempts, st.lists(st.booleans(), min_size=1, max_size=3), currencies)
@example([[OPEN_OVER_THE_FIRST_STEP]], [False], "USD")
@example([[OPEN_OVER_THE_FIRST_STEP[:3]]], [False], "USD")
def test_replay_by_column_equals_replay_record_by_record(
    script: list[list[list[Op]]], ends: list[bool], currency: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_run(Path(directory), script, ends, currency)
        account = RunAccount().add(LedgerReader(Path(directory), decode=decode_steps).poll())
        assert by_column(replay(account)) == by_column(read_history(Path(directory)))


@settings(max_examples=60, deadline=None)
@given(attempts, st.lists(st.booleans(), min_size=1, max_size=3), st.integers(1, 20), currencies)
def test_replay_from_the_last_statement_equals_replay_of_everything(
    script: list[list[list[Op]]], ends: list[bool], every: int, currency: str
) -> None:
    with tempfile.TemporaryDirectory() as directory, statements_every(every):
        write_run(Path(directory), script, ends, currency)
        assert figures(read_since_statements(Path(directory))) == figures(
            read_history(Path(directory))
        )


def last_statement(lines: list[bytes]) -> int:
    """Return the place of the last statement, or 0 where there is none."""
    return max((at for at, line in enumerate(lines) if b"budget_statement" in line), default=0)


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _cut(content: bytes, at: int) -> bytes:
    return content[:at]


def _drop_line(content: bytes, at: int) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[at % len(lines)]
    return b"".join(lines)


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {"flip": _flip, "cut": _cut, "drop": _drop_line}
damages = st.tuples(st.sampled_from(sorted(DAMAGES)), st.integers(0, 10**6), st.integers(0, 5))


def damage(run_dir: Path, kind: str, at: int, which: int) -> None:
    paths = segment_paths(run_dir)
    path = paths[which % len(paths)]
    if content := path.read_bytes():
        path.write_bytes(DAMAGES[kind](content, at % len(content)))


@settings(max_examples=100, deadline=None)
@given(
    attempts,
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.integers(1, 20),
    st.lists(damages, min_size=1, max_size=3),
    currencies,
)
def test_whatever_is_damaged_both_readings_agree(
    script: list[list[list[Op]]],
    ends: list[bool],
    every: int,
    hits: list[tuple[str, int, int]],
    currency: str,
) -> None:
    with tempfile.TemporaryDirectory() as directory, statements_every(every):
        run_dir = Path(directory)
        write_run(run_dir, script, ends, currency)
        for hit in hits:
            damage(run_dir, *hit)
        assert figures(read_since_statements(run_dir)) == figures(read_history(run_dir))


@settings(max_examples=60, deadline=None)
@given(attempts, st.lists(st.booleans(), min_size=1, max_size=3), st.integers(1, 12), st.data())
def test_what_is_damaged_before_a_statement_does_not_matter(
    script: list[list[list[Op]]], ends: list[bool], every: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory, statements_every(every):
        run_dir = Path(directory)
        write_run(run_dir, script, ends)
        whole = figures(read_history(run_dir))
        for path in segment_paths(run_dir):
            lines = path.read_bytes().splitlines(keepends=True)
            last = max(
                (i for i, line in enumerate(lines) if b"budget_statement" in line), default=0
            )
            if last < 2:
                continue
            hit = data.draw(st.integers(1, last - 1))
            lines[hit] = _flip(lines[hit], data.draw(st.integers(0, len(lines[hit]) - 2)))
            path.write_bytes(b"".join(lines))
        assert figures(read_since_statements(run_dir)) == whole
        assert figures(read_history(run_dir)) == whole


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.data())
def test_lost_line_never_refunds_budget(
    steps: int, every: int, ended: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory, statements_every(every):
        run_dir = Path(directory)
        write_run(run_dir, [[[("step", 3)] * steps]], [ended])
        true = join_attempts(read_history(run_dir).spends, 10**6 * S).total(charge="all")
        (path,) = segment_paths(run_dir)
        lines = path.read_bytes().splitlines(keepends=True)
        hit = data.draw(st.integers(2 if steps > 1 else 0, len(lines) - 1))
        lines[hit] = _flip(lines[hit], data.draw(st.integers(0, len(lines[hit]) - 2)))
        path.write_bytes(b"".join(lines))
        known = join_attempts(read_since_statements(run_dir).spends, 10**6 * S).total(charge="all")
        if hit == 0 or steps == 1:
            return  # The price, or the only step: what budget.json says counts, elsewhere tested.
        assert known.largest(true) == known


@settings(max_examples=40, deadline=None)
@given(attempts, st.integers(1, 8), st.integers(1, 4))
def test_records_that_threads_wrote_before_a_statement_are_not_lost(
    script: list[list[list[Op]]], every: int, late: int
) -> None:
    with tempfile.TemporaryDirectory() as directory, statements_every(every):
        run_dir = Path(directory)
        write_run(run_dir, script, [True])
        whole = figures(read_history(run_dir))
        for path in segment_paths(run_dir):
            lines = path.read_bytes().splitlines(keepends=True)
            last = max(
                (i for i, line in enumerate(lines) if b"budget_statement" in line), default=0
            )
            if last:
                lines.insert(min(last + late, len(lines) - 1), lines.pop(last))
            path.write_bytes(b"".join(lines))
        assert figures(read_since_statements(run_dir)) == whole


FLOPS = st.integers(0, 4) | st.just(10**20)  # which no 64-bit integer holds
runs_of_steps = st.lists(st.tuples(st.integers(0, 9), FLOPS), min_size=1, max_size=60)


@given(
    runs_of_steps, st.integers(8, 24), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 61)
)
def test_outline_refunds_nothing_and_is_exact_at_checkpoints(
    sizes: list[tuple[int, int]], most: int, marks: list[int], cut: int
) -> None:
    surviving = Surviving()
    for step, (tokens, flops) in enumerate(sizes):
        surviving.execute(step, tokens, flops)
    marks = sorted(set(marks))
    runs = surviving.outline(most, marks)
    outline = Surviving.of(runs, next_step=surviving.next_step, lowest=surviving.lowest)
    assert len(runs) <= most
    assert outline.below() == surviving.below()
    assert outline.below(cut).steps == surviving.below(cut).steps
    assert outline.below(cut).largest(surviving.below(cut)) == outline.below(cut)
    for mark in marks[-(most // 8) :]:
        assert outline.below(mark) == surviving.below(mark)


def test_merged_steps_may_count_more_than_a_machine_integer_holds() -> None:
    surviving = Surviving()
    for step in range(40):
        surviving.execute(step, step, 2**62 + step)
    outline = Surviving.of(surviving.outline(16, []), next_step=40, lowest=0)
    assert outline.below() == surviving.below()


def test_an_invalid_statement_is_not_used(tmp_path: Path) -> None:
    with statements_every(4):
        write_run(tmp_path, [[[("step", 1)] * 20]], [False])
        whole = figures(read_history(tmp_path))
        (path,) = segment_paths(tmp_path)
        (records,) = read_run(tmp_path).segments.values()
        wrong = BudgetStatement(t_ns=1, form=FORM, covers=3, state={"executed": "a lot"})
        newer = BudgetStatement(t_ns=1, form=99, covers=3, state={})
        with path.open("ab") as stream:
            for seq, statement in enumerate((wrong, newer), start=records[-1].seq + 1):
                stream.write(encode_line(statement, seq))
        assert figures(read_since_statements(tmp_path)) == whole


def test_a_start_decodes_nothing_before_the_last_statement(tmp_path: Path) -> None:
    with statements_every(8):
        write_run(tmp_path, [[[("step", 1)] * 100]], [False])
    (path,) = segment_paths(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    last = last_statement(lines)
    whole = figures(read_history(tmp_path))
    blanks = [encode_line(Note(t_ns=1), seq) for seq in range(1, last)]
    path.write_bytes(b"".join([lines[0], *blanks, *lines[last:]]))
    assert len(decode_block(path.read_bytes()).records) == len(lines)
    assert figures(read_since_statements(tmp_path)) == whole
