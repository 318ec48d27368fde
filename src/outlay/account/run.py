"""A run's account: every process that recorded, and following them while their log grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outlay.account.payloads import PayloadTranslator
from outlay.account.segment import MetricPoint, SegmentAccount, SegmentAccounts, account_of
from outlay.account.step_blocks import decode_steps, without_bulk
from outlay.account.steps import Work
from outlay.errors import Finding
from outlay.ledger import (
    Attempt,
    BudgetEvent,
    LedgerReader,
    Payload,
    Record,
    SegmentId,
    SegmentLife,
    derive_attempts,
    energy_of,
)


class RunAccount:
    """A run's segments, by column; payloads among their records become segments of their own."""

    def __init__(self) -> None:
        self.segments: SegmentAccounts = {}
        self._translators: dict[SegmentId, PayloadTranslator] = {}

    def fold(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Add more records of one segment; a file without a single good one tells nothing."""
        if not records:
            return
        account_of(self.segments, segment).fold(records)
        payloads = [record.data for record in without_bulk(records) if type(record) is Payload]
        if payloads:
            for chunk in self._translator(segment).translate(payloads):
                account_of(self.segments, chunk.segment).fold(chunk.records)

    def shown(self) -> list[SegmentAccount]:
        """Return the segments that take part.

        Payloads replace the segment that holds them; where their process also recorded steps
        itself, it is those that count.
        """
        if not self._translators:
            return list(self.segments.values())
        hidden = {segment for segment, by in self._translators.items() if by.segments}
        for segment in self._recorded_twice():
            hidden |= {segment, *self._translators[segment].segments}
        return [account for segment, account in self.segments.items() if segment not in hidden]

    def lives(self) -> list[SegmentLife]:
        """Return how each process lived."""
        return [account.life for account in self.shown()]

    def attempts(self) -> list[Attempt]:
        """Return the run's attempts, oldest first."""
        return derive_attempts(self.lives())

    def of(self, attempt: Attempt) -> SegmentAccount:
        """Return the records of an attempt's timeline, without those after its end."""
        account = self.segments[attempt.segment]
        return account.clipped(attempt.last_sign_ns) if attempt.is_clipped else account

    def findings(self) -> list[Finding]:
        """Return what is wrong with the payloads."""
        found = [f for translator in self._translators.values() for f in translator.findings()]
        message = "its process also recorded steps itself; those count, and the payloads do not"
        return found + [
            Finding(source=segment.file_name, message=message, severity="warning")
            for segment in self._recorded_twice()
        ]

    def _translator(self, segment: SegmentId) -> PayloadTranslator:
        if segment not in self._translators:
            # An attempt may begin at the very instant at which its segment does.
            writer = replace(segment, host=f"{segment.host}+payloads")
            header = self.segments[segment].life.header
            self._translators[segment] = PayloadTranslator(segment.file_name, writer, header)
        return self._translators[segment]

    def _recorded_twice(self) -> list[SegmentId]:
        """Return the segments with payloads whose process also recorded steps of its own."""
        translated = {s for translator in self._translators.values() for s in translator.segments}
        native = {
            (segment.host, segment.pid)
            for segment, account in self.segments.items()
            if account.step_count and segment not in translated
        }
        return [s for s in self._translators if (s.host, s.pid) in native]

    # What all processes add up to

    @property
    def work(self) -> Work:
        """What all processes did together; repeated work counts each time."""
        return sum((account.work for account in self.shown()), start=Work())

    @property
    def gpu_busy_ns(self) -> int:
        """How long GPUs were seen busy."""
        return sum(account.gpu_busy_ns for account in self.shown())

    def energy_mj(self, attempts: Sequence[Attempt]) -> int:
        """Return the energy of the run, each millijoule counted once."""
        energies = {segment: account.energy_mj for segment, account in self.segments.items()}
        return energy_of(attempts, energies)

    def budget_events(self) -> list[BudgetEvent]:
        """Return everything that happened to the run's budget, oldest first."""
        events = [event for account in self.shown() for event in account.budget_events]
        return sorted(events, key=lambda event: event.t_ns)

    def metric_names(self) -> list[str]:
        """Return the names of what the training reported, in the order of their first report."""
        return list(dict.fromkeys(name for account in self.shown() for name in account.metrics))

    def series(self, *names: str, most: int | None = None) -> list[MetricPoint]:
        """Return the finite points of the first of some names that was reported, in time.

        Ranks that train together report the same curve: of several, the lowest speaks for all.

        Args:
            names: What it may be called, the most telling first.
            most: At most about this many of each process, for a picture; None for all.
        """
        found = next(filter(None, (self._points(name, most) for name in names)), [])
        finite = [point for point in found if math.isfinite(point.value)]
        speaker = min((point.rank for point in finite), default=0)
        return sorted((p for p in finite if p.rank == speaker), key=lambda point: point.t_ns)

    def _points(self, name: str, most: int | None) -> list[MetricPoint]:
        return [
            point
            for account in self.shown()
            if name in account.metrics
            for point in account.metrics[name].points(account.life.segment.rank, most)
        ]


class AccountFollower:
    """Keeps the account of one run's log up to date; each poll reads what is new."""

    def __init__(self, run_dir: Path) -> None:
        self.account = RunAccount()
        self._reader = LedgerReader(run_dir, decode=decode_steps)

    def poll(self) -> RunAccount:
        """Read what was appended since the last poll."""
        for chunk in self._reader.poll():
            self.account.fold(chunk.segment, chunk.records)
        return self.account

    @property
    def is_damaged(self) -> bool:
        """Whether records are missing from the log or cannot be read."""
        return bool(self._reader.findings())

    def findings(self) -> list[Finding]:
        """Return what is wrong in the log."""
        return [*self._reader.findings(), *self.account.findings()]
