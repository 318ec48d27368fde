"""``outlay cost``, ``outlay advise`` and ``outlay cost-report``."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import msgspec
import pytest

from command_line import Outcome
from command_line import in_process as outlay
from fake_vendor import as_json, serving
from ledgers import START_NS, Segment, dollars, ns
from outlay import BudgetGuard, iso_tokens, run
from outlay.clock import ManualClock
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.ledger import Metric, Price
from training_metrics import costing
from vendor_shapes import vast_answer

MONTH = "2023-11"


def a_run(run_dir: Path, *, team: str = "nlp", accuracy: float = 0.9, start: float = 0) -> Path:
    """An hour at 3.60 dollars: ten minutes of it waiting for data."""
    about = {"price": dollars(3.6), "user": "ada", "model": "bert-base", "name": run_dir.name}
    about |= {"run_id": run_dir.name, "tags": {"team": team}, "gpu": "H100"}
    run = Segment(start=start, about=about)
    for _ in range(10):
        run.step(300, wait=60, samples=32, tokens=1000)
    run.add(Metric(t_ns=run.now_ns, name="accuracy", value=accuracy))
    run.end().write(run_dir)
    return run_dir


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two collected runs of one model."""
    a_run(tmp_path / "runs" / "a")
    a_run(tmp_path / "runs" / "b", team="cv", accuracy=0.95, start=7200)
    assert outlay("collect", tmp_path / "runs").code == 0
    return tmp_path / "runs"


def both(*arguments: str | Path) -> tuple[Outcome, Outcome]:
    """Call a command without and with ``--json``."""
    return outlay(*arguments), outlay(*arguments, "--json")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cost", "a"), "data_loading"),
        (("cost", "allocate", "--by", "team", "--month", "2023-11"), "GPU-hours"),
        (("advise", "a"), "Win back data_loading"),
        (("cost-report",), "bert-base"),
    ],
)
def test_output_fits_the_terminal(runs: Path, command: tuple[str, ...], said: str) -> None:
    words = [runs / word if word == "a" else word for word in command]
    for columns in (80, 200):
        found = outlay(*words, columns=columns)
        assert (found.code, said in found.out) == (0, True)
        assert max(map(len, found.out.splitlines())) <= columns


def test_cost_of_a_run_is_shown_by_phase_and_unit(runs: Path) -> None:
    shown, plain = both("cost", runs / "a")
    assert "data_loading" in shown.out
    assert re.search(r"^per step +0.36 USD \(stated\) *$", shown.out, re.MULTILINE)
    assert re.search(r"^per 1.0 of accuracy +4.00 USD \(stated\) *$", shown.out, re.MULTILINE)
    assert plain.json["cost"]["cost"] == {"micros": 3_600_000, "currency": "USD"}
    assert plain.json["per"]["million_tokens"] == 360.0


@pytest.mark.usefixtures("runs")
def test_summary_shows_every_model(tmp_path: Path) -> None:
    picture = tmp_path / "cost.png"
    assert outlay("cost", "summary", "--png", picture).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown, plain = both("cost", "summary")
    assert "7.20 USD" in shown.out
    assert plain.json["models"]["bert-base"]["runs"] == 2
    assert plain.json["totals"] == {"USD": 7.2}


def test_an_empty_summary_shows_how_to_register_runs() -> None:
    assert "outlay import runs" in outlay("cost", "summary").out


@pytest.mark.usefixtures("runs")
def test_model_lists_its_runs() -> None:
    shown, plain = both("cost", "model", "bert-base")
    assert "0.9500" in shown.out
    assert [run["run_id"] for run in plain.json["runs"]] == ["a", "b"]


@pytest.mark.usefixtures("runs")
def test_an_unknown_model_is_an_error_that_lists_the_known_ones() -> None:
    found = outlay("cost", "model", "gpt")
    assert (found.code, "bert-base" in found.err) == (2, True)


@pytest.mark.usefixtures("runs")
def test_compare_shows_runs_that_no_other_dominates(tmp_path: Path) -> None:
    picture = tmp_path / "front.png"
    shown, plain = both("cost", "compare", "--model", "bert-base")
    assert "no other is better in everything" in shown.out
    assert [point["name"] for point in plain.json["front"]] == ["b"]
    assert outlay("cost", "compare", "--png", picture).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_compare_names_the_currency_of_each_run() -> None:
    CostAnalyzer().analyze_training_run(costing(20, currency="EUR"))
    assert "20.00 EUR" in outlay("cost", "compare").out


