"""A run as it stands at one moment: read, followed while its log grows, and summed up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
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
from outlay.ledger.attempts import DEAD_AFTER_NS, alive_until
from outlay.rates import RateFunction, run_rates
from outlay.record.lock import seems_alive
from outlay.units import Money

_OVERLAPS = "was still recording when the next attempt began; the later one counts"
_OUTLIVED = "was still recording after its job had ended by the accounts; their end counts"


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment: its account, timeline and rates, and what is wrong in its log.

    Attributes:
        identity: Which run it is; of entries that come from no run log, what they say of it.
        dir: The run's directory; None of entries that come from no run log.
        is_damaged: Records are missing from the log or cannot be read.
    """

    account: RunAccount
    timeline: Timeline
    rates: RateFunction | None
    findings: tuple[Finding, ...]
    identity: RunIdentity
    dir: Path | None = None
    is_damaged: bool = False

    @property
    def name(self) -> str:
        """What the run is called."""
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

    def window(self, start_ns: int | None = None, end_ns: int | None = None) -> Window:
        """Return a window of the run; what is left out is the run's own bound.

        Raises:
            InvalidValue: It ends before it starts.
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
        """What the run costs now; 0 unless it runs, None without a price."""
        if self.rates is None or not self.timeline.alive:
            return None if self.rates is None else 0
        now_ns = self.timeline.end_ns
        # An instant beyond the present, so that there is a rate now, too.
        rates = run_rates(alive_until(self.timeline.attempts, now_ns + 1), now_ns).function
        return 0 if rates is None else rates.rate_at(now_ns)

    def energy_mj(self) -> int:
        """Return the energy of the run, each millijoule counted once."""
        return self.account.energy_mj(self.timeline.attempts)

    def ranks(self) -> list[RankRow]:
        """Return how the ranks of the last attempt fare beside each other, slowest first."""
        last = self.timeline.attempts[-1]
        return stragglers(self.account.segments[segment] for segment in last.ranks)

    def break_down(
        self, window: Window | None = None, *, exclusions: tuple[Window, ...] = ()
    ) -> Breakdown:
        """Return what became of a window (default: the whole run), without the exclusions."""
        chosen = without(self.whole if window is None else window, exclusions)
        return break_down(self.timeline, self.rates, chosen)


class GoodputFollower:
    """Answers questions about one run while its log grows: a look costs what is new."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._reader = LedgerReader(run_dir, decode=decode_steps)
        self._builder = TimelineBuilder()

    def view(
        self, now_ns: int, *, alive: bool | None = None, dead_after_ns: int = DEAD_AFTER_NS
    ) -> RunView:
        """Return the run as it stands at ``now_ns``.

        Whether it is ``alive``, where that is not stated, is what this host can tell, else whether
        it has been silent for less than ``dead_after_ns``.

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
        view = view_of(timeline, account, (*damage, *account.findings()), self._dir)
        return dataclasses.replace(view, is_damaged=bool(damage))


def read_view(run_dir: Path | str, now_ns: int) -> RunView:
    """Return a run as its log says it stands.

    Raises:
        NotARun: There is no run log.
    """
    return GoodputFollower(Path(run_dir)).view(now_ns)


def read_view_as_of(run_dir: Path | str, as_of_ns: int) -> RunView | None:
    """Return a run as its log said at an instant: what was recorded later is as if it never was.

    Returns None where nothing had been recorded.

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
) -> RunView:
    """Return a timeline with its rates, its ranks, and everything that is wrong with them."""
    rates = run_rates(timeline.attempts, max(timeline.now_ns, timeline.end_ns))
    clipped = tuple(
        Finding(
            source=attempt.segment.file_name,
            message=_OVERLAPS if attempt.overlaps else _OUTLIVED,
            severity="warning",
        )
        for attempt in timeline.attempts
        if attempt.is_clipped
    )
    every = (*findings, *clipped, *rates.findings)
    return RunView(
        account, timeline, rates.function, every, _identity(run_dir, timeline), dir=run_dir
    )


