"""Settlement of a sweep's attempts: their end and cost in log, spend log and journal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from outlay.guard.balance import Hold
from outlay.record.supervision import Supervision
from outlay.sweep.engines.base import Ended
from outlay.sweep.run.attempt_log import (
    end_earlier_log,
    end_log,
    logged_end,
    reached_budget,
)
from outlay.sweep.run.sweep_guard import (
    AttemptCost,
    SweepGuard,
    logged_cost,
    logged_gpu_time,
    price_attempt,
    time_attempt,
)
from outlay.sweep.state.manifest import Journal, SweepManifest
from outlay.sweep.state.outcomes import Event, RunState, RunVerdict, Status, judge, was_told
from outlay.units.money import GPU_TIME


@dataclass(frozen=True, slots=True)
class SweepRecorder:
    """Records events of a sweep's runs, and settles their attempts.

    Attributes:
        journal: None where another process runs the sweep and records; then only the manifest in
            memory is updated.
        guard: None for a sweep without a ceiling.
    """

    manifest: SweepManifest
    journal: Journal | None
    guard: SweepGuard | None = None

    def record(self, run: str, status: Status, **facts: Any) -> int:
        """Record a run's new status: in the journal at once, in the manifest later.

        Returns when that was, UTC nanoseconds.
        """
        event = Event(t_ns=self.manifest.clock.wall_ns(), run=run, status=status, **facts)
        if self.journal is not None:
            # A start that cannot be recorded is not made; an end has happened anyway.
            self.journal.append(event, keep=status != "running")
        self.manifest.apply(run, event)
        return event.t_ns

    def correct_late(self, run: str) -> None:
        """Record the cost that a run's log has gained since its attempts were settled.

        A late rank, or a child that outlived its parent, may write after the capture.
        """
        state = self.manifest.state(run)
        if state.status == "running":
            return
        self._correct_gpu_time(run, state)
        if state.logged_micros is None:
            return
        total = logged_cost(self.manifest.root / run)
        if total is None or total.currency != state.currency or total.micros <= state.logged_micros:
            return
        more = total.unit.money(total.micros - state.logged_micros)
        if self.guard is not None and state.hold and self.guard.unit != GPU_TIME:
            self.guard.correct(run, more)
        self.record(
            run, state.status, corrects=True, cost_micros=more.micros, currency=more.currency,
            kind=total.kind, logged_micros=total.micros,
        )  # fmt: skip

    def _correct_gpu_time(self, run: str, state: RunState) -> None:
        guard = self.guard
        if guard is None or guard.unit != GPU_TIME or state.gpu_micros is None:
            return
        more = logged_gpu_time(self.manifest.root / run).micros - state.gpu_micros
        if more > 0:
            guard.correct(run, guard.unit.money(more))
            self.record(run, state.status, corrects=True, gpu_micros=more)

    def judge(
        self, run: str, ended: Ended, stopped: RunVerdict | None = None, *, remote: bool
    ) -> RunVerdict:
        """Return a run's status after an attempt; ``stopped`` as for ``outcomes.judge``."""
        since_ns = 0 if remote else self.manifest.state(run).started_ns or 0
        directory = self.manifest.root / run
        logged = logged_end(directory, since_ns)
        was_cut = logged != "completed" and was_told(ended, logged) and not self._pauses(run)
        return judge(
            ended, stopped, logged, reached_budget=was_cut and reached_budget(directory, since_ns)
        )

    def _pauses(self, run: str) -> bool:
        """Say whether a run is at a rung that is not its last: to go on it must have saved."""
        static = self.manifest.runs[run]
        return static.resumable and self.manifest.state(run).rung < len(static.rungs) - 1

    def settle_earlier(self, run: str, ended: Ended, *, remote: bool) -> None:
        """Settle an attempt whose harness died."""
        self.settle_again(run, ended, self.judge(run, ended, remote=remote), remote=remote)

    def settle_again(self, run: str, ended: Ended, verdict: RunVerdict, *, remote: bool) -> None:
        """Settle an attempt of which the spend log may have the cost already."""
        hold = None if self.guard is None else self.guard.held(self.manifest.state(run).hold)
        self.settle(run, ended, verdict, remote=remote, hold=hold)

    def settle(
        self,
        run: str,
        ended: Ended,
        verdict: RunVerdict,
        *,
        remote: bool,
        log: Supervision | None = None,
        hold: Hold | None = None,
    ) -> None:
        """Record the end and the cost of an attempt: in its log, the spend log, the journal.

        A ``remote`` attempt has written its end into its log itself. ``log`` is the supervisor's
        segment, None for a remote one or if its harness died; ``hold`` is open and pays for it.
        """
        manifest = self.manifest
        if log is not None:
            end_log(log, verdict, ended, paid=hold is not None)
            ended = replace(ended, elapsed_ns=log.end_ns - log.start_ns)
        elif not remote:
            end_earlier_log(manifest, run, ended, verdict, None if hold is None else hold.amount)
        priced = self._price(run, ended, None if log is None else log.is_recorded)
        ticket = manifest.state(run).ticket
        if self.guard is not None and hold is not None:
            started = ended.how != "not_started"
            priced = self.guard.settle(hold, run, priced, started=started, ticket=ticket)
        elif self.guard is not None:
            priced = self.guard.as_captured(priced, ticket)
        cost, used = priced.cost, priced.gpu_time
        self.record(
            run, verdict.status, reason=verdict.reason, returncode=ended.returncode,
            elapsed_ns=ended.elapsed_ns, cost_micros=None if cost is None else cost.micros,
            currency="" if cost is None else cost.currency, kind=priced.kind,
            logged_micros=priced.logged_micros, gpu_micros=None if used is None else used.micros,
            **self._report(run, verdict),
        )  # fmt: skip

    # -- reports to a search ----------------------------------------------------------------

    def _report(self, run: str, verdict: RunVerdict) -> dict[str, Any]:
        """Return what an attempt that ended well reports to the search of its sweep."""
        static = self.manifest.runs[run]
        if not static.is_searched or verdict.status not in ("completed", "paused"):
            return {}
        last = len(static.rungs) - 1
        rung = self.manifest.state(run).rung if static.resumable else last
        return {"reports": True, "rung": rung, **self._judged_by(run)}

    def record_passed(self, run: str, passed: int) -> bool:
        """Record that a running attempt has passed so many rungs; False if that is known."""
        state = self.manifest.state(run)
        fresh = [rung for rung in range(passed) if rung not in state.reports]
        for rung in fresh:
            facts = {"reports": True, "passes": True, "rung": rung, **self._judged_by(run)}
            self.record(run, state.status, **facts)
        return bool(fresh)

    def _judged_by(self, run: str) -> dict[str, Any]:
        # Imported here: it loads NumPy, which sweeps without a search do not need.
        from outlay.sweep.aggregate.aggregator import judged_by

        static = self.manifest.runs[run]
        found = judged_by(
            self.manifest.root / run, static.metadata, self.manifest.clock.wall_ns(),
            starts=self.manifest.state(run).starts,
        )  # fmt: skip
        return {"metric": found.value, "saved": found.saved}

    def _price(self, run: str, ended: Ended, recorded: bool | None) -> AttemptCost:  # noqa: FBT001
        """Return the cost of an attempt, and its GPU time where a book counts that."""
        manifest, directory = self.manifest, self.manifest.root / run
        state, static = manifest.state(run), manifest.runs[run]
        book = self.guard.unit if self.guard is not None and self.guard.is_shared else None
        priced = price_attempt(
            directory, state, static.rate, ended, recorded=recorded,
            unit=None if book == GPU_TIME else book,
        )  # fmt: skip
        if book != GPU_TIME:
            return priced
        timed = time_attempt(directory, state, static.gpus_charged, ended, recorded=recorded)
        return replace(priced, gpu_time=timed.gpu_time, assumed=timed.assumed, part=timed.part)
