"""A run's budget and use, read from its log; what a damaged log has lost counts as used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from outlay.budget.display import NAME, read_document
from outlay.budget.fold import (
    ProcessSpend,
    RunSpend,
    budget_events,
    is_valid,
    join_attempts,
    last_stated,
    restore_spend,
    stated_by,
)
from outlay.budget.limits import CURRENCY, currency_in
from outlay.budget.snapshots import usage_in
from outlay.budget.terms import Budget
from outlay.budget.usage import ZERO, Usage, progress_of, resources_of
from outlay.errors import Finding
from outlay.files import open_own
from outlay.ledger import (
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    LastStatement,
    LedgerReader,
    Record,
    RunLog,
    SegmentId,
    SegmentLife,
    Step,
    derive_attempts,
    find_statements,
    read_run,
)
from outlay.ledger.reader import FAR_BYTES
from outlay.ledger.segments import segment_paths
from outlay.rates import run_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run's budget and use, from its log.

    Attributes:
        spends: The use of each process; empty if there is no log yet.
        stated: The budget that the run was last started with, as recorded; None without one.
        recorded: Totals that the run recorded: a lower bound of its use if the log is damaged, or
            if clocks disagree on what was when.
        damaged: Whether the log has lost records.
        findings: What is wrong in the log, and what was assumed instead.
        currency: The currency in which money is counted.
    """

    spends: Sequence[ProcessSpend]
    stated: Mapping[str, Any] | None = None
    recorded: Usage = ZERO
    damaged: bool = False
    findings: list[Finding] = field(default_factory=list)
    currency: str = CURRENCY

    @property
    def stated_outside(self) -> Mapping[str, Any] | None:
        """The budget that a supervisor last stated."""
        return last_stated(stated_by(self.spends, supervisor=True))

    @property
    def stated_inside(self) -> Mapping[str, Any] | None:
        """The budget that the program last stated; it may differ from its supervisor's."""
        if self.stated_outside is None:
            return self.stated
        return last_stated(stated_by(self.spends, supervisor=False))

    @property
    def paid_in(self) -> str:
        """The currency of the run's first price; empty without one."""
        rates = run_rates(derive_attempts(spend.life for spend in self.spends), 0).function
        return "" if rates is None else rates.currency

    def spend(self, until_ns: int) -> RunSpend:
        """Return what the run used up to ``until_ns``."""
        return self._at_least(join_attempts(self.spends, until_ns, currency=self.currency))

    def spend_before(self, header: AttemptStarted, segment: SegmentId) -> RunSpend:
        """Return what the run used before the attempt that begins with ``header``.

        Its money includes billed time between the last attempt and this one. What the log holds is
        before this attempt, also if its clock is behind the log.
        """
        others = [spend for spend in self.spends if spend.life.segment != segment]
        beginning = ProcessSpend(SegmentLife(segment, header))
        before = join_attempts(
            [*others, beginning], header.t_ns, currency=self.currency, without=segment
        )
        if before.clocks_disagree and others:
            alone = join_attempts(others, None, currency=self.currency)
            larger = max(before.parts, alone.parts, key=lambda parts: parts.charged("all"))
            before = replace(before, parts=larger)
        return self._at_least(before)

    def _at_least(self, spend: RunSpend) -> RunSpend:
        """Return a use that is not below what the run recorded as used."""
        is_doubtful = self.damaged or spend.clocks_disagree
        return replace(spend, at_least=self.recorded if is_doubtful else ZERO)

    def of_rank(self, rank: int) -> History:
        """Return the history of one rank; recorded totals are rank 0's."""
        spends = [spend for spend in self.spends if spend.life.segment.rank == rank]
        return replace(self, spends=spends, recorded=self.recorded if rank == 0 else ZERO)


def read_history(run_dir: Path) -> History:
    """Read a run's whole log.

    A damaged segment is read from its last valid statement on. Money is counted in the currency of
    the budget that the run was last started with.
    """
    reader = LedgerReader(run_dir)
    history = _fold_log(reader, {}, "", read_document(run_dir))
    if found := reader.findings():
        damaged = _read_damaged(run_dir, "")
        return replace(damaged, findings=list(dict.fromkeys([*found, *damaged.findings])))
    return history


_HEAD_BYTES: Final = 16_384