def _identity(run_dir: Path | None, timeline: Timeline) -> RunIdentity:
    """Return who a run is; what its file cannot say comes from its attempts.

    Where a supervisor was first, the file has no model, and a name only if the user gave one; else
    the program's counts, or the supervisor's. A command that never names a model is one of its own:
    its cost must be found under something.
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
    """Return the ideal step time in nanoseconds: what was configured, in seconds, or measured."""
    measured_ns = ideal_step_ns(view.timeline.times)
    if measured_ns is None or configured_ideal_step_time is None:
        return measured_ns
    return configured_ideal_step_time * 1e9


# Everything that the timeline says about a window of a run, as one value.

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
    """One of many windows: wall time in nanoseconds, goodput 0 to 1 (None where unknown).

    ``badput`` is the phase that took most of the rest; None when all of it was productive.
    """

    window: Window
    wall_ns: int
    goodput: float | None
    badput: str | None
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSummary:
    """What became of a window of a run. Times are nanoseconds, shares 0 to 1.

    Attributes:
        goodput: Productive share of wall time; None when the window holds none, and when no
            process of the run recorded a step: then nobody knows.
        ettr: Share of wall time not lost to disruptions.
        slices: How well an elastic run used its slices; None when it never counted them.
        assumed: What of the cost is assumed: no record says whether it was to be paid.
        beside: Overlapped spans by phase, not part of the partition.
        throughput: Of all ranks; a step counts where it ended.
        mfu: Model FLOPs utilisation; None unless the model was described.
        of_whole_run: Which of these figures are of the whole run, although a part was asked for.
    """

    window: Window
    alive: bool
    wall_ns: int
    idle_ns: int
    goodput: float | None
    ettr: float | None
    slices: SliceEfficiency | None
    cost: Money | None
    assumed: Money | None
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
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]


def summarise(
    view: RunView,
    window: Window | None = None,
    *,
    exclusions: tuple[Window, ...] = (),
    model: ModelFlops | None = None,
) -> GoodputSummary:
    """Return the summary of a window (default: the whole run), without the exclusions.

    Utilisation is known where ``model`` says what the model needs and the GPUs can do.
    """
    timeline = view.timeline
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen, exclusions=exclusions)
    attempts = [s.timeline for s in timeline.stretches if s.timeline is not None]
    ranks = view.ranks()
    whole = window is None and not exclusions
    tokens = view.account.work.tokens if whole else tokens_in(view.account, breakdown.windows)
    mfu = None
    if model is not None:
        mfu = utilisation(tokens, model, timeline, breakdown.windows)
    return GoodputSummary(
        window=chosen,
        alive=timeline.alive,
        wall_ns=breakdown.wall_ns,
        idle_ns=breakdown.idle_ns,
        goodput=known_goodput(view, breakdown),
        ettr=effective_training_time_ratio(breakdown),
        slices=slices_used(view, breakdown.windows),
        cost=breakdown.cost,
        assumed=breakdown.assumed,
        phases=_rows(breakdown),
        beside=beside_ns(view, breakdown.windows),
        disruptions=[d for part in breakdown.windows for d in disruptions(timeline, part)],
        mttf=mean_time_to_failure(timeline),
        progress=progress(timeline, view.rates),
        typical_step_ns=None if timeline.typical is None else timeline.typical.step_ns,
        stalls=sum(len(attempt.stalled) for attempt in attempts),
        throughput=throughput(tokens, breakdown),
        mfu=mfu,
        ranks=ranks if len(ranks) > 1 else [],
        of_whole_run=() if whole else _OF_WHOLE_RUN,
        assumptions=breakdown.assumptions,
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
    """Return windows of one length over a part of a run (default: all of it), oldest first.

    The first ones begin where the part begins, so that windows as far apart as they are long add up
    to it.

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
    """Return the productive share of wall time; None where no step says what was productive."""
    return breakdown.goodput if view.account.work.steps else None


def slices_used(view: RunView, windows: Sequence[Window]) -> SliceEfficiency | None:
    """Return how an elastic run used its slices in some windows; None when it never counted."""
    changes = (change for own in view.timeline.own for change in own.segment.life.slices)
    return slice_efficiency(view.timeline, changes, windows)


def _rows(breakdown: Breakdown) -> list[PhaseRow]:
    return [
        PhaseRow(name, ns, ns / breakdown.wall_ns, breakdown.cost_by_phase.get(name))
        for name in ph.in_order(breakdown.phases)
        if (ns := breakdown.phases[name])
    ]


def beside_ns(view: RunView, windows: Sequence[Window]) -> dict[str, int]:
    """Return how long overlapped spans took in some windows, each by itself."""
    totals: dict[str, int] = {}
    for attempt in view.timeline.attempts:
        beside = view.account.segments[attempt.segment].overlapped
        for window in windows if len(beside) else ():
            inside = beside.columns().within(window.start_ns, window.end_ns)
            for phase, spans in inside.by(ph.phase_of_span):
                totals[phase] = totals.get(phase, 0) + int((spans.end - spans.begin).sum())
    return totals
