"""What a run used before this attempt, and at what price it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from outlay.budget.amounts import CURRENCY
from outlay.budget.document import NAME, read_document
from outlay.budget.fold import (
    RunSpend,
    SegmentSpend,
    budget_events,
    fold_segments,
    join_attempts,
    last_stated,
)
from outlay.budget.mending import Mended, mend
from outlay.budget.snapshots import usage_in
from outlay.budget.usage import ZERO, Usage, progress_of, resources_of
from outlay.errors import Finding
from outlay.ledger import (
    AttemptStarted,
    GpuCount,
    LedgerReader,
    Price,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    exact_gpus,
    read_run,
)
from outlay.rates import RateFunction, RatePiece, hourly

_FOREVER_NS = 2**80


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a run's log tells about its budget.

    Attributes:
        spends: What each process used; empty where there is no log yet.
        stated: The budget the run was last started with; None where it had none.
        at_least: What a run whose log is damaged said it had used; zero where it is whole.
        findings: What is wrong in the log, and what was assumed in its place.
    """

    spends: list[SegmentSpend]
    stated: Mapping[str, Any] | None = None
    at_least: Usage = ZERO
    findings: list[Finding] = field(default_factory=list)

    def spend(self, until_ns: int) -> RunSpend:
        """Return what the run used up to ``until_ns``."""
        return replace(join_attempts(self.spends, until_ns), at_least=self.at_least)

    def spend_before(self, header: AttemptStarted, segment: SegmentId) -> RunSpend:
        """Return what the run used before the attempt that begins with ``header``.

        Money includes the time between the last attempt and this one, where that is billed.
        """
        others = [spend for spend in self.spends if spend.life.segment != segment]
        beginning = SegmentSpend(SegmentLife(segment, header))
        before = join_attempts([*others, beginning], header.t_ns, without=segment)
        return replace(before, at_least=self.at_least)

    def of_rank(self, rank: int) -> History:
        """Return the part of one rank; what the run said it used was rank 0's word."""
        spends = [spend for spend in self.spends if spend.life.segment.rank == rank]
        return replace(self, spends=spends, at_least=self.at_least if rank == 0 else ZERO)


def read_history(run_dir: Path) -> History:
    """Return what each process in a run's log used, and what is wrong in the log."""
    reader = LedgerReader(run_dir)
    spends: dict[SegmentId, SegmentSpend] = {}
    for chunk in reader.poll():
        spend = spends.setdefault(chunk.segment, SegmentSpend(SegmentLife(chunk.segment)))
        spend.fold(chunk.records)
    if reader.findings():
        return _read_damaged(run_dir)
    for spend in spends.values():
        spend.finish()
    folded = list(spends.values())
    return History(spends=folded, stated=last_stated(folded))


def _read_damaged(run_dir: Path) -> History:
    """Return what a run used whose log has lost records: never less than it can be shown to be."""
    log = read_run(run_dir)
    mended = {
        segment: mend(records, log.unplaced.get(segment, 0))
        for segment, records in log.segments.items()
    }
    spends = fold_segments({segment: each.records for segment, each in mended.items()})
    document = read_document(run_dir)
    at_least, findings = _last_word(spends, document)
    stated = last_stated(spends)
    if stated is None and document is not None and {"mode", "limits"} <= document.keys():
        stated = document
        findings.append(_doubt(NAME, "the budget is taken from here: the log has lost it"))
    findings = [*log.findings, *_assumed(mended), *findings]
    return History(spends=spends, stated=stated, at_least=at_least, findings=findings)


def _last_word(
    spends: list[SegmentSpend], document: Mapping[str, Any] | None
) -> tuple[Usage, list[Finding]]:
    """Return what the run said it had used: progress as of the last time, resources ever."""
    ended = [event for event in budget_events(spends) if event.event == "ended"]
    words: list[Mapping[str, Any]] = [event.data for event in ended]
    if document is not None:
        words.append(document)
    at_least, findings = ZERO, []
    for word in words:
        said, wrong = usage_in(word, otherwise=ZERO)
        at_least = progress_of(said) + resources_of(at_least.largest(said))
        findings += wrong
    return at_least, findings


def _assumed(mended: Mapping[SegmentId, Mended]) -> list[Finding]:
    return [
        _doubt(
            segment.file_name,
            f"{each.assumed_steps} steps that cannot be read count like those beside them",
        )
        for segment, each in sorted(mended.items())
        if each.assumed_steps
    ]


def _doubt(source: str, message: str) -> Finding:
    return Finding(source=source, message=message, severity="warning")


class LivePrice:
    """What a running attempt costs from one record to the next, in the currency of limits.

    Args:
        header: Says what the attempt begins with.
    """

    def __init__(self, header: AttemptStarted) -> None:
        self._until_ns = header.t_ns
        self._currency = ""
        self._kept = Fraction(1)
        self._stated: tuple[Price, GpuCount] | None = None
        self._function: RateFunction | None = None
        if header.price is not None:
            self.change(header.t_ns, header.price, header.gpus)

    def give_back(self, change: SlicesChanged) -> None:
        """From then on only the slices that are available are paid for."""
        if change.total > 0:
            self._kept = Fraction(change.available, change.total)
        if self._stated is not None:
            self.change(change.t_ns, *self._stated)

    def change(self, t_ns: int, price: Price, gpus: GpuCount) -> None:
        """From ``t_ns`` on each of ``gpus`` GPUs costs ``price``; take what was before first.

        As in reports, a run pays in the currency of its first price, and no other is counted.
        """
        self._currency = self._currency or price.currency
        if not price.currency == self._currency == CURRENCY:
            return
        self._stated = price, gpus
        rate = hourly(price.micros_per_hour, exact_gpus(gpus) * self._kept)
        piece = RatePiece(t_ns, _FOREVER_NS, rate)
        self._function = RateFunction((piece,), price.currency)

    @property
    def known(self) -> bool:
        """Whether there is a price that counts."""
        return self._function is not None

    def take_units(self, t_ns: int) -> int:
        """Return the exact cost since the last call, up to ``t_ns``."""
        if self._function is None:
            return 0
        units = self._function.units_between(self._until_ns, t_ns)
        self._until_ns = max(self._until_ns, t_ns)
        return units