def read_kept_budget(run_dir: Path) -> Budget | None:
    """Return the budget that a run was last started with, unless it was dropped since.

    A log without a budget is not replayed: the terms are near the top of a segment.
    """
    if not has_terms(run_dir):
        return None
    stated = read_since_statements(run_dir).stated
    return None if stated is None else Budget.stated_in(stated)


def has_terms(run_dir: Path) -> bool:
    """Return whether any start of a run had a budget, without reading the whole log."""
    return any(map(_begins_with_terms, segment_paths(run_dir)))


def _begins_with_terms(segment: Path) -> bool:
    try:
        with os.fdopen(open_own(segment, os.O_RDONLY), "rb") as stream:
            stream.readline()
            return b'"budget_event"' in stream.read(_HEAD_BYTES)
    except OSError:  # Reading the log gets the same error and reports it.
        return False


def read_since_statements(run_dir: Path, currency: str = "") -> History:
    """Read a run's log from each segment's last statement on.

    ``currency`` defaults to the one that ``read_history`` uses. Damage before a statement is not
    noticed and does not matter: the statement covers it.
    """
    statements = find_statements(run_dir, is_valid)
    spends = {
        last.segment: restore_spend(last.segment, last.header, last.statement)
        for last in statements.values()
    }
    reader = LedgerReader(run_dir, statements=statements)
    history = _fold_log(reader, spends, currency, read_document(run_dir))
    return _read_damaged(run_dir, currency) if reader.findings() else history


def _fold_log(
    reader: LedgerReader,
    spends: dict[SegmentId, ProcessSpend],
    currency: str,
    document: Mapping[str, Any] | None,
) -> History:
    for chunk in reader.poll():
        spend = spends.setdefault(chunk.segment, ProcessSpend(SegmentLife(chunk.segment)))
        for record in chunk.records:
            spend.apply(record)
    folded = list(spends.values())
    for spend in folded:
        spend.finish()
    return history_of(folded, document, currency)


def history_of(
    spends: Sequence[ProcessSpend],
    document: Mapping[str, Any] | None,
    currency: str = "",
    damage: Sequence[Finding] = (),
) -> History:
    """Return the history of a log; ``document`` is the content of ``budget.json``.

    With ``damage``, a budget that the log has lost is taken from the document.
    """
    stated, lost = last_stated(spends), []
    if damage and stated is None and document and {"mode", "limits"} <= document.keys():
        stated = document
        lost = [_warning(NAME, "the budget is taken from here: the log has lost it")]
    currency = currency or stated_currency(stated)
    recorded, wrong = _recorded_totals(spends, document, currency)
    found = [*damage, *wrong, *lost] if damage else []
    return History(
        spends=spends, stated=stated, recorded=recorded, damaged=bool(damage), findings=found,
        currency=currency,
    )  # fmt: skip


def stated_currency(stated: Mapping[str, Any] | None) -> str:
    """Return the currency of a recorded budget."""
    limits = None if stated is None else stated.get("limits")
    return currency_in(limits) if isinstance(limits, Mapping) else CURRENCY


# Damaged logs


def _read_damaged(run_dir: Path, currency: str) -> History:
    """Read a log that has lost records, from its last statements on; doubt counts as used."""
    statements = find_statements(run_dir, is_valid, back_bytes=FAR_BYTES)
    last = {one.segment: one for one in statements.values()}
    log = read_run(run_dir, statements)
    spends, findings = [], list(log.findings)
    for segment in sorted({*log.segments, *last}):
        spend, assumed_steps = _replay_segment(segment, log, last.get(segment))
        spends.append(spend)
        if assumed_steps:
            message = f"{assumed_steps} unreadable steps are counted like their neighbours"
            findings.append(_warning(segment.file_name, message))
    damage = findings if log.findings else ()
    return history_of(spends, read_document(run_dir), currency, damage)


def _replay_segment(
    segment: SegmentId, log: RunLog, last: LastStatement | None
) -> tuple[ProcessSpend, int]:
    """Replay a segment from its last statement on; return also how many steps were assumed."""
    records, unplaced = log.segments.get(segment, []), log.unplaced.get(segment, 0)
    if last is None:
        header = next((one for one in records if isinstance(one, AttemptStarted)), None)
        statement = last_valid(records)
    else:
        header, statement = last.header, last.statement
    spend, first_seq = ProcessSpend(SegmentLife(segment)), 1
    if statement is not None:
        spend, first_seq = restore_spend(segment, header, statement), statement.covers
        after = (record for record in records if record.seq >= first_seq)
        by_seq = {one.seq: one for one in (*after, statement)}
        records = [by_seq[seq] for seq in sorted(by_seq)]
    repaired, assumed_steps = repair(
        records,
        unplaced,
        first_seq=first_seq,
        last=spend.last_step,
        has_totals=_has_totals(spend.events),
    )
    for record in repaired:
        spend.apply(record)
    spend.finish()
    return spend, assumed_steps


