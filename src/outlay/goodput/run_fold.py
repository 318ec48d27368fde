"""A run's records folded, whoever wrote them: the one door through which a log is taken in."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.errors import Finding
from outlay.goodput.fold import SegmentFold, SegmentFolds, fold_of
from outlay.goodput.payload_segments import PayloadSegments
from outlay.goodput.step_blocks import without_bulk
from outlay.ledger import Attempt, Record, SegmentId, SegmentLife


class RunFold:
    """A run's segments, folded; payloads among their records become segments of their own."""

    def __init__(self) -> None:
        self.segments: SegmentFolds = {}
        self._payloads = PayloadSegments(self.segments)

    def fold(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Add more records of one segment; a file without a single good one tells nothing."""
        if records:
            fold_of(self.segments, segment).fold(records)
            self._payloads.take(segment, without_bulk(records))

    def shown(self) -> list[SegmentFold]:
        """Return the segments that take part: what the others tell is told by these."""
        hidden = self._payloads.hidden()
        return [fold for segment, fold in self.segments.items() if segment not in hidden]

    def lives(self) -> list[SegmentLife]:
        """Return how each process lived."""
        return [fold.life for fold in self.shown()]

    def of(self, attempt: Attempt) -> SegmentFold:
        """Return the records of an attempt's timeline, without what a later attempt overlaps."""
        fold = self.segments[attempt.segment]
        return fold.clipped(attempt.last_sign_ns) if attempt.overlaps else fold

    def findings(self) -> list[Finding]:
        """Return what is wrong with the payloads."""
        return self._payloads.findings()
