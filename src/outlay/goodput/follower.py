"""A run at one moment: read, followed while its log grows, and summarised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from outlay.account.run import RunAccount
from outlay.account.step_blocks import decode_steps
from outlay.errors import Finding, InvalidValue, NotARun
from outlay.goodput import phases as ph
from outlay.goodput.reliability import (
    Disruption,
    MeanTimeToFailure,
    disruptions,
    effective_training_time_ratio,
    mean_time_to_failure,
)
from outlay.goodput.throughput import (
    ModelFlops,
    RankRow,
    Throughput,
    Utilisation,
    ideal_step_ns,
    stragglers,
    throughput,
    tokens_in,
    utilisation,
)
from outlay.goodput.timeline import (
    Breakdown,
    PricedTime,
    Progress,
    SliceEfficiency,
    Timeline,
    TimelineBuilder,
    Window,
    break_down,
    progress,
    rolling,
    slice_efficiency,
    without,
)
from outlay.ledger import LedgerReader, RunIdentity, read_identity
from outlay.ledger.attempts import DEAD_AFTER_NS, alive_until, attempt_findings
from outlay.rates import RateFunction, run_rates
from outlay.record.lock import seems_alive
from outlay.units import Money, Unit
from outlay.units.money import Kind


@dataclass(frozen=True)  # No slots: it caches.
class RunView:
    """A run at one moment: its account, timeline and rates, and findings on its log.

    Attributes:
        identity: From the run's files, else from its records.
        dir: The run's directory; None if the entries come from a logger.
        is_damaged: Records are missing from the log or cannot be read.
        rates_beside: The rates in other currencies than the first, if the run paid in several.
    """

    account: RunAccount
    timeline: Timeline
    rates: RateFunction | None
    findings: tuple[Finding, ...]
    identity: RunIdentity
    dir: Path | None = None
    is_damaged: bool = False
    rates_beside: tuple[RateFunction, ...] = ()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.identity.name

    @property
    def whole(self) -> Window:
        """The whole run, from its first start to its end or the present."""
        return Window(self.timeline.start_ns, self.timeline.end_ns)

    @property
    def status(self) -> str:
        """``running``, ``dead`` (no end, no sign of life), or how the last attempt ended."""
        end = self.timeline.attempts[-1].end
        if end is not None:
            return end.status
        return "running" if self.timeline.alive else "dead"

    @property
    def unit(self) -> Unit:
        """The unit of its cost; USD without a price."""
        return Unit() if self.rates is None else self.rates.unit

    def window(self, start_ns: int | None = None, end_ns: int | None = None) -> Window:
        """Return a window; default bounds are those of the run.

        Raises:
            InvalidValue: The window ends before it starts.
        """
        window = Window(
            self.timeline.start_ns if start_ns is None else start_ns,
            self.timeline.end_ns if end_ns is None else end_ns,
        )
        if window.end_ns < window.start_ns:
            raise InvalidValue("window", (start_ns, end_ns), "an end that is not before the start")
        return window

    @property
    def burn_micros_per_hour(self) -> int | None:
        """The run's rate now; 0 if it does not run, None without a price."""
        if self.rates is None or not self.timeline.alive:
            return None if self.rates is None else 0
        now_ns = self.timeline.end_ns
        # Extended by 1 ns, since pieces are half-open.
        rates = run_rates(alive_until(self.timeline.attempts, now_ns + 1), now_ns).function
        return 0 if rates is None else rates.rate_at(now_ns)

    def energy_mj(self) -> int:
        """Return the energy of the run, each millijoule counted once."""
        return self.account.energy_mj(self.timeline.attempts)

    def ranks(self) -> list[RankRow]:
        """Return a row per rank of the last attempt, slowest first."""
        last = self.timeline.attempts[-1]
        return stragglers(self.account.segments[segment] for segment in last.ranks)

    def break_down(
        self, window: Window | None = None, *, exclusions: tuple[Window, ...] = ()
    ) -> Breakdown:
        """Return the breakdown of a window (default: the whole run) without the exclusions."""
        chosen = without(self.whole if window is None else window, exclusions)
        if chosen == [self.whole]:
            return self._breakdown
        return break_down(self.timeline, self.rates, chosen, self.rates_beside)

    @cached_property
    def _breakdown(self) -> Breakdown:
        return break_down(self.timeline, self.rates, [self.whole], self.rates_beside)


