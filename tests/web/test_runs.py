"""Pages of runs, made without a server: settings, commands, and their comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from html import unescape
from pathlib import Path

import pytest

import outlay
from hostile import good_run
from ledgers import Segment, dollars
from outlay.clock import ManualClock
from outlay.ledger import Price, PriceChanged
from outlay.prices.offer import Tier
from outlay.prices.recording import Series
from outlay.prices.series import PricePoint
from outlay.report.drawing.run_charts import price_history
from outlay.runs.collect import collect
from outlay.runs.figures import BY_NAME
from outlay.store import open_store
from outlay.units import Money
from outlay.units.shown import money_text
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery
from outlay.web.runs import compare_page, run_page, runs_page, sweeps_page
from report_builders import run_row
from run_scene import LONG, write_runs
from sweep_on_disk import Sweep


def pages_of_two(
    tmp_path: Path, a: Mapping[str, object], b: Mapping[str, object]
) -> tuple[Page, Page]:
    """Return the page of the first run, and that of both."""
    books, store = BookReader(), open_store()
    for name, about in (("a", a), ("b", b)):
        run_dir = good_run(tmp_path / name, name, run_id=f"id-{name}", **about)
        collect(store, [run_dir], books.now_ns)
    both = PageQuery(path="/compare", query=[("run", "id-a"), ("run", "id-b")])
    return run_page(PageQuery(path="/run/id-a", name="id-a"), books), compare_page(both, books)


def test_compared_runs_differ_in_a_setting_that_is_zero_and_are_also_csv(tmp_path: Path) -> None:
    a, b = ({"config": {"decay": decay, "model": {"width": 8}}} for decay in (0.0, 0.1))
    page, compared = pages_of_two(tmp_path, a, b)
    assert "<td>decay</td><td>0.0</td><td>0.1</td>" in "".join(compared.parts)
    assert "<td>model.width</td><td>8</td>" in "".join(page.parts)
    assert page.document["config"] == {"decay": 0.0, "model": {"width": 8}}
    assert len(compared.rows) == 2


def test_the_command_is_on_a_runs_page_in_its_json_and_compared(tmp_path: Path) -> None:
    a, b = ({"command": ("python", "train.py", "--lr", rate)} for rate in ("0.1", "0.2"))
    page, compared = pages_of_two(tmp_path, a, b)
    assert "<dd>python train.py --lr 0.1</dd>" in "".join(page.parts)
    assert list(page.document["command"]) == ["python", "train.py", "--lr", "0.1"]
    cells = "<td>python train.py --lr 0.1</td><td>python train.py --lr 0.2</td>"
    assert f"<td>command</td>{cells}" in "".join(compared.parts)


def test_page_of_a_growing_run_never_shows_an_older_reading(
    tmp_path: Path, clock: ManualClock
) -> None:
    books = BookReader(clock=clock)
    shown = []
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        asked = PageQuery(path="/run", name=run.run_id)
        for _ in range(300):
            with run.step():
                clock.advance(2 * 10**9)
            shown += [row["text"] for row in run_page(asked, books).rows if row["label"] == "steps"]
    assert shown == [str(steps) for steps in range(1, 301)]


def test_list_of_sweeps_has_the_amounts_of_both_kinds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep")
    for kind in ("cash", "showback"):
        price = {"price": "3.6 USD/h", "price_kind": kind, "predicted_cost": "2 USD"}
        run_dir = sweep.add(kind, **price)
        sweep.events[-1] |= {"cost_micros": 1_500_000, "currency": "USD"}
        collect(open_store(), [good_run(run_dir, kind, run_id=kind)], 1)
    sweep.add("last")
    page = sweeps_page(PageQuery(path="/sweeps"), BookReader())
    (row,) = page.rows
    assert row["spent"] == "1.50 USD, 1.50 USD showback"
    assert '<td data-label="planned">2.00 USD, 2.00 USD showback</td>' in "".join(page.parts)
    assert '<td data-label="spent">1.50 USD, 1.50 USD showback</td>' in "".join(page.parts)


# The list of runs


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Page]:
    """Return the list of seven runs of three teams, of which one paid in euros, for a query."""
    write_runs(tmp_path, 7)
    books = BookReader()
    collect(books.store, sorted(tmp_path.iterdir()), books.now_ns)
    return lambda **query: runs_page(PageQuery(path="/runs", query=[*query.items()]), books)


def test_sums_of_groups_are_those_of_their_runs_by_currency(listed: Callable[..., Page]) -> None:
    for by in ("model", "user", "team", "project"):
        whole = listed(group=by)
        for group in whole.document["groups"]:
            tag = {"tag": f"{by}={group.name}"}
            narrowed = tag if by in ("team", "project") else {str(by): str(group.name)}
            rows = listed(**narrowed).rows
            assert len(rows) == group.count
            units = {str(row["currency"]) for row in rows}
            sums = {
                unit: sum(Decimal(str(r["cost"])) for r in rows if r["currency"] == unit)
                for unit in units
            }
            assert {each.currency: each.amount for each in group.costs} == sums
            text = "".join(whole.parts)
            for cost in group.costs:
                assert money_text(cost) in text
        assert ", which cost" in whole.verdict


def test_groups_of_a_list_follow_each_other_in_its_order(listed: Callable[..., Page]) -> None:
    rows = listed(group="team", sort="name").rows
    teams = [str(row["tags"]).split(",")[0] for row in rows]
    assert teams == sorted(teams)
    names = [str(row["name"]) for row in rows if "team=language" in str(row["tags"])]
    assert names == sorted(names)


def test_the_sum_of_a_run_that_paid_in_two_currencies_has_both(tmp_path: Path) -> None:
    story = Segment(about={"run_id": "two", "model": "m", "price": dollars(3600)}).step(1)
    euros = Price(micros_per_hour=7_200_000_000, currency="EUR")
    story.add(PriceChanged(t_ns=story.now_ns, price=euros, gpus=1)).step(1).end().write(
        tmp_path / "two"
    )
    books = BookReader()
    collect(books.store, [tmp_path / "two"], books.now_ns)
    page = runs_page(PageQuery(path="/runs"), books)
    assert page.verdict == "1 registered run, which cost 2.00 EUR and 1.00 USD."


def test_status_cost_and_goodput_come_first_whatever_columns_are_chosen(
    listed: Callable[..., Page],
) -> None:
    def headings(**query: str) -> list[str]:
        head = "".join(listed(**query).parts).partition("<thead>")[2].partition("</thead>")[0]
        return [re.sub("<[^>]*>", "", each) for each in re.findall("<th .*?</th>", head)]

    assert headings()[:5] == ["run", "status", "cost", "goodput", "loss"]
    chosen = PageQuery(path="/runs", query=[("col", "host"), ("col", "cost")])
    assert headings(col="host")[:3] == ["run", "status", "host"]
    assert chosen.every("col") == ["host", "cost"]


def test_filters_offer_the_statuses_that_exist(listed: Callable[..., Page]) -> None:
    text = "".join(listed().parts)
    (choices,) = re.findall('<select name="status">(.*?)</select>', text)
    offered = re.findall('value="([^"]*)"', choices)
    assert offered == ["", "completed", "dead", "failed", "interrupted", "preempted"]


def test_an_active_filter_is_shown_with_a_link_that_removes_it(listed: Callable[..., Page]) -> None:
    text = "".join(listed(status="failed", user="grace", page="3").parts)
    (items,) = re.findall('<ul class="active".*?</ul>', text)
    links = [unescape(each) for each in re.findall('href="([^"]*)"', items)]
    assert links == ["/runs?user=grace", "/runs?status=failed", "/runs"]


def test_a_row_has_a_small_line_of_its_loss(listed: Callable[..., Page]) -> None:
    page = listed()
    values = [float(each) for each in str(page.rows[0]["loss_trend"]).split()]
    assert 12 <= len(values) <= 24
    assert values[0] > 8 > 2 > values[-1]
    assert "".join(page.parts).count('<svg class="trend"') == 7
    bars = BY_NAME["loss_trend"].text(run_row(loss_trend=(9.0, 5.0, 1.0)), 0)
    assert bars == "█▅▁"


def test_a_long_name_is_whole_in_the_text_and_gives_way_in_its_middle(
    listed: Callable[..., Page],
) -> None:
    text = "".join(listed().parts)
    head, tail = LONG[:-9], LONG[-9:]
    assert f'<span class="head">{head}</span><span class="tail">{tail}</span>' in text


def test_a_comparison_says_that_it_shows_only_the_first_runs(tmp_path: Path) -> None:
    write_runs(tmp_path, 13)
    books = BookReader()
    collect(books.store, sorted(tmp_path.iterdir()), books.now_ns)
    chosen = [("run", f"run{number:04d}") for number in range(13)]
    page = compare_page(PageQuery(path="/compare", query=chosen), books)
    assert page.verdict == "The first 12 of the 13 selected runs are compared."
    assert len(page.rows) == 12
    assert compare_page(PageQuery(path="/compare", query=chosen[:12]), books).verdict == ""


def test_prices_of_the_same_terms_from_two_sources_have_two_names() -> None:
    one = Series(
        source="aws", provider="aws", gpu="A100", gpu_count=8, tier=Tier.SPOT, community=False,
        currency="USD",
    )  # fmt: skip
    sources = [one, replace(one, source="skypilot")]
    price = Money.parse("1 USD")
    points = [PricePoint(series=each, at_ns=1, price=price, offers=1) for each in sources]
    (chart,) = price_history(points, title="A100")
    assert chart.labels == ("aws 8x A100 spot (aws)", "aws 8x A100 spot (skypilot)")
