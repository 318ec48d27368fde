"""``outlay demo``: the whole of outlay on a small real training, in about half a minute."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from outlay.advise.run_advice import advise_run, floor_of
from outlay.cli.advise import print_advice
from outlay.cli.output import AsJson, console, new_table, print_json, print_title
from outlay.cli.sweep.commands import print_plan
from outlay.cli.sweep.live import show_while
from outlay.clock import SYSTEM
from outlay.demo.training import (
    JOBS,
    LEAST,
    PRICE,
    Mishap,
    Mishaps,
    Stakes,
    grid_text,
    recording_ns_per_step,
)
from outlay.errors import InvalidValue, OutlayError
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, read_view
from outlay.guard.budget_guard import BudgetGuard
from outlay.report.files import SweepAccount, read_sweep, write_run_report, write_sweep_files
from outlay.report.run_document import run_document
from outlay.runs.reading import read_run
from outlay.sweep.aggregate.comparison import ranked
from outlay.sweep.grid.files import plan_file
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.money import SPEND_LOG
from outlay.sweep.run.sweeps import Result, start
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.quantity import duration_text

MARK = ".outlay-demo"
_SWEEP = "sweep"


class NotOurs(OutlayError):
    """The demo would have to overwrite what it did not write."""

    exit_code = 2

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} exists and is not from the demo; name another with --dir")


def show_demo(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Where everything goes; an earlier demo is replaced."
        ),
    ] = Path("demo-runs"),
    limit: Annotated[
        str, typer.Option(help="What each run may spend, in USD; a dollar buys a second.")
    ] = "8 USD",
    as_json: AsJson = False,
) -> None:
    """Show all of outlay on a small real training.

    Plan, guard, mishaps, ranking, dollars, advice. Needs no GPU, no account and no network,
    takes less than a minute, and writes to one directory.

    Example: outlay demo
    """
    stakes = Stakes(_dollars(limit))
    plan = _prepare(directory, stakes)
    # Leave the user's books alone.
    os.environ["OUTLAY_HOME"] = str((directory / "home").absolute())
    show = _Show(directory, plan, stakes, quiet=as_json)
    show.plan_it()
    show.run_it()
    account = show.rank()
    show.follow_the_money(account)
    show.advise()
    show.verify()
    show.weigh_the_bookkeeping()
    show.say_what_is_next(account)
    if as_json:
        print_json(show.said)


def _dollars(limit: str) -> Money:
    """Return what each run may spend; for less the runs would end before they have begun."""
    money = Money.parse(limit, name="--limit")
    if money.currency != LEAST.currency or money < LEAST:
        raise InvalidValue("--limit", limit, f'{LEAST} or more, such as "8 USD"')
    return money


def _prepare(directory: Path, stakes: Stakes) -> SweepPlan:
    """Make room, write the grid, and return its plan."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise NotOurs(directory)
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    grid = directory / "grid.yaml"
    grid.write_text(grid_text(stakes), encoding="utf-8")
    return plan_file(grid)


