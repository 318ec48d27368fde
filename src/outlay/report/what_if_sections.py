"""A replayed run and the outlook on other machines: the blocks that are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from outlay.advise.spot import CheckpointedWork, SpotOutlook
from outlay.advise.what_if import ReplayedRun, TimeByKind
from outlay.clock import utc_text
from outlay.report.document import Block, NoteBlock, Table
from outlay.units import Money
from outlay.units.quantity import NS_PER_HOUR, duration_text
from outlay.units.shown import amount_text, money_text

_LABELS = {
    "work": "training that counts",
    "repeated": "lost and repeated",
    "save": "saving",
    "start": "starting",
    "between": "between attempts",
    "other": "everything else",
}


def replayed(own: ReplayedRun, other: ReplayedRun, deadline_ns: int | None) -> Iterator[Block]:
    """Yield the run beside what it would have been, and what that assumes."""
    yield Table(("", "as it was", "as asked"), [*_times(own, other), *_totals(own, other)])
    if other.spot is not None:
        yield NoteBlock(_chance_text(other, other.spot, deadline_ns))
    elif deadline_ns is not None:
        spare_ns = deadline_ns - other.time.total_ns
        verdict = "before" if spare_ns >= 0 else "AFTER"
        yield NoteBlock(f"Done {duration_text(abs(spare_ns))} {verdict} the deadline.")
    if other.assumptions:
        yield NoteBlock("Assumed: " + "; ".join(other.assumptions) + ".")


def _times(own: ReplayedRun, other: ReplayedRun) -> Iterator[tuple[str, str, str]]:
    for each in fields(TimeByKind):
        before, after = getattr(own.time, each.name), getattr(other.time, each.name)
        if before or after:
            yield _LABELS[each.name], duration_text(before), _if_known(other, after)


def _totals(own: ReplayedRun, other: ReplayedRun) -> Iterator[tuple[str, str, str]]:
    yield "wall time", duration_text(own.time.total_ns), _if_known(other, other.time.total_ns)
    yield "interruptions", str(own.failures), _if_finished(other, str(other.failures))
    yield "cost", _cost_text(own.cost), _if_finished(other, _cost_text(other.cost))
    yield "done", utc_text(own.done_ns), _if_finished(other, utc_text(other.done_ns))


def _if_known(of: ReplayedRun, ns: int) -> str:
    return _if_finished(of, duration_text(ns))


def _if_finished(of: ReplayedRun, text: str) -> str:
    return "never" if of.spot is not None and not of.spot.finishes else text


def _cost_text(cost: Money | None) -> str:
    return "no price" if cost is None else money_text(cost)


def _chance_text(run: ReplayedRun, of: SpotOutlook, deadline_ns: int | None) -> str:
    if not of.finishes:
        return "On machines that are taken back this often, it will not finish."
    low, high = (duration_text(round(h * NS_PER_HOUR)) for h in (of.hours_low, of.hours_high))
    text = f"With {of.confidence:.0%} probability it takes {low} to {high}"
    if run.cost is not None:
        text += f" and costs {of.cost_low:.2f} to {of.cost_high:.2f} {run.cost.unit}"
    if deadline_ns is not None:
        text += f"; it is done by the deadline with {of.chance:.0%}"
    return text + "."


def machines(
    found: Sequence[SpotOutlook], currency: str, work: CheckpointedWork
) -> Iterator[Block]:
    """Yield the outlook on each machine, in the order given, and what cannot finish."""
    rows = [
        (
            each.name,
            f"{each.chance:.0%}",
            "never" if not each.finishes else f"{each.hours:.1f} h",
            "" if not each.finishes else f"{each.hours_low:.1f} to {each.hours_high:.1f} h",
            "" if not each.finishes else amount_text(each.cost, currency),
            "" if not each.finishes else f"{each.cost_low:.2f} to {each.cost_high:.2f}",
            each.seen,
        )
        for each in found
    ]
    yield Table(("machine", "chance", "hours", "interval", "cost", "interval", "price"), rows)
    endless = [each.name for each in found if not each.finishes]
    if endless:
        without = "On spot without checkpoints" if work.interval is None else "On spot"
        yield NoteBlock(f"{without} this run will not finish: {', '.join(endless)}.")
    yield NoteBlock(f"Assumed: {work.hours:.1f} h of work at the run's own speed.")
    for reclaim in dict.fromkeys(each.reclaim for each in found if each.reclaim is not None):
        yield NoteBlock(
            f"A spot machine is taken back every {reclaim.mttf_hours:.3g} h on average, at random "
            f"({reclaim.source})."
        )