class GoodputFollower:
    """Follows one run while its log grows: each view reads only new records."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._reader = LedgerReader(run_dir, decode=decode_steps)
        self._builder = TimelineBuilder()

    def view(
        self, now_ns: int, *, alive: bool | None = None, dead_after_ns: int = DEAD_AFTER_NS
    ) -> RunView:
        """Return the run at ``now_ns``.

        By default it is ``alive`` if this host sees its process, or, on another host, if its last
        sign of life is at most ``dead_after_ns`` old.

        Raises:
            NotARun: There is no run log.
        """
        account = self._builder.account.add(self._reader.poll())
        attempts = account.attempts()
        if alive is None and attempts:
            alive = seems_alive(self._dir, attempts[-1])
        timeline = self._builder.build(now_ns, alive=alive, dead_after_ns=dead_after_ns)
        if timeline is None:
            raise NotARun(str(self._dir))
        damage = self._reader.findings()
        findings = (*damage, *account.findings())
        return view_of(timeline, account, findings, self._dir, is_damaged=bool(damage))


def read_view(run_dir: Path | str, now_ns: int) -> RunView:
    """Return a run at ``now_ns``.

    Raises:
        NotARun: There is no run log.
    """
    return GoodputFollower(Path(run_dir)).view(now_ns)


def read_view_as_of(run_dir: Path | str, as_of_ns: int) -> RunView | None:
    """Return a run at an instant, without the records after it; None if there were none before.

    Raises:
        NotARun: There is no run log.
    """
    directory, account = Path(run_dir), RunAccount()
    reader = LedgerReader(directory)
    for chunk in reader.poll():
        account.fold(chunk.segment, [record for record in chunk.records if record.t_ns <= as_of_ns])
    if not account.segments and read_identity(directory) is None:
        raise NotARun(str(run_dir))
    timeline = TimelineBuilder(account).build(as_of_ns)
    if timeline is None:
        return None
    findings = (*reader.findings(), *account.findings())
    return view_of(timeline, account, findings, directory)


def view_of(
    timeline: Timeline,
    account: RunAccount,
    findings: tuple[Finding, ...] = (),
    run_dir: Path | None = None,
    *,
    is_damaged: bool = False,
) -> RunView:
    """Return the view of a timeline, with its rates and all findings."""
    rates = run_rates(timeline.attempts, max(timeline.now_ns, timeline.end_ns))
    every = (*findings, *attempt_findings(timeline.attempts), *rates.findings)
    return RunView(
        account, timeline, rates.function, every, _identity(run_dir, timeline), dir=run_dir,
        is_damaged=is_damaged, rates_beside=rates.beside,
    )  # fmt: skip


def _identity(run_dir: Path | None, timeline: Timeline) -> RunIdentity:
    """Return a run's identity; what its file lacks comes from its attempts.

    If a supervisor wrote the file, it has no model, and a name only if the user gave one; otherwise
    the name is the program's, or else the supervisor's. The model of a command that never names one
    is its name, so that its cost can be looked up.
    """
    headers = [attempt.header for attempt in timeline.attempts]
    header = headers[0]
    identity = (read_identity(run_dir) if run_dir is not None else None) or RunIdentity(
        run_id=header.run_id or f"{timeline.start_ns:x}",
        model=header.model,
        name=header.name,
        created_ns=timeline.start_ns,
    )
    named = next((each.name for each in reversed(headers) if each.model), headers[-1].name)
    name = identity.name or named
    models = (identity.model, *(each.model for each in headers))
    return replace(identity, name=name, model=next(filter(None, models), name))


def ideal_of(view: RunView, configured_ideal_step_time: float | None) -> float | None:
    """Return the ideal step time in ns: the configured one (given in s), else the measured one."""
    measured_ns = ideal_step_ns(view.timeline.times)
    if measured_ns is None or configured_ideal_step_time is None:
        return measured_ns
    return configured_ideal_step_time * 1e9


# The summary of a window.

_OF_WHOLE_RUN = ("mttf", "progress", "typical_step_ns", "stalls", "ranks")


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of a breakdown: nanoseconds, share of wall time (0 to 1), money."""

    phase: str
    ns: int
    share: float
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One of many windows: wall time in nanoseconds, goodput 0 to 1 (None if unknown).

    ``badput`` is the largest unproductive phase; None if all time was productive.
    """

    window: Window
    wall_ns: int
    goodput: float | None
    badput: str | None
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSummary(PricedTime):
    """Figures of a window of a run. Times are nanoseconds, shares 0 to 1.

    Attributes:
        goodput: Productive share of wall time; None without wall time, and if no process of the run
            recorded a step.
        ettr: Share of wall time not lost to disruptions.
        slices: Use of an elastic run's slices; None if they were never counted.
        kind: Of the cost: ``cash`` or ``showback``; the two are never added.
        beside: Overlapped spans by phase, not part of the partition.
        throughput: Of all ranks; a step counts in the window of its end.
        mfu: Model FLOPs utilisation; None without a ``ModelFlops``.
        of_whole_run: The figures that are of the whole run, although the window is a part of it.
    """

    window: Window
    alive: bool
    idle_ns: int
    goodput: float | None
    ettr: float | None
    slices: SliceEfficiency | None
    kind: Kind
    phases: list[PhaseRow]
    beside: dict[str, int]
    disruptions: list[Disruption]
    mttf: MeanTimeToFailure
    progress: Progress
    typical_step_ns: int | None
    stalls: int
    throughput: Throughput
    mfu: Utilisation | None
    ranks: list[RankRow]
    of_whole_run: tuple[str, ...]
    findings: tuple[Finding, ...]


def summarise(
    view: RunView,
    window: Window | None = None,
    *,
    exclusions: tuple[Window, ...] = (),
    model: ModelFlops | None = None,
) -> GoodputSummary:
    """Return the summary of a window (default: the whole run) without the exclusions.

    ``model`` is needed for the utilisation.
    """
    timeline = view.timeline
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen, exclusions=exclusions)
    ranks = view.ranks()
    whole = window is None and not exclusions
    tokens = view.account.work.tokens if whole else tokens_in(view.account, breakdown.windows)
    mfu = None if model is None else utilisation(tokens, model, timeline, breakdown.windows)
    return GoodputSummary(
        **breakdown.priced(),
        window=chosen,
        alive=timeline.alive,
        idle_ns=breakdown.idle_ns,
        goodput=known_goodput(view, breakdown),
        ettr=effective_training_time_ratio(breakdown),
        slices=slices_used(view, breakdown.windows),
        kind=view.unit.kind,
        phases=_rows(breakdown),
        beside=overlapped_ns(view, breakdown.windows),
        disruptions=[d for part in breakdown.windows for d in disruptions(timeline, part)],
        mttf=mean_time_to_failure(timeline),
        progress=progress(timeline, view.rates),
        typical_step_ns=None if timeline.typical is None else timeline.typical.step_ns,
        stalls=sum(len(attempt.stalled) for attempt in timeline.attempt_timelines),
        throughput=throughput(tokens, breakdown),
        mfu=mfu,
        ranks=ranks if len(ranks) > 1 else [],
        of_whole_run=() if whole else _OF_WHOLE_RUN,
        findings=view.findings,
    )


def roll(
    view: RunView,
    length_ns: int,
    every_ns: int,
    *,
    within: Window | None = None,
    exclusions: tuple[Window, ...] = (),
) -> list[WindowRow]:
    """Return rolling windows over a part of a run (default: all of it), oldest first.

    Windows are clipped to the start of the part, so that adjacent ones add up to it.

    Raises:
        InvalidValue: A length is not above zero.
    """
    whole = view.whole if within is None else within
    rows = []
    for each in rolling(whole, length_ns, every_ns):
        window = Window(max(each.start_ns, whole.start_ns), each.end_ns)
        found = view.break_down(window, exclusions=exclusions)
        rows.append(
            WindowRow(
                window=window,
                wall_ns=found.wall_ns,
                goodput=known_goodput(view, found),
                badput=max(found.badput, key=lambda phase: found.badput[phase], default=None),
                cost=found.cost,
            )
        )
    return rows


def known_goodput(view: RunView, breakdown: Breakdown) -> float | None:
    """Return the productive share of wall time; None if the run recorded no step."""
    return breakdown.goodput if view.account.work.steps else None


def slices_used(view: RunView, windows: Sequence[Window]) -> SliceEfficiency | None:
    """Return the use of an elastic run's slices in windows; None if never counted."""
    changes = (change for own in view.timeline.own for change in own.segment.life.slices)
    return slice_efficiency(view.timeline, changes, windows)


def _rows(breakdown: Breakdown) -> list[PhaseRow]:
    return [
        PhaseRow(name, ns, ns / breakdown.wall_ns, breakdown.cost_by_phase.get(name))
        for name in ph.in_order(breakdown.phases)
        if (ns := breakdown.phases[name])
    ]


def overlapped_ns(view: RunView, windows: Sequence[Window]) -> dict[str, int]:
    """Return the total duration of overlapped spans in windows, by phase."""
    totals: dict[str, int] = {}
    for attempt in view.timeline.attempts:
        overlapped = view.account.segments[attempt.segment].overlapped.moved(attempt.moved_ns)
        for window in windows if len(overlapped) else ():
            inside = overlapped.columns().within(window.start_ns, window.end_ns)
            for phase, spans in inside.by(ph.phase_of_span):
                totals[phase] = totals.get(phase, 0) + int((spans.end - spans.begin).sum())
    return totals
