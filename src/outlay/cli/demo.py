"""``outlay demo``: all features on a small real training, in about half a minute."""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from outlay.advise.run_advice import advise_run, floor_of
from outlay.cli.document import print_blocks
from outlay.cli.output import (
    AsJson,
    console,
    errors,
    new_table,
    print_json,
    print_sentence,
    print_title,
    shown_path,
)
from outlay.cli.sweep.commands import print_plan
from outlay.cli.sweep.live import show_while
from outlay.clock import SYSTEM
from outlay.demo.training import (
    JOBS,
    LEAST,
    PRICE,
    DemoMoney,
    Fault,
    FaultInjector,
    grid_text,
    recording_ns_per_step,
)
from outlay.errors import InvalidValue, OutlayError
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, read_view
from outlay.guard.budget_guard import BudgetGuard
from outlay.report import run_sections
from outlay.report.drawing.pictures import save_picture
from outlay.report.files import ReportPlace, SweepAccount, read_sweep, write_page, write_sweep_files
from outlay.report.run_document import run_document
from outlay.report.sweep_document import ranking
from outlay.runs.reading import read_run
from outlay.sweep.aggregate.comparison import ranked
from outlay.sweep.grid.files import plan_file
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.sweep_guard import SPEND_LOG
from outlay.sweep.run.sweeps import Result, start
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import money_text

MARK = ".outlay-demo"
_SWEEP = "sweep"


class NotADemo(OutlayError):
    """The directory holds files that the demo did not write."""

    exit_code = 2

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} exists and is not from the demo; choose another with --dir")


def show_demo(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to write; replaces an earlier demo.")
    ] = Path("demo-runs"),
    limit: Annotated[str, typer.Option(help="Budget of each run; a dollar is a second.")] = "8 USD",
    as_json: AsJson = False,
) -> None:
    """Show all of outlay on a small real training.

    Plan, guard, faults, ranking, cost, advice. Needs no GPU, account or network, takes less than
    a minute, and writes to one directory.

    Example: outlay demo
    """
    money = DemoMoney(_dollars(limit))
    plan = _prepare(directory, money)
    # Keep the demo out of the user's own outlay home.
    os.environ["OUTLAY_HOME"] = str((directory / "home").absolute())
    console.quiet = as_json
    try:
        results = _Demo(directory, plan, money).run()
    finally:
        console.quiet = False
    if as_json:
        print_json(results)


def _dollars(limit: str) -> Money:
    """Parse the budget of each run; with less, runs would stop before their first step."""
    money = Money.parse(limit, name="--limit")
    if money.currency != LEAST.currency or money < LEAST:
        raise InvalidValue("--limit", limit, f'{LEAST} or more, such as "8 USD"')
    return money


