"""The report of a sweep: one file that opens offline, says what was best, and fits a phone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.cost.compare import non_dominated
from outlay.escaping import latex_text
from outlay.report.sweep_document import latex_table
from outlay.sweep.aggregate.rows import labelled
from outlay.units.shown import number_text
from report_builders import MINUTE, page, report, sweep_row


def test_the_page_opens_offline_and_escapes_what_it_shows() -> None:
    text = report().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:src|href)=|https?://|@import|url\(", text) == []
    assert "demo &amp; more" in text
    assert "<rate>" not in text


@pytest.mark.parametrize(
    "title",
    [
        "acc against cost", "Configurations", "Learning for the money",
        "Where the money went", "Runs over time", "How equal the budgets were",
        "How the figures are known",
    ],
)  # fmt: skip
def test_the_page_has_every_part(title: str) -> None:
    assert f"<h2>{title}</h2>" in report()


def test_the_page_says_what_is_measured_estimated_and_assumed_and_marks_kills() -> None:
    text = report()
    for word in ("Measured: 3 of 3 runs", "Estimated:", "Assumed: assumed billed", "SIGKILL"):
        assert word in text
    assert "Best: lr=3 with acc 0.95" in text


def test_values_that_the_budget_made_equal_get_no_axis() -> None:
    assert "acc against minutes" not in report()


def test_time_at_one_price_is_no_axis_beside_cost() -> None:
    three = [sweep_row(n, 0.7 + n / 10, n * 300_000, wall_ns=n * MINUTE) for n in (1, 2, 3)]
    text = page("one price", three)
    assert "<h2>acc against cost</h2>" in text
    assert "acc against minutes" not in text


def test_equal_charges_make_no_cost_axis_though_start_up_differs() -> None:
    charged = {"cost_usd": 1.0}
    two = [
        sweep_row(1, 0.9, 1_100_000, wall_ns=MINUTE, totals=charged),
        sweep_row(2, 0.7, 1_900_000, wall_ns=2 * MINUTE, totals=charged),
    ]
    text = page("equal money", two)
    assert "against cost" not in text
    assert "<h3>Ranking</h3>" in text


def test_points_have_names_and_the_colour_of_their_configuration() -> None:
    plane = report().split("acc against cost</h2>")[1].split("</div>")[0]
    assert re.findall(r'class="mark c(\d)', plane) == ["0", "1", "2"]
    assert len(re.findall(r">00\d_&lt;rate&gt;</text>", plane)) == 3


def test_configurations_are_ranked_under_the_name_of_the_metric() -> None:
    ranking = report().split("<h2>Configurations</h2>")[1].split("</table>")[0]
    assert '<th scope="col" class="n">acc</th>' in ranking
    assert re.findall(r"<td>(lr=\d)</td>", ranking) == ["lr=3", "lr=1", "lr=2"]


def test_ties_share_a_place() -> None:
    two = [sweep_row(1, 0.9, 900_000), sweep_row(2, 0.9, 950_000)]
    text = page("tie", two)
    assert "A tie: lr=1, lr=2, each with acc 0.9." in text
    ranking = text.split("<h2>Configurations</h2>")[1].split("</table>")[0]
    assert re.findall(r'<tr><td class="n">(\d)</td>', ranking) == ["1", "1"]


def test_the_page_is_a_main_landmark() -> None:
    assert "<main>" in report()


def test_axis_labels_are_round_and_unique() -> None:
    plane = report().split("acc against cost</h2>")[1].split("</div>")[0]
    across = re.findall(r'y="100%" dy="18" text-anchor="middle">([^<]*)', plane)
    assert across == ["0.9", "0.92", "0.94", "0.96", "0.98", "1"]


def test_a_kill_is_marked_above_every_bar_and_an_empty_page_has_no_chart() -> None:
    gantt = report().split("Runs over time</h2>")[1].split("</svg>")[0]
    assert gantt.rindex("<rect") < gantt.index("&#215;")
    assert "<svg" not in page("empty", []).split("<script>")[0]


def test_runs_of_one_configuration_share_a_line_in_the_legend() -> None:
    two = [sweep_row(1, 0.9, 900_000), sweep_row(2, 0.7, 950_000)]
    for seed, one in enumerate(two):
        one.run.params.update(lr=5, seed=seed)
    text = page("seeds", two)
    assert set(re.findall(r"</svg> ([^<]*)</button>", text)) == {"lr=5"}
    assert text.count('class="curve c0"') == 3  # Two runs, and the sample in the legend.


def test_money_of_two_currencies_shares_no_axis_and_is_never_added() -> None:
    two = [sweep_row(1, 0.9, 900_000), sweep_row(2, 0.7, 950_000, currency="EUR")]
    text = page("mixed", two)
    for title in ("acc against cost", "Learning for the money", "Where the money went"):
        assert re.findall(rf"<h2>{title} \((...)\)</h2>", text) == ["USD", "EUR"]
    assert "together 0.90 USD." in text
    assert "together 0.95 EUR." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.1235"), (999.96, "1000"), (12345.678, "12,345.68"), (1_234_567, "1,234,567")],
)
def test_a_number_in_a_table_is_never_cut_to_a_power_of_ten(value: float, text: str) -> None:
    assert number_text(value) == text


def test_costs_in_the_tables_have_their_currency() -> None:
    assert 'title="0.90 USD">0.90 <span class="unit">USD</span></td>' in report()


def test_the_table_for_a_paper_escapes_names_and_shows_means() -> None:
    text = latex_table(labelled([sweep_row(1, 0.9, 900_000)]))
    assert r"lr=1 & 1 & $0.9$ & 0.90~USD \\" in text
    assert latex_text("a_b & 5%") == r"a\_b \& 5\%"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_a_point_is_on_the_front_unless_another_beats_it(points: list[tuple[int, int]]) -> None:
    on_front = non_dominated([(float(x), -float(y)) for x, y in points])
    for (x, y), best in zip(points, on_front, strict=True):
        beaten = any((a <= x and b > y) or (a < x and b >= y) for a, b in points)
        assert best is not beaten