def _recorded_totals(
    spends: Sequence[ProcessSpend], document: Mapping[str, Any] | None, currency: str
) -> tuple[Usage, list[Finding]]:
    """Return the totals that the run recorded: its last progress, its largest resources."""
    ended = [event for event in budget_events(spends) if event.event == "ended"]
    snapshots: list[Mapping[str, Any]] = [event.data for event in ended]
    if document is not None:
        snapshots.append(document)
    at_least, findings = ZERO, []
    for snapshot in snapshots:
        used, wrong = usage_in(snapshot, otherwise=ZERO, currency=currency)
        at_least = progress_of(used) + resources_of(at_least.largest(used))
        findings += wrong
    return at_least, findings


def _warning(source: str, message: str) -> Finding:
    return Finding(source=source, message=message, severity="warning")


# Repair: stand-ins for steps that a damaged log has lost, so that damage gives no budget back


def last_valid(records: Sequence[Record]) -> BudgetStatement | None:
    """Return the last valid statement among a segment's records."""
    statements = (one for one in reversed(records) if isinstance(one, BudgetStatement))
    return next(filter(is_valid, statements), None)


_AMOUNTS: Final = (
    "dur_ns", "wait_ns", "tokens", "samples", "comm_bytes", "energy_mj", "flops",
)  # fmt: skip


def repair(
    records: Sequence[Record],
    unplaced: int = 0,
    *,
    first_seq: int = 1,
    last: Step | None = None,
    has_totals: bool = False,
) -> tuple[list[Record], int]:
    """Insert stand-ins where steps are missing, each as large as the larger of its neighbours.

    Returns the records, and how many steps were assumed.

    Args:
        records: One segment's, in sequence.
        unplaced: How many unreadable lines correspond to no hole in the sequence: they may have
            been at its end.
        first_seq: The first number that can be missing; the header is never a step.
        last: The last step before ``records``.
        has_totals: Whether the attempt's final totals were recorded before ``records``.
    """
    repaired: list[Record] = []
    next_seq, missing, hole, assumed = first_seq, 0, 0, 0
    for record in records:
        if record.seq > next_seq:
            hole = hole if missing else len(repaired)
            missing += record.seq - next_seq
        next_seq = record.seq + 1
        if isinstance(record, Step):
            count = _lost_steps(last, record, missing)
            if count:
                before = repaired[hole - 1] if hole else None
                place = (before.seq, before.t_ns) if before else (first_seq - 1, record.t_ns)
                stand_in = _stand_in([last or record, record], record.step - count, count, place)
                repaired.insert(hole, stand_in)
                assumed += count
            last, missing = record, 0
        repaired.append(record)
    at_end = missing + unplaced
    if at_end and last is not None and not (has_totals or _has_totals(repaired)):
        place = (repaired[-1].seq, repaired[-1].t_ns) if repaired else (first_seq - 1, last.t_ns)
        repaired.append(_stand_in([last], last.step + last.count, at_end, place))
        assumed += at_end
    return repaired, assumed


def _lost_steps(last: Step | None, following: Step, missing: int) -> int:
    """Return how many steps the records missing before ``following`` can have held."""
    if last is None:
        return min(missing, following.step)
    skipped = following.step - last.step - last.count
    return min(max(0, skipped), missing * max(last.count, following.count))


def _stand_in(neighbours: Sequence[Step], step: int, count: int, after: tuple[int, int]) -> Step:
    """Return ``count`` steps as large as the largest neighbour, placed ``after`` (seq, t_ns)."""
    each = {
        name: max(-(-getattr(one, name) // one.count) for one in neighbours) for name in _AMOUNTS
    }
    amounts = {name: amount * count for name, amount in each.items()}
    seq, t_ns = after
    return Step(seq=seq + 1, t_ns=t_ns, step=step, count=count, **amounts)


def _has_totals(records: Sequence[Record]) -> bool:
    """Return whether the attempt recorded its final totals, so that nothing is assumed."""
    return any(isinstance(one, BudgetEvent) and one.event == "ended" for one in records)