def _prepare(directory: Path, money: DemoMoney) -> SweepPlan:
    """Empty the directory, write the grid, and return its plan."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise NotADemo(directory)
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    grid = directory / "grid.yaml"
    grid.write_text(grid_text(money), encoding="utf-8")
    return plan_file(grid)


class _Demo:
    """The demo, step by step; ``results`` is its JSON document."""

    def __init__(self, directory: Path, plan: SweepPlan, money: DemoMoney) -> None:
        self._root = directory / _SWEEP
        self._dir = directory
        self._plan = plan
        self._money = money
        self._killed, self._preempted = plan.runs[1].id, plan.runs[2].id
        self.results: dict[str, object] = {
            "dir": directory,
            "price": PRICE,
            "ceiling": money.ceiling,
        }

    def run(self) -> dict[str, object]:
        self.show_plan()
        self.run_sweep()
        account = self.show_ranking()
        self.show_costs(account)
        self.show_advice()
        self.verify_spend_log()
        self.measure_overhead()
        self.write_reports(account)
        return self.results

    def show_plan(self) -> None:
        print_title(f"1. The plan: the same budget for each, at an invented price of {PRICE}")
        print_plan(self._plan)

    def run_sweep(self) -> None:
        print_title(f"2. Running, {JOBS} at a time; one run is killed, one is preempted")
        faults = FaultInjector(
            self._root,
            [
                Fault(self._killed, signal.SIGKILL, self._money.fault_at),
                Fault(self._preempted, signal.SIGUSR2, self._money.fault_at),
            ],
        )
        result = self._sweep(faults)
        for run in result.of_status("skipped"):
            print_sentence(f"{run}: refused by the ceiling of {self._money.ceiling}.")
        states = result.manifest.states
        for fault in faults.planned:
            after = f"{states[fault.run].attempts} attempts, resumed from its last checkpoint"
            what = f"got {fault.number.name}; {after}" if fault.happened else "ended before it"
            print_sentence(f"{fault.run}: {what}.")
        self.results["counts"] = result.counts
        self.results["attempts"] = {run: state.attempts for run, state in states.items()}

    def show_ranking(self) -> SweepAccount:
        print_title("3. Which is best for the same money")
        account = read_sweep(self._root, SYSTEM.wall_ns(), allow_missing=True)
        found = ranked(account.summary.rows)
        print_blocks(ranking(account.summary.rows))
        print_sentence(account.verdict)
        skipped = self._skipped_evaluations()
        print_sentence(f"{skipped} evaluations were skipped: no budget was left.")
        self.results |= {"ranking": found, "skipped_evaluations": skipped}
        return account

    def show_costs(self, account: SweepAccount) -> None:
        print_title("4. Where the money went")
        books = BudgetGuard.of_log(self._root / SPEND_LOG).log.books()
        captured = Money(books.captured())
        micros: dict[str, int] = {}
        for row in account.summary.rows:
            if row.facts is not None:
                micros = ph.added(micros, row.facts.phase_micros)
        parts = {name: Money(micros[name]) for name in ph.in_order(micros) if micros[name]}
        table = new_table("phase", ">cost", ">share of cost")
        for phase, cost in parts.items():
            table.add_row(phase, money_text(cost, 6), f"{cost.micros / captured.micros:.1%}")
        table.add_row("captured by the guard", money_text(captured, 6), "100.0%", style="bold")
        console.print(table)
        self.results |= {"captured": captured, "dollars": parts, "held": books.held()}

    def show_advice(self) -> None:
        print_title(f"5. Advice on {self._killed}, which was killed")
        view = self._view(self._killed)
        found = advise_run(view)
        print_blocks(run_sections.advice(found, floor_of(view)))
        self.results["advice"] = found

    def verify_spend_log(self) -> None:
        print_title("6. The spend log")
        verification = BudgetGuard.of_log(self._root / SPEND_LOG).verify()
        state = "all valid" if verification.sound else "NOT SOUND"
        print_sentence(f"{shown_path(self._root / SPEND_LOG)}: {verification.lines} lines, {state}")
        self.results["guard_sound"] = verification.sound

    def measure_overhead(self) -> None:
        print_title("7. Overhead of recording")
        own_ns = recording_ns_per_step(self._dir / "overhead")
        typical = self._view(self._plan.runs[0].id).timeline.typical
        share = None if typical is None else own_ns / typical.step_ns
        part = ""
        if typical is not None:
            part = f", {share:.2%} of a {duration_text(typical.step_ns)} step"
        of_100_ms = f"{own_ns / 1e8:.4%}"
        print_sentence(f"{duration_text(own_ns)} per step{part}; {of_100_ms} of a step of 100 ms.")
        self.results["bookkeeping_share"] = share

    def write_reports(self, sweep: SweepAccount) -> None:
        print_title("Reports, and the next command")
        written = write_sweep_files(sweep, sweep.reports, SYSTEM.wall_ns()).written
        run_dir = self._root / self._killed
        run = read_run(run_dir)
        (page,) = write_page(
            run_document(run), ReportPlace(directory=run_dir), ["html"], partial(save_picture, run)
        )
        print_sentence(f"the sweep        {written['html']}\nthe killed run   {page}")
        home = self._dir / "home"
        print_sentence(f"all of it, live  OUTLAY_HOME={home} outlay web")
        print_sentence('next             outlay exec --price "1.50 USD/h" -- python your_train.py')
        self.results["reports"] = [written["html"], page]

    def _sweep(self, faults: FaultInjector) -> Result:
        with show_while(quiet=console.quiet) as watch:

            def look(harness: Harness) -> None:
                watch(harness)
                faults.inject_due()

            result = start(self._plan, self._root, SweepOptions(jobs=JOBS, watch=look))
        if result.cancelled:
            errors.print("The demo was interrupted; its runs were ended and their cost recorded.")
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