def test_runs_in_two_currencies_are_neither_added_nor_compared(runs: Path) -> None:
    """Run "b" is cheaper than "c" in figures, and as good; nobody knows what a euro is worth."""
    euros = msgspec.structs.replace(dollars(7.2), currency="EUR")
    about = {"price": euros, "model": "bert-base", "run_id": "c", "name": "c"}
    paid = Segment(start=20_000, about=about).step(3600)
    paid.add(Metric(t_ns=paid.now_ns, name="accuracy", value=0.95)).end().write(runs / "c")
    assert outlay("collect", runs).code == 0
    shown, plain = both("cost", "compare")
    assert [point["name"] for point in plain.json["front"]] == ["b", "c"]
    assert re.search(r"^c +0\.9500 +7\.20 EUR", shown.out, re.MULTILINE)
    assert outlay("cost", "summary", "--json").json["totals"] == {"EUR": 7.2, "USD": 7.2}


@pytest.mark.parametrize(
    "words",
    [("bert-base", "5", "--run", "here", "--steps", "9"), ("bert-base", "5", "--steps", "9")],
)
def test_a_forecast_is_of_planned_runs_or_of_one_run_but_not_of_both(
    words: tuple[str, ...],
) -> None:
    assert outlay("cost", "forecast", *words).code == 2


@pytest.mark.usefixtures("runs")
def test_forecast_of_planned_runs_has_an_interval(tmp_path: Path) -> None:
    shown, plain = both("cost", "forecast", "bert-base", "5")
    assert "18.00 USD" in shown.out
    assert "thin history: 2 runs" in shown.out
    assert plain.json["estimated_total"] == pytest.approx(18.0)
    assert outlay("cost", "forecast", "bert-base", "1").out.startswith("1 run of bert-base: ")
    picture = tmp_path / "forecast.png"
    assert outlay("cost", "forecast", "bert-base", "5", "--png", picture).code == 0
    assert picture.exists()


def test_a_backtest_shows_the_error_on_the_models_own_history() -> None:
    analyzer = CostAnalyzer()
    for index, cost in enumerate([10, 11, 9, 10, 11, 10]):
        analyzer.analyze_training_run(costing(cost, f"r{index}"))
    shown, plain = both("cost", "forecast", "bert-base", "1", "--backtest")
    assert "2 forecasts of 1 run of bert-base" in shown.out
    assert "2 of 2 intervals of 80% contained" in shown.out
    assert (plain.json["coverage"], plain.json["forecasts"]) == (1.0, 2)
    assert plain.json["error"] < plain.json["naive_error"]
    short, _ = both("cost", "forecast", "bert-base", "9", "--backtest")
    assert "too few runs" in short.out


def test_forecast_of_the_rest_of_a_run(runs: Path) -> None:
    shown, plain = both("cost", "forecast", "--run", runs / "a", "--steps", "20")
    assert "10 steps left: 1h00m" in shown.out
    assert plain.json["rest"]["cost"]["point"] == pytest.approx(3.6)


def test_forecast_of_the_rest_of_a_run_is_drawn(runs: Path, tmp_path: Path) -> None:
    picture = tmp_path / "rest.png"
    found = outlay("cost", "forecast", "--run", runs / "a", "--steps", "20", "--png", picture)
    assert found.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_forecast_of_a_run_without_a_price_is_not_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "rest.png"
    free = _unpriced(tmp_path / "run")
    found = outlay("cost", "forecast", "--run", free, "--steps", "20", "--png", picture)
    assert (found.code, "a run with a price" in found.err) == (2, True)
    assert not picture.exists()


@pytest.mark.parametrize(
    "command", [("summary",), ("compare",), ("forecast", "nobody", "3")], ids=lambda c: c[0]
)
def test_a_chart_without_data_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    picture = tmp_path / "nothing.png"
    found = outlay("cost", *command, "--png", picture)
    assert (found.code, "to draw; none is known" in found.err) == (2, True)
    assert not picture.exists()


def test_roi_of_an_unknown_model_exits_with_2() -> None:
    assert [each.code for each in both("cost", "roi", "nobody")] == [2, 2]


