"""The segments of a run log that hold payloads: what they tell takes the place of the segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlay.account.payloads import PayloadTranslator
from outlay.account.segment import SegmentAccounts, account_of
from outlay.errors import Finding
from outlay.ledger import Payload, Record, SegmentId


class PayloadSegments:
    """Translates the payloads among a run's records; each segment's attempts are its own."""

    def __init__(self, segments: SegmentAccounts) -> None:
        self._segments = segments
        self._translators: dict[SegmentId, PayloadTranslator] = {}

    def take(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Fold the payloads among more records of a segment, whose other records are folded."""
        payloads = [record.data for record in records if type(record) is Payload]
        if payloads:
            self._translator(segment).take(payloads)

    def hidden(self) -> set[SegmentId]:
        """Return the segments that payloads tell better, and payloads that native records do."""
        native = self._recorded_natively()
        told = [segment for segment, translator in self._translators.items() if translator.segments]
        told_twice = [s for segment in native for s in self._translators[segment].segments]
        return {*native, *told, *told_twice}

    def findings(self) -> list[Finding]:
        """Return what is wrong with the payloads."""
        found = [f for translator in self._translators.values() for f in translator.findings()]
        return [*found, *(_said_twice(segment) for segment in self._recorded_natively())]

    def _translator(self, segment: SegmentId) -> PayloadTranslator:
        if segment not in self._translators:
            # An attempt may begin at the very instant at which its segment does.
            writer = replace(segment, host=f"{segment.host}+payloads")
            header = account_of(self._segments, segment).life.header
            self._translators[segment] = PayloadTranslator(
                self._segments, segment.file_name, writer, header
            )
        return self._translators[segment]

    def _recorded_natively(self) -> list[SegmentId]:
        """Return the segments with payloads whose process also recorded steps of its own."""
        told = {s for translator in self._translators.values() for s in translator.segments}
        native = {
            (segment.host, segment.pid)
            for segment, fold in self._segments.items()
            if fold.step_count and segment not in told
        }
        return [s for s in self._translators if (s.host, s.pid) in native]


def _said_twice(segment: SegmentId) -> Finding:
    return Finding(
        source=segment.file_name,
        message="its process also recorded steps itself; those count, and the payloads do not",
        severity="warning",
    )
