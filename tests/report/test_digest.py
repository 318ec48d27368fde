"""The digest: its parts sum to the period's spending, and agree with the other screens."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

import outlay
from browser import chromium
from command_line import in_process
from ledgers import HOUR, Segment, dollars
from outlay.alerts.rounds import AlertWatch
from outlay.clock import ManualClock, utc_datetime
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.compat.cost_module.training import TrainingMetrics
from outlay.cost.charges import month_window
from outlay.cost.cost_book import CostBook
from outlay.cost.spending import SpendItem
from outlay.goodput.timeline import Window
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger.price import Price
from outlay.report.digest import IN_NO_RUN, Digest, digest_document, read_digest, spent_parts
from outlay.report.document import to_html, to_markdown
from outlay.report.drawing.charts import LineChart
from outlay.runs.accounting.sacct_import import IN_NO_RUN as REST_OF_JOB
from outlay.runs.collect import collect
from outlay.store import open_store
from outlay.units import Money, Unit
from outlay.web.book_reader import BookReader
from outlay.web.money import money_page
from outlay.web.page import Page, PageQuery

DAY = 24 * HOUR
START = Segment().header.t_ns
H = 3600.0


def record(
    directory: Path,
    *,
    user: str = "ada",
    model: str = "bert",
    end: bool = True,
    start: float = 0.0,
    price: Price | None = None,
) -> int:
    """Write a run of three hours at 1 USD/h, of which two are steps; return its end."""
    about = {
        "run_id": f"{user}-{model}-{directory.name}",
        "user": user,
        "model": model,
        "name": model,
    }
    story = Segment(start=start, about=about | {"price": price or dollars(1)})
    story.step(H).step(H).span("evaluation", H)
    if end:
        story.end()
    story.write(directory)
    collect(open_store(), [directory], story.now_ns)
    return story.now_ns


def digest_of(start_ns: int, end_ns: int, *logs: Path, now_ns: int | None = None) -> Digest:
    now_ns = end_ns if now_ns is None else now_ns
    return read_digest(open_store(), logs, Window(start_ns, end_ns), now_ns)


def test_spending_by_user_model_and_phase(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", user="bob", model="gpt")
    found = digest_of(START, START + DAY)
    assert list(found.totals().values()) == [Money(6_000_000)]
    (unit,) = found.totals()
    assert found.by_phase(unit) == {"step": Money(4_000_000), "evaluation": Money(2_000_000)}
    page = to_markdown(digest_document(found))
    assert "| who | model | spent | productive | wasted |" in page, "no column of zeros"
    assert "| bob | gpt | 3.00 USD | 2.00 USD | 1.00 USD |\n" in page


def test_only_the_part_of_a_run_inside_the_period_counts(tmp_path: Path) -> None:
    end_ns = record(tmp_path / "a")
    found = digest_of(START + HOUR + HOUR // 2, end_ns)
    (unit,) = found.totals()
    assert found.by_phase(unit) == {"step": Money(500_000), "evaluation": Money(1_000_000)}


def test_the_week_is_compared_with_the_week_before_in_total_and_by_owner(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "gone", user="cy", model="old")
    record(tmp_path / "b", user="bob", model="gpt", start=7 * DAY / 1e9)
    record(tmp_path / "c", model="bert", start=7 * DAY / 1e9)
    found = digest_of(START + 7 * DAY, START + 14 * DAY)
    (unit,) = found.totals()
    assert found.change(unit).spent == found.change(unit).before == Money(6_000_000)
    page = to_markdown(digest_document(found))
    assert "6.00 USD were spent (+0% against 6.00 USD before)" in page
    for line in (
        "| ada | bert | 3.00 USD | 0.00 |", "| bob | gpt | 3.00 USD | new |",
        "| cy | old | 0.00 USD | -3.00 USD, none now |",
    ):  # fmt: skip
        assert line in page
    whole = in_process(
        "digest", "--since", "2023-11-21T22:13:20Z", "--json"
    ).json  # To now: all of it is before or inside.
    assert whole["totals"]["USD"] == {"micros": 6_000_000, "currency": "USD"}


def test_the_chart_sums_to_the_total_to_the_micro_unit(tmp_path: Path) -> None:
    record(tmp_path / "a", price=dollars(0.777777))
    record(tmp_path / "b", user="bob", price=dollars(0.333333), start=2.4 * DAY / 1e9)
    (chart,) = digest_document(digest_of(START - DAY, START + 5 * DAY + 7)).charts()
    assert isinstance(chart, LineChart)
    assert len(chart.curves[0].points) == 7
    (total,) = digest_of(START - DAY, START + 5 * DAY + 7).totals().values()
    assert round(sum(y for _, y in chart.curves[0].points) * 10**6) == total.micros


def test_the_text_has_the_chart_as_a_line_of_bars(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1) as run:
        list(run.steps("ab"))
    shown = in_process("digest", columns=80).out
    assert re.search(r"^·{6}█  this period  most \S+ USD$", shown, re.MULTILINE)


def test_the_page_opens_offline_and_is_printed_on_one_sheet(tmp_path: Path) -> None:
    for number in range(30):
        record(
            tmp_path / f"{number}", user=f"user{number}", model=f"a-model-of-a-long-name-{number}",
            end=number % 3 > 0, start=number % 12 * DAY / 1e9,
        )  # fmt: skip
    found = digest_of(START + 6 * DAY, START + 13 * DAY)
    page = to_html(digest_document(found), is_sheet=True)
    assert re.findall(r"(?:src|href)=|url\(|@import|https?://(?!www\.w3\.org)", page) == []
    margin = dict.fromkeys(("top", "bottom", "left", "right"), "11mm")
    with chromium() as chrome:
        opened = chrome.new_page()
        opened.set_content(page)
        for form in ("A4", "Letter"):
            printed = opened.pdf(format=form, margin=margin)
            assert re.findall(rb"/Type /Pages\s+/Count (\d+)", printed) == [b"1"], form


def test_a_rental_without_a_run_is_listed_as_in_no_run() -> None:
    spend = SpendItem(
        source="rental", run_id="h1", model="(rented, in no run)", name="pod", start_ns=0,
        end_ns=4 * HOUR, booked_ns=0, cost=Money(4_000_000), assumed=Money(0),
    )  # fmt: skip
    (part,) = spent_parts([spend], {}, Window(HOUR, 10 * HOUR))
    assert (part.phase, part.micros) == (IN_NO_RUN, 3_000_000)


def test_dead_runs_limits_above_75_percent_and_heads_are_listed(
    tmp_path: Path, clock: ManualClock
) -> None:
    record(tmp_path / "a", end=False)
    CostBook(open_store()).set_budget("bert", Money(3_500_000), 1)
    guard = BudgetGuard("10", tmp_path / "spend.jsonl", clock=clock)
    guard.authorize("lab02-train", "9.00")
    found = digest_of(START - DAY, START + DAY, tmp_path / "spend.jsonl")
    page = to_markdown(digest_document(found))
    assert [row.name for row in found.dead] == ["bert"]
    assert "| budget of bert | 3.00 USD | 3.50 USD | 86% |" in page
    assert "| 9.00 USD | 10.00 USD | 90% |" in page
    assert guard.head in page
    assert [section.title for section in digest_document(found).sections][-1] == "Spend logs"


def test_the_month_is_what_was_spent_and_the_rest_at_the_daily_cost(tmp_path: Path) -> None:
    record(tmp_path / "a")  # On 14 November 2023, at 22:13:20 UTC.
    now_ns = START + 4 * HOUR
    (total,) = digest_of(now_ns - DAY, now_ns, now_ns=now_ns).months.values()
    left_days = (1_701_388_800 * 10**9 - now_ns) / DAY
    assert total.point / 1e6 == pytest.approx(3 + 3 * left_days)
    assert total.low is None, "one day shows no spread"


def test_the_digest_and_the_money_page_show_the_same_month(
    tmp_path: Path, clock: ManualClock
) -> None:
    for day, user in enumerate(("ada", "bob", "cy", "dee")):
        record(tmp_path / user, user=user, start=float(day * day) * 86_400)
    clock.advance(START + 11 * DAY - clock.wall_ns())
    page = to_html(digest_document(digest_of(START, clock.wall_ns())))
    shown = money_page(PageQuery(path="/money"), BookReader(clock=clock)).parts
    figure = re.compile("by the end of the month</dt><dd[^>]*>(?:<a [^>]*>)?(.*?)(?:</a>)? <span")
    found = [match.group(1) for match in map(figure.search, (page, "".join(shown))) if match]
    assert len(found) == 2
    assert found[0] == found[1]
    assert re.fullmatch(r"[0-9.]+ USD \([0-9.]+ to [0-9.]+ USD, 80%\)", found[0])
    other = money_page(
        PageQuery(path="/money", query=[("month", "2023-10")]), BookReader(clock=clock)
    ).parts
    assert figure.search("".join(other)) is None, "another month is no forecast"


NOVEMBER, DECEMBER = month_window("2023-11"), month_window("2023-12")


def money_of_month(month: str, clock: ManualClock) -> Page:
    query = PageQuery(path="/money", query=[("month", month)])
    return money_page(query, BookReader(clock=clock))


def record_across_the_month(root: Path) -> None:
    """Write what crosses the end of November, each at a dollar an hour.

    Two attempts: 2 hours that ended 3 hours before it, and 2 hours from 5 hours after it. A
    training of 4 hours that was stated to have ended an hour after it.
    """
    about = {"run_id": "a", "user": "ada", "model": "bert", "price": dollars(1)}
    for at_ns in (NOVEMBER.end_ns - 5 * HOUR, NOVEMBER.end_ns + 5 * HOUR):
        segment = Segment(start=(at_ns - START) / 1e9, about=about).step(H).span("evaluation", H)
        segment.end("failed").write(root / "a")
    collect(open_store(), [root / "a"], DECEMBER.end_ns)
    ended = utc_datetime(NOVEMBER.end_ns + HOUR)
    CostAnalyzer().analyze_training_run(
        TrainingMetrics("stated", "m", 1, 1, 1, 0.1, 4.0, "T4", 1.0, timestamp=ended)
    )


@pytest.mark.parametrize(("month", "dollars_spent"), [("2023-11", 2), ("2023-12", 8 + 2 + 4)])
def test_a_month_has_the_same_total_in_the_digest_the_money_page_and_allocate(
    tmp_path: Path, clock: ManualClock, month: str, dollars_spent: int
) -> None:
    """The gap of 8 hours and the stated training are booked whole, in December."""
    record_across_the_month(tmp_path)
    clock.advance(DECEMBER.end_ns + HOUR - clock.wall_ns())
    period = month_window(month)
    digest = digest_of(period.start_ns, period.end_ns, now_ns=clock.wall_ns())
    assert list(digest.totals().values()) == [Money(dollars_spent * 10**6)]
    page = money_of_month(month, clock)
    assert sum(Decimal(str(row["cost"])) for row in page.rows) == dollars_spent
    allocated = in_process("cost", "allocate", "--by", "user", "--month", month, "--json").json
    assert [total["total"]["micros"] for total in allocated["totals"]] == [dollars_spent * 10**6]


def test_a_month_has_the_same_phases_in_the_digest_and_on_the_money_page(
    tmp_path: Path, clock: ManualClock
) -> None:
    record_across_the_month(tmp_path)
    clock.advance(DECEMBER.end_ns + HOUR - clock.wall_ns())
    digest = digest_of(DECEMBER.start_ns, DECEMBER.end_ns, now_ns=clock.wall_ns())
    (unit,) = digest.totals()
    assert digest.by_phase(unit) == {
        "step": Money(10**6), "recovery": Money(8 * 10**6), "not recorded": Money(4 * 10**6),
        "evaluation": Money(10**6),
    }  # fmt: skip
    page = "".join(money_of_month("2023-12", clock).parts)
    wasted = page.partition("<h2>Wasted, by phase</h2>")[2].partition("</table>")[0]
    shown = re.findall(r"<td>(\w+)</td><td>.*?([0-9.]+)%</td>", wasted)
    assert shown == [("recovery", "80.0"), ("evaluation", "10.0")]


def test_in_no_run_is_the_same_amount_in_the_digest_and_on_the_money_page(
    tmp_path: Path, clock: ManualClock
) -> None:
    """What none of the runs of a Slurm job had counts as a rental without a run does."""
    about = {"run_id": "rest", "user": "ada", "model": REST_OF_JOB, "name": "rest"}
    price = Price(micros_per_hour=2_000_000, kind="showback")
    story = Segment(about=about | {"price": price}).span("idle", 2 * H).end()
    story.write(tmp_path / "rest")
    collect(open_store(), [tmp_path / "rest"], story.now_ns)
    record(tmp_path / "run")
    clock.advance(START + DAY - clock.wall_ns())
    digest = digest_of(START, START + DAY)
    unit = Unit("USD", "showback")
    assert digest.by_phase(unit) == {IN_NO_RUN: unit.money(4_000_000)}
    page = money_of_month("2023-11", clock)
    assert "<dt>in no run</dt>" in "".join(page.parts)
    assert "4.00 USD showback" in "".join(page.parts)
    forecast = "".join(page.parts).partition("<h2>What the next run would cost</h2>")[2]
    assert "in no run" not in forecast.partition("</section>")[0], "no model to forecast"
    owners = {(row["owner"], row["kind"]): row["cost"] for row in page.rows}
    assert owners == {("ada in no run", "showback"): 4, ("ada", "cash"): 3}


def test_at_most_three_recommendations_the_largest_saving_first(tmp_path: Path) -> None:
    for number in range(5):
        record(tmp_path / str(number), model=f"m{number}")
    advice = digest_of(START, START + DAY).advice
    savings = [line.saves for line in advice]
    assert savings == sorted(savings, reverse=True)
    assert 0 < len(advice) <= 3
    assert advice[0].runs == 5, "the same advice for five runs is one line"
    assert advice[0].saves == pytest.approx(5 * advice[0].best.estimated_savings)
    assert "| 5 |" in to_markdown(digest_document(digest_of(START, START + DAY)))


def test_savings_of_cash_and_of_showback_are_not_added(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", model="gpt", price=Price(micros_per_hour=2_000_000, kind="showback"))
    digest = digest_of(START, START + DAY)
    assert [(line.unit.kind, line.runs) for line in digest.advice] == [("showback", 1), ("cash", 1)]
    assert "1.00 USD showback | 1 |" in to_markdown(digest_document(digest))


def test_a_period_without_spending_says_so(tmp_path: Path) -> None:
    del tmp_path
    assert digest_document(digest_of(0, DAY)).verdict == "Nothing was spent."


def test_html_escapes_names(tmp_path: Path) -> None:
    record(tmp_path / "a", model="<script>alert(1)</script>")
    page = to_html(digest_document(digest_of(START, START + DAY)))
    assert "<script>alert" not in page
    assert "3.00 USD" in page


@pytest.mark.parametrize(
    ("form", "begins"), [("text", "What was"), ("markdown", "# What was"), ("html", "<!doctype")]
)
def test_the_command_writes_each_form(tmp_path: Path, form: str, begins: str) -> None:
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1) as run:
        list(run.steps("ab"))
    done = in_process("digest", "--format", form)
    assert done.code == 0
    assert "Who spent what" in done.out
    written = in_process("digest", "--format", form, "--output", tmp_path / "week")
    page = (tmp_path / "week").read_text()
    assert (written.code, "USD" in page) == (0, True)
    assert page.startswith(begins)
    assert ("|---|" in page) is (form == "markdown")


def test_json_has_the_parts(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1) as run:
        list(run.steps("ab"))
    found = in_process("digest", "--json").json
    whole = found["totals"]["USD"]["micros"]
    assert sum(part["micros"] for part in found["parts"]) == whole > 0
    assert found["month"] == found["month_interval"] == {}, "no day before today"


def test_a_period_that_has_not_begun_is_refused() -> None:
    assert in_process("digest", "--since", "2999-01-01T00:00Z").code == 2


def test_a_weekly_alert_has_the_digest_in_its_body(
    tmp_path: Path, private_home: Path, clock: ManualClock
) -> None:
    record(tmp_path / "a")
    clock.advance(START - clock.wall_ns() + DAY)
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text('[[alerts.rule]]\nwhen = "digest"\nevery = "7d"\n')
    said: list[str] = []
    watch = AlertWatch(said.append, clock=clock)
    watch.round()
    clock.advance(6 * DAY)
    watch.round()
    assert [line.splitlines()[0] for line in said] == ["digest: what was spent in the last 7d00h"]
    assert "| ada | bert | 3.00 USD |" in said[0]
    clock.advance(2 * DAY)
    watch.round()
    assert len(said) == 2


def test_a_log_that_was_used_by_hand_is_shown_with_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / f"work-{tmp_path.name}"
    work.mkdir()
    monkeypatch.chdir(work)
    held = in_process("guard", "authorize", "first", "3.00 USD", "--ceiling", "5")
    assert held.code == 0, held.err
    monkeypatch.chdir(tmp_path)
    shown = in_process("digest", columns=300).out
    assert re.search(rf"{work.name}/spend\.jsonl +5\.00 USD +0\.00 USD +3\.00 USD", shown)
    (work / "spend.jsonl").unlink()
    assert work.name not in in_process("digest").out