@pytest.mark.parametrize(
    "command",
    [
        ("cost", "forecast", "--steps", "20", "--run"),
        ("export", "csv"),
        ("advise",),
    ],
)
def test_findings_about_a_log_are_shown_with_the_result(
    runs: Path, command: tuple[str, ...]
) -> None:
    log = _damaged(runs / "a")
    shown, plain = both(*command, runs / "a")
    assert log.name in shown.out
    assert [finding["source"] for finding in plain.json["findings"]] == [log.name]


def _unpriced(run_dir: Path) -> Path:
    Segment().step(300).end().write(run_dir)
    return run_dir


def _damaged(run_dir: Path) -> Path:
    """Add a line that is no record to a run's log, and return the file."""
    log = next((run_dir / "ledger").glob("*.jsonl"))
    log.write_text(log.read_text() + "no record\n")
    return log


def test_a_run_without_a_price_gets_advice_on_that(tmp_path: Path) -> None:
    free = _unpriced(tmp_path / "run")
    shown, plain = both("advise", free)
    assert "Savings cannot be computed without a price" in shown.out
    assert "Nothing worth changing" not in shown.out
    assert "OUTLAY_PRICE" in shown.out.replace("\n", " ")
    assert plain.json["findings"][0]["source"] == str(free)


def test_forecast_of_a_run_without_a_budget_requires_steps(runs: Path) -> None:
    found = outlay("cost", "forecast", "--run", runs / "a")
    assert found.code == 2


def test_forecast_needs_a_model_or_a_run() -> None:
    assert outlay("cost", "forecast").code == 2


@pytest.mark.usefixtures("runs")
def test_roi_shows_first_last_and_best() -> None:
    shown, plain = both("cost", "roi", "bert-base")
    assert "best 0.9500" in shown.out
    assert plain.json["accuracy_improvement"] == pytest.approx(0.05)


class TestAllocate:
    @pytest.mark.usefixtures("runs")
    def test_sums_to_the_bill_with_idle_spread(self) -> None:
        asked = ("cost", "allocate", "--by", "team", "--month", MONTH, "--bill", "10 USD")
        shown, plain = both(*asked)
        assert "10.00 USD" in shown.out
        assert plain.json["totals"][0]["total"] == {"micros": 10_000_000, "currency": "USD"}
        assert {row["owner"]: row["total"] for row in plain.json["rows"]} == {"cv": "5", "nlp": "5"}

    @pytest.mark.usefixtures("runs")
    def test_shows_idle_as_a_row_of_its_own(self) -> None:
        asked = ("cost", "allocate", "--by", "user", "--month", MONTH, "--spread", "none")
        rows = outlay(*asked, "--bill", "10", "--json").json["rows"]
        assert {row["owner"]: row["total"] for row in rows} == {"ada": "7.2", "(idle)": "2.8"}

    @pytest.mark.usefixtures("runs")
    def test_a_bill_below_what_runs_cost_is_a_finding(self) -> None:
        asked = ("cost", "allocate", "--by", "user", "--month", MONTH, "--bill", "1", "--json")
        assert "more than the bill" in outlay(*asked).json["findings"][-1]["message"]

    @pytest.mark.usefixtures("runs")
    def test_writes_csv_and_focus(self, tmp_path: Path) -> None:
        table, focus = tmp_path / "table.csv", tmp_path / "focus.csv"
        asked = ("cost", "allocate", "--by", "tag:team", "--month", MONTH, "--bill", "10")
        assert outlay(*asked, "--csv", table, "--focus", focus).code == 0
        shared = csv.DictReader(io.StringIO(table.read_text()))
        assert sum(float(row["total"]) for row in shared) == 10.0
        rows = list(csv.DictReader(io.StringIO(focus.read_text())))
        assert [row["BilledCost"] for row in rows] == ["3.6", "3.6", "2.8"]
        assert rows[0]["BillingPeriodStart"] == "2023-11-01T00:00:00Z"

    @pytest.mark.usefixtures("runs")
    def test_focus_rows_name_provider_and_account(self, tmp_path: Path) -> None:
        asked = ("cost", "allocate", "--by", "team", "--month", MONTH, "--focus", tmp_path / "f")
        outlay(*asked, "--provider", "aws", "--account", "lab 7")
        rows = list(csv.DictReader(io.StringIO((tmp_path / "f").read_text())))
        assert {(row["ProviderName"], row["BillingAccountId"]) for row in rows} == {
            ("aws", "lab 7")
        }
        assert {row["BilledCost"] for row in rows} == {"0.00"}

    def test_currencies_are_allocated_separately(self, tmp_path: Path) -> None:
        a_run(tmp_path / "a")
        about = {"price": Price(10**6, "EUR"), "run_id": "b", "model": "bert-base"}
        Segment(about=about).step(3600).end().write(tmp_path / "b")
        outlay("collect", tmp_path)
        shown, plain = both("cost", "allocate", "--by", "model", "--month", MONTH)
        assert ("1.00 EUR" in shown.out, "3.60 USD" in shown.out) == (True, True)
        assert [each["total"]["currency"] for each in plain.json["totals"]] == ["EUR", "USD"]

    @pytest.mark.parametrize("wrong", [("colour", MONTH), ("user", "november")])
    def test_an_invalid_owner_key_or_month_is_refused(self, wrong: tuple[str, str]) -> None:
        assert outlay("cost", "allocate", "--by", wrong[0], "--month", wrong[1]).code == 2

    @pytest.mark.usefixtures("runs")
    def test_a_month_without_runs_is_empty(self) -> None:
        found = outlay("cost", "allocate", "--by", "user", "--month", "2020-01")
        assert "No spending is known" in found.out


