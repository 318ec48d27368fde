"""A guarded sweep never spends past its ceiling, whatever its runs do and however often it dies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlay.clock import ManualClock
from outlay.guard.spend_log import MemorySpendLog
from outlay.sweep.engines.base import Ended, Task, TaskStanding
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.plan import SweepPlan, terms_of
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.detached import settle_earlier
from outlay.sweep.run.devices import Tasks
from outlay.sweep.run.harness import TICK_S, Harness, SweepOptions
from outlay.sweep.run.sweep_guard import SweepGuard
from outlay.sweep.state.manifest import Journal, read_manifest
from outlay.sweep.state.setup import create, match_plan, unfinished_runs
from outlay.units import Money, Rate

SECOND = 10**9
TICK_NS = int(TICK_S * SECOND)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where fsync takes no time; a harness calls it after every change."""


class Crash(Exception):
    """The harness died here."""


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of a run, on each start."""

    seconds: int
    code: int
    ignores_sigterm: bool


@dataclass
class Machine:
    """An engine whose attempts cost a dollar per second."""

    clock: ManualClock
    behaviour: dict[str, Behaviour]
    begun: dict[str, tuple[str, int]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    over: dict[str, Ended] = field(default_factory=dict)
    spent_ns: int = 0
    tickets: int = 0
    refuses: bool = False
    forgets: bool = False
    remote: ClassVar[bool] = False

    def allow(self, jobs: int | None) -> int:
        return jobs or 1

    def all_submitted(self) -> bool:
        return True

    def standing(self, ticket: str) -> TaskStanding:
        return TaskStanding(text=ticket)

    def new_ticket(self, name: str) -> str:
        self.tickets += 1
        return f"{name}#{self.tickets}"

    def submit(self, task: Task) -> None:
        if self.refuses:
            self.refuses = False
            self.over[task.ticket] = Ended(how="not_started", reason="no such program")
            return
        self.begun[task.ticket] = (task.name, self.clock.monotonic_ns())

    def wait(self, timeout_s: float) -> None:
        self.clock.sleep(timeout_s)
        for ticket in list(self.begun):
            self._look(ticket)

    def _look(self, ticket: str) -> None:
        name, start_ns = self.begun[ticket]
        does, elapsed_ns = self.behaviour[name], self.clock.monotonic_ns() - start_ns
        if ticket in self.killed or (ticket in self.told and not does.ignores_sigterm):
            self._end(ticket, elapsed_ns, -9, asked=True)
        elif elapsed_ns >= does.seconds * SECOND:
            self._end(ticket, elapsed_ns, does.code, asked=ticket in self.told)

    def _end(self, ticket: str, elapsed_ns: int, code: int, *, asked: bool) -> None:
        del self.begun[ticket]
        self.spent_ns += elapsed_ns
        self.over[ticket] = Ended(how="exited", returncode=code, asked=asked, elapsed_ns=elapsed_ns)

    def poll(self, ticket: str) -> Ended | None:
        return self.over.get(ticket)

    def cancel(self, ticket: str, *, force: bool = False) -> None:
        self.told[ticket] = 1
        if force:
            self.killed.add(ticket)

    def reattach(self, task: Task) -> Ended | None:
        kept = None if self.forgets else self.over.get(task.ticket)
        return kept or Ended(how="lost")

    def exit(self, ticket: str, code: int) -> None:
        """Let a run end by itself, now."""
        elapsed_ns = self.clock.monotonic_ns() - self.begun[ticket][1]
        self._end(ticket, elapsed_ns, code, asked=ticket in self.told)

    def used_ns(self) -> int:
        """Return the total run time of all attempts."""
        now_ns = self.clock.monotonic_ns()
        return self.spent_ns + sum(now_ns - start_ns for _, start_ns in self.begun.values())

    def close(self) -> None:
        """End everything: tasks do not outlive their harness."""
        for ticket, (_, start_ns) in list(self.begun.items()):
            self._end(ticket, self.clock.monotonic_ns() - start_ns, -15, asked=True)


behaviours = st.builds(
    Behaviour,
    seconds=st.integers(1, 60),
    code=st.sampled_from([0, 0, 1]),
    ignores_sigterm=st.booleans(),
)


def plan_of(count: int, predicted_s: int, retries: int, ceiling: int) -> SweepPlan:
    grid = {
        "engine": "process", "price": "3600 USD/h", "timeout": f"{predicted_s}s",
        "retries": retries, "ceiling": f"{ceiling} USD",
        "grid": [{"params": {"x": list(range(count))}}],
    }  # fmt: skip
    return make_plan(read_grid(json.dumps(grid), source="g", default_name="g"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    does=st.lists(behaviours, min_size=1, max_size=5),
    predicted_s=st.integers(2, 40),
    retries=st.integers(0, 2),
    ceiling=st.integers(1, 150),
    jobs=st.integers(1, 3),
    crashes=st.lists(st.integers(1, 120), max_size=3),
)
def test_a_guarded_sweep_never_spends_past_its_ceiling(
    does: list[Behaviour], predicted_s: int, retries: int, ceiling: int, jobs: int,
    crashes: list[int],
) -> None:  # fmt: skip
    plan, clock = plan_of(len(does), predicted_s, retries, ceiling), ManualClock()
    machine = Machine(clock, {run.id: one for run, one in zip(plan.runs, does, strict=True)})
    log = MemorySpendLog()
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        root = Path(directory)
        create(plan, root, {}, clock, cwd=root)
        for polls in [*crashes, None]:
            _one_harness(plan, root, machine, log, jobs, polls)
            spent = Money(log.books().captured())
            assert spent <= Money(ceiling * 10**6)
            assert machine.spent_ns <= ceiling * SECOND
        assert log.books().held() == 0
        assert log.books().captured() >= machine.spent_ns // 1000
        ended = {state.status for state in read_manifest(root).states.values()}
        assert ended <= {"completed", "error", "cancelled", "skipped"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    seconds=st.integers(1, 40), longer_s=st.integers(1, 20), more=st.integers(0, 12),
)  # fmt: skip
def test_a_run_that_fits_under_the_ceiling_with_its_notice_is_never_ended(
    seconds: int, longer_s: int, more: int
) -> None:
    predicted_s = seconds + longer_s
    plan, clock = plan_of(1, predicted_s, 0, predicted_s + more), ManualClock()
    notice_ns = terms_of(Rate.parse("3600 USD/h"), predicted_s * SECOND).notice.ns
    assume(seconds * SECOND + notice_ns + 2 * TICK_NS <= (predicted_s + more) * SECOND)
    does = Behaviour(seconds=seconds, code=0, ignores_sigterm=False)
    machine, log = Machine(clock, {run.id: does for run in plan.runs}), MemorySpendLog()
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        create(plan, Path(directory), {}, clock, cwd=Path(directory))
        _one_harness(plan, Path(directory), machine, log, 1, None)
        (state,) = read_manifest(Path(directory)).states.values()
        assert state.status == "completed"


@contextmanager
def open_harness(
    plan: SweepPlan, root: Path, machine: Machine, log: MemorySpendLog, jobs: int,
    watch: Callable[[Harness], None] = lambda _: None,
) -> Iterator[Harness]:  # fmt: skip
    """Resume a sweep as `resume` does; on exit nothing runs."""
    clock = machine.clock
    manifest = read_manifest(root, clock)
    plan, _ = match_plan(plan, manifest, {})
    guard = SweepGuard(root, plan.grid.ceiling or Money(0), clock)
    guard.budget_guard.log = log
    journal = Journal(root)
    harness = Harness(
        manifest=manifest, journal=journal, engines={"process": machine},
        tasks=Tasks(plan, root, root, {}), guard=guard,
        options=SweepOptions(jobs=jobs, watch=watch, clock=clock),
    )  # fmt: skip
    try:
        settle_earlier(harness)
        yield harness
    finally:
        machine.close()
        journal.close()


def _one_harness(
    plan: SweepPlan, root: Path, machine: Machine, log: MemorySpendLog, jobs: int, polls: int | None
) -> None:
    """Run a harness to its end, or kill it after this many polls."""
    left = [polls]

    def die(_: Harness) -> None:
        if left[0] is not None:
            left[0] -= 1
            if left[0] <= 0:
                raise Crash

    with suppress(Crash), open_harness(plan, root, machine, log, jobs, die) as harness:
        harness.run(unfinished_runs(harness.tasks.plan, harness.manifest, retry_failed=False))


class GuardedSweep(RuleBasedStateMachine):
    """Runs that fail, hang and vanish under a harness that is cancelled and killed."""

    @initialize(
        runs=st.integers(1, 6), predicted_s=st.integers(2, 20), retries=st.integers(0, 3),
        ceiling=st.integers(3, 120), jobs=st.integers(1, 3),
    )  # fmt: skip
    def begin(self, runs: int, predicted_s: int, retries: int, ceiling: int, jobs: int) -> None:
        self.open = ExitStack()
        self.root = Path(self.open.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        self.plan, self.jobs = plan_of(runs, predicted_s, retries, ceiling), jobs
        self.ceiling_ns = ceiling * SECOND
        forever = Behaviour(seconds=10**6, code=0, ignores_sigterm=False)
        self.machine = Machine(ManualClock(), {run.id: forever for run in self.plan.runs})
        self.log = MemorySpendLog()
        create(self.plan, self.root, {}, self.machine.clock, cwd=self.root)
        self.open_next_harness(retry_failed=False)

    def open_next_harness(self, *, retry_failed: bool) -> None:
        self.harness = self.open.enter_context(
            open_harness(self.plan, self.root, self.machine, self.log, self.jobs)
        )
        self.harness.enqueue(
            unfinished_runs(
                self.harness.tasks.plan, self.harness.manifest, retry_failed=retry_failed
            )
        )

    @rule(polls=st.integers(1, 60))
    def time_passes(self, polls: int) -> None:
        for _ in range(polls):
            self.harness.step()
            self.spent_within_ceiling()

    @precondition(lambda self: self.machine.begun)
    @rule(data=st.data(), code=st.sampled_from([1, 1, 0, -9]))
    def a_run_ends(self, data: st.DataObject, code: int) -> None:
        self.machine.exit(data.draw(st.sampled_from(sorted(self.machine.begun))), code)

    @rule(data=st.data())
    def a_run_ignores_signals(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.machine.behaviour)))
        self.machine.behaviour[name] = Behaviour(seconds=10**6, code=0, ignores_sigterm=True)

    @rule()
    def the_next_start_fails(self) -> None:
        self.machine.refuses = True

    @rule(times=st.integers(1, 2))
    def cancel_and_resume(self, times: int) -> None:
        self.harness.asked += times
        while self.harness.step():
            self.spent_within_ceiling()
        self.open_next_harness(retry_failed=False)

    @rule(forgets=st.booleans(), retry_failed=st.booleans())
    def kill_and_resume(self, forgets: bool, retry_failed: bool) -> None:
        self.machine.close()
        self.machine.forgets = forgets
        self.open_next_harness(retry_failed=retry_failed)

    @invariant()
    def spent_within_ceiling(self) -> None:
        books = self.log.books()
        assert self.machine.used_ns() <= self.ceiling_ns
        assert (books.captured() + books.held()) * 1000 <= self.ceiling_ns
        assert (books.captured() + books.held()) * 1000 >= self.machine.used_ns()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for _ in range(10_000):
            for ticket in list(self.machine.begun):
                self.machine.exit(ticket, 0)
            if not self.harness.step():
                break
        self.spent_within_ceiling()
        assert self.log.books().held() == 0
        self.open.close()


GuardedSweep.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestGuardedSweep = GuardedSweep.TestCase