class _Show:
    """The demo, act by act; what it found is kept in ``said`` for programs."""

    def __init__(self, directory: Path, plan: SweepPlan, stakes: Stakes, *, quiet: bool) -> None:
        self._root = directory / _SWEEP
        self._dir = directory
        self._plan = plan
        self._stakes = stakes
        self._quiet = quiet
        self._killed, self._preempted = plan.runs[1].id, plan.runs[2].id
        self.said: dict[str, object] = {"dir": directory, "price": PRICE, "ceiling": stakes.ceiling}

    def plan_it(self) -> None:
        """Show what there is to run, and that it is too much."""
        self._title(f"1. The plan: equal money for each, at an invented price of {PRICE}")
        if not self._quiet:
            print_plan(self._plan)

    def run_it(self) -> None:
        """Run the sweep, during which one run is killed and one loses its machine."""
        self._title(f"2. Running, {JOBS} at a time; one run is killed, one loses its machine")
        mishaps = Mishaps(
            self._root,
            [
                Mishap(self._killed, signal.SIGKILL, self._stakes.mishap_at),
                Mishap(self._preempted, signal.SIGUSR2, self._stakes.mishap_at),
            ],
        )
        result = self._sweep(mishaps)
        for run in result.of_status("skipped"):
            self._say(f"{run}: refused by the ceiling of {self._stakes.ceiling}.")
        states = result.manifest.states
        for mishap in mishaps.planned:
            after = f"{states[mishap.run].attempts} attempts, going on from its last checkpoint"
            what = f"got {mishap.number.name}; {after}" if mishap.happened else "ended too early"
            self._say(f"{mishap.run}: {what}.")
        self.said["counts"] = result.counts
        self.said["attempts"] = {run: state.attempts for run, state in states.items()}

    def rank(self) -> SweepAccount:
        """Compare configurations for the same dollars."""
        self._title("3. Which is best for the same dollars")
        account = read_sweep(self._root, SYSTEM.wall_ns(), allow_missing=True)
        table = new_table("configuration", ">runs", ">accuracy, 95 % interval", ">mean cost")
        found = ranked(account.summary.subjects, account.summary.rows)
        for one in found:
            cost = "" if one.cost is None else f"{one.cost:.4f} {one.currency}"
            table.add_row(one.label, str(len(one.runs)), str(one), cost)
        self._say(table)
        self._say(account.verdict)
        self._say(f"{self._skipped_evaluations()} evaluations were skipped: no budget was left.")
        self.said["ranking"] = found
        self.said["skipped_evaluations"] = self._skipped_evaluations()
        return account

    def follow_the_money(self, account: SweepAccount) -> None:
        """Show where every dollar went that the guard captured."""
        self._title("4. Where the dollars went")
        books = BudgetGuard.of_log(self._root / SPEND_LOG).log.books()
        captured = Money(books.captured())
        micros: dict[str, int] = {}
        for subject in account.summary.subjects:
            if subject.facts is not None:
                micros = ph.added(micros, subject.facts.phase_micros)
        parts = {name: Money(micros[name]) for name in ph.in_order(micros) if micros[name]}
        table = new_table("phase", ">cost", ">share")
        for phase, cost in parts.items():
            table.add_row(phase, _exact(cost), f"{cost.micros / captured.micros:.1%}")
        table.add_section()
        table.add_row("captured by the guard", _exact(captured), "100.0%", style="bold")
        self._say(table)
        self.said |= {"captured": captured, "dollars": parts, "held": books.held()}

    def advise(self) -> None:
        """Say what to change about the run that was killed, and what that would save."""
        self._title(f"5. What the advisor would change about {self._killed}, which was killed")
        view = self._view(self._killed)
        found = advise_run(view)
        if not self._quiet:
            print_advice(found, floor_of(view))
        self.said["advice"] = found

    def verify(self) -> None:
        """Check the guard's ledger, line by line."""
        self._title("6. The guard's books")
        verification = BudgetGuard.of_log(self._root / SPEND_LOG).verify()
        state = "every line sound" if verification.sound else "NOT SOUND"
        self._say(f"{self._root / SPEND_LOG}: {verification.lines} lines, {state}")
        self.said["guard_sound"] = verification.sound

    def weigh_the_bookkeeping(self) -> None:
        """Measure what recording costs, against the steps that were recorded."""
        self._title("7. What the bookkeeping itself takes")
        own_ns = recording_ns_per_step(self._dir / "overhead")
        typical = self._view(self._plan.runs[0].id).timeline.typical
        share = None if typical is None else own_ns / typical.step_ns
        part = ""
        if typical is not None:
            part = f", {share:.2%} of a {duration_text(typical.step_ns)} step"
        of_100_ms = f"{own_ns / 1e8:.4%}"
        self._say(f"{duration_text(own_ns)} a step{part}; of a step of 100 ms it is {of_100_ms}.")
        self.said["bookkeeping_share"] = share

    def say_what_is_next(self, sweep: SweepAccount) -> None:
        """Write the reports, and name them and the next command."""
        self._title("Look, and try it on your own script")
        files = write_sweep_files(sweep, sweep.reports, SYSTEM.wall_ns())
        run_dir = self._root / self._killed
        run = read_run(run_dir)
        (page,) = write_run_report(run, run_document(run), run_dir, ["html"])
        self._say(f"the sweep        {files.html}\nthe killed run   {page}")
        home = self._dir / "home"
        self._say(f"all of it, live  OUTLAY_HOME={home} outlay web")
        self._say('next             outlay exec --price "1.50 USD/h" -- python your_train.py')
        self.said["reports"] = [files.html, page]

    def _sweep(self, mishaps: Mishaps) -> Result:
        with show_while(quiet=self._quiet) as watch:

            def look(harness: Harness) -> None:
                watch(harness)
                mishaps.look()

            result = start(self._plan, self._root, SweepOptions(jobs=JOBS, watch=look))
        if result.cancelled:
            console.print("The demo was interrupted; its runs were ended, their books are closed.")
            raise typer.Exit(130)
        return result

    def _view(self, run: str) -> RunView:
        return read_view(self._root / run, SYSTEM.wall_ns())

    def _skipped_evaluations(self) -> int:
        return sum(
            note.text.startswith("evaluation skipped")
            for run in self._plan.runs
            if (self._root / run.id / "ledger").is_dir()
            for segment in self._view(run.id).account.shown()
            for note in segment.notes
        )

    def _title(self, text: str) -> None:
        if not self._quiet:
            print_title(text)

    def _say(self, what: object) -> None:
        if not self._quiet:
            console.print(what, soft_wrap=isinstance(what, str))


def _exact(cost: Money) -> str:
    """Return an amount with all its digits, so that a column can be added up by eye."""
    whole, rest = divmod(cost.micros, MICROS)
    return f"{whole:,}.{rest:06d} {cost.currency}"