@pytest.mark.usefixtures("runs")
def test_budgets_are_set_and_shown_and_thresholds_alert_once() -> None:
    first = outlay("cost", "budget", "set", "bert-base", "9 USD")
    assert "alert The budget of bert-base is being used up" in first.out
    shown, plain = both("cost", "budget", "status")
    assert "75 %" in shown.out
    assert plain.json["alerts"] == []
    assert plain.json["budgets"][0]["percent_used"] == 80.0


def test_limits_that_refuse_stand_beside_what_only_alerts(
    tmp_path: Path, private_home: Path
) -> None:
    assert outlay("cost", "alert", "set", "bert-base", "9 USD").code == 0
    assert "refuse" not in outlay("cost", "alert", "status").out
    private_home.mkdir(exist_ok=True)
    log = tmp_path / "spend.jsonl"
    gone = tmp_path / "gone" / "spend.jsonl"
    (private_home / "outlay.toml").write_text(f'spend_logs = ["{log}", "{gone}"]')
    BudgetGuard(5, log, environ={}).authorize("lab02-a", 2)
    plain, machine = both("cost", "alert", "status")
    shown = machine.json
    assert "Limits that refuse" in plain.out
    assert re.search(r"whole +5\.00 USD +0\.00 USD +2\.00 USD +3\.00 USD", plain.out)
    (limit,) = shown["limits"]
    assert (limit["log"], limit["scope"], limit["refuses"]) == (str(log), "whole", True)
    assert [each["model"] for each in shown["budgets"]] == ["bert-base"]
    assert [str(gone) in each["source"] for each in shown["findings"]] == [True]
    assert outlay("cost", "ceiling", "status").out == plain.out  # Its former name.
    past = outlay("cost", "alert", "status", "--as-of", "2026-01-01", "--json").json
    assert past["limits"] == []


@pytest.mark.usefixtures("runs")
def test_the_forecast_shows_by_how_much_a_budget_is_exceeded() -> None:
    outlay("cost", "budget", "set", "bert-base", "9 USD")
    said = outlay("cost", "forecast", "bert-base", "5").out
    assert "7.20 USD of 9.00 USD spent; forecast 16.20 USD over it" in said
    assert "OVER" not in said


def test_a_budget_names_what_it_does_not_count(runs: Path) -> None:
    about = {"price": Price(10**6, "EUR"), "run_id": "c", "model": "bert-base"}
    Segment(about=about).step(3600).end().write(runs / "c")
    outlay("collect", runs)
    outlay("cost", "budget", "set", "bert-base", "9 EUR")
    shown, plain = both("cost", "budget", "status")
    (row,) = plain.json["budgets"]
    assert row["spent"] == {"micros": 10**6, "currency": "EUR"}
    assert row["not_counted"] == [{"micros": 7_200_000, "currency": "USD", "kind": "cash"}]
    assert "7.20 USD" in shown.out


