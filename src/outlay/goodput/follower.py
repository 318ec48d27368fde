"""A run as it stands at one moment, and following it while its log grows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from outlay.account.run import RunAccount
from outlay.account.step_blocks import decode_steps
from outlay.errors import Finding, InvalidValue, NotARun
from outlay.goodput.throughput import RankRow, ideal_step_ns, stragglers
from outlay.goodput.timeline import (
    Breakdown,
    Timeline,
    TimelineBuilder,
    Window,
    break_down,
    without,
)
from outlay.ledger import LedgerReader, RunIdentity, read_identity
from outlay.ledger.attempts import DEAD_AFTER_NS, alive_until
from outlay.rates import RateFunction, run_rates
from outlay.record.lock import seems_alive

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
        return self.identity.name or self.timeline.attempts[-1].header.name

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

        Args:
            now_ns: The present.
            alive: Whether it still runs; default: what this host can tell, else by its silence.
            dead_after_ns: How long a silence means death where nothing else tells.

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

    Where a supervisor was first, the file has no model. A command that never names one is a model
    of its own: its cost must be found under something.
    """
    header = timeline.attempts[0].header
    identity = (read_identity(run_dir) if run_dir is not None else None) or RunIdentity(
        run_id=header.run_id or f"{timeline.start_ns:x}",
        model=header.model,
        name=header.name,
        created_ns=timeline.start_ns,
    )
    models = (identity.model, *(attempt.header.model for attempt in timeline.attempts))
    return replace(identity, model=next(filter(None, models), identity.name))


def ideal_of(view: RunView, configured_ideal_step_time: float | None) -> float | None:
    """Return the ideal step time in nanoseconds: what was configured, in seconds, or measured."""
    measured_ns = ideal_step_ns(view.timeline.times)
    if measured_ns is None or configured_ideal_step_time is None:
        return measured_ns
    return configured_ideal_step_time * 1e9