def test_what_is_assumed_is_shown_beside_every_amount(tmp_path: Path) -> None:
    about = {"price": dollars(3.6), "user": "ada", "model": "m", "run_id": "a", "nodes": 1}
    Segment(about=about).step(3600).end("failed").write(tmp_path / "a")
    Segment(start=7200, about=about).step(3600).end().write(tmp_path / "a")
    outlay("collect", tmp_path)
    month = ("--month", MONTH, "--by", "user")
    for words in (
        ("cost", tmp_path / "a"), ("cost", "summary"), ("cost", "model", "m"),
        ("cost", "roi", "m"), ("cost", "allocate", *month), ("goodput", tmp_path / "a"),
    ):  # fmt: skip
        shown = outlay(*words).out
        assert ("assumed" in shown, "3.60" in shown) == (True, True), words
    (row,) = outlay("runs", "--json").json["runs"]
    assert (row["cost_micros"], row["assumed_micros"]) == (10_800_000, 3_600_000)


def test_a_budget_that_is_no_amount_is_refused() -> None:
    assert outlay("cost", "budget", "set", "m", "lots").code == 2


def test_advice_on_a_run_has_its_evidence(runs: Path) -> None:
    outlay("prices", "set", "H100", "1.20 USD/h")
    shown, plain = both("advise", runs / "a", "--why")
    assert "Win back data_loading" in shown.out
    assert "Evidence:" in shown.out
    found = {each["category"]: each for each in plain.json["recommendations"]}
    assert found["compute"]["estimated_savings"] == pytest.approx(2.4)
    assert found["badput"]["savings_low"] < found["badput"]["savings_high"]


def test_advice_leads_with_at_most_three_lines(tmp_path: Path) -> None:
    """Waits for data, slow imports, time between steps, 40 passes, a low MFU, cheaper offers."""
    about = {"price": dollars(3.6), "gpu": "H100", "run_id": "r", "process_start_ns": START_NS}
    run = Segment(start=600, about=about)
    for _ in range(10):
        run.step(300, wait=60).after(60)
    for name, value in {"epochs": 40.0, "mfu": 0.05}.items():
        run.add(Metric(t_ns=run.now_ns, name=name, value=value))
    run.end().write(tmp_path)
    outlay("prices", "set", "H100", "1.20 USD/h")
    short, found = both("advise", tmp_path)
    ordered = [
        each["title"]
        for kind in ("recommendations", "trades", "observations")
        for each in found.json[kind]
    ]
    assert len(ordered) >= 5
    lines = short.out.splitlines()
    said = [line for line in lines if "confidence" in line]
    assert len(said) == 3
    assert all(line.startswith(title) for line, title in zip(said, ordered[:3], strict=True))
    assert not any(title in short.out for title in ordered[3:])
    assert "Evidence:" not in short.out
    assert "--why" in lines[-1]
    assert all(title in outlay("advise", tmp_path, "--why").out for title in ordered)


@pytest.mark.usefixtures("runs")
def test_advice_on_a_model_has_a_backtest() -> None:
    shown, plain = both("advise", "--model", "bert-base", "--backtest")
    (row,) = plain.json["followed"]
    assert (row["run_id"], row["next_run_id"]) == ("a", "b")
    assert "Win back data_loading" in shown.out
    assert outlay("advise", "somewhere", "--backtest").code == 2


@pytest.mark.usefixtures("runs")
def test_advice_on_a_model_looks_at_its_runs() -> None:
    _, plain = both("advise", "--model", "bert-base")
    assert {each["subject"] for each in plain.json["recommendations"]} == {"a", "b"}


@pytest.mark.parametrize(
    "wrong", [(), ("--model", "nobody"), ("nowhere",), ("x", "--speed", "H100=fast")]
)
def test_advise_requires_a_run_or_a_known_model(wrong: tuple[str, ...]) -> None:
    assert outlay("advise", *wrong).code == 2


class TestCostReport:
    @pytest.mark.usefixtures("runs")
    def test_without_flags_is_the_summary(self) -> None:
        assert outlay("cost-report").out == outlay("cost-report", "--summary").out

    @pytest.mark.usefixtures("runs")
    def test_speaks_json_with_a_key_for_each_part(self) -> None:
        found = outlay("cost-report", "--summary", "--json").json
        assert set(found) == {"models", "prices", "budgets", "findings"}

    def test_shows_prices_after_a_restart(self) -> None:
        outlay("prices", "set", "A100-80GB", "1.10 USD/h")
        assert "1.1000" in outlay("cost-report", "--prices").out

    def test_fetches_prices(self) -> None:
        with serving(as_json(vast_answer())) as vendor:
            found = outlay(
                "cost-report", "--fetch-prices", "--json", OUTLAY_VAST_URL=vendor.url,
                OUTLAY_RUNPOD_URL=vendor.url, OUTLAY_LAMBDA_URL=vendor.url,
            )  # fmt: skip
        assert found.code == 0
        assert found.json["fetched"]["vast"] == 2

    @pytest.mark.usefixtures("runs")
    def test_prices_that_were_never_loaded_are_not_an_empty_list(self) -> None:
        asked = both("cost-report", "--prices")
        assert [each.code for each in asked] == [1, 1]
        assert "no prices have been loaded yet" in asked[1].err
        assert outlay("cost-report", "--json").json["prices"] is None

    def test_shows_what_is_wrong_in_the_books(self, tmp_path: Path) -> None:
        outlay("collect", _unpriced(tmp_path / "run"))
        shown, plain = both("cost-report", "--budget")
        assert "has no price, so its cost is not counted" in shown.out
        assert [each["source"] for each in plain.json["findings"]] == [str(tmp_path / "run")]

    def test_shows_a_model_even_without_accuracy(self) -> None:
        CostAnalyzer(clock=ManualClock()).analyze_training_run(costing(5, test_accuracy=None))
        found = outlay("cost-report", "--model", "bert-base")
        assert (found.code, "5.00 USD" in found.out) == (0, True)

    @pytest.mark.usefixtures("runs")
    def test_sets_budgets_and_forecasts(self) -> None:
        assert "1000.00 USD" in outlay("cost-report", "--set-budget", "bert-base", "1000.0").out
        assert "EXCEEDED" not in outlay("cost-report", "--budget").out
        assert "18.00 USD" in outlay("cost-report", "--forecast", "bert-base", "5").out

    def test_shows_recent_recommendations_once(self, runs: Path) -> None:
        for _ in range(2):
            outlay("advise", runs / "a")
        found = outlay("cost-report", "--recommendations", "--json").json["recommendations"]
        assert len(found) == len({each["category"] for each in found}) > 0

    @pytest.mark.parametrize(
        "wrong",
        [
            ("--set-budget", "m", "nan"),
            ("--set-budget", "m", "much"),
            ("--set-budget", "m", "-1"),
            ("--forecast", "m", "many"),
            ("--forecast", "m", "-3"),
        ],
    )
    def test_an_invalid_number_is_an_error_and_not_stored(self, wrong: tuple[str, ...]) -> None:
        found = outlay("cost-report", *wrong)
        assert (found.code, found.err.startswith("error: --")) == (1, True)
        assert outlay("cost-report", "--budget", "--json").json == {"budgets": [], "findings": []}

    def test_an_unknown_model_is_wrong_usage(self) -> None:
        found = outlay("cost-report", "--model", "nobody")
        assert (found.code, found.err.startswith("error:")) == (2, True)


def test_waiting_for_data_is_charged_exactly(runs: Path) -> None:
    found = outlay("cost", runs / "a", "--json").json
    assert found["cost"]["by_phase"]["data_loading"]["micros"] == 600_000
    assert found["cost"]["window"]["end_ns"] - START_NS == ns(3600)


def test_the_rest_of_a_run_with_a_budget_goes_to_its_limit(tmp_path: Path) -> None:
    budget = iso_tokens(1000)
    with run("m", dir=tmp_path, price="1 USD/h", budget=budget) as live:
        for number, _ in enumerate(live.steps(range(10), tokens=10)):
            if number == 9:
                found = outlay("cost", "forecast", "--run", tmp_path, "--json")
    assert found.code == 0
    assert found.json["target_steps"] == 100
    assert found.json["rest"]["steps_left"] == 91.0  # The tenth step has not ended.


def test_files_are_not_imported_from_a_directory_that_is_not_there(tmp_path: Path) -> None:
    found = outlay("cost", "import", tmp_path / "nowhere")
    assert (found.code, "an existing directory" in found.err) == (2, True)


def test_what_advice_saves_in_all_has_its_currency(runs: Path) -> None:
    assert re.search(r"Up to [\d.]+ USD in total; ", outlay("advise", runs / "a", "--why").out)
    assert list(outlay("advise", runs / "a", "--json").json["total_savings"]) == ["USD"]
