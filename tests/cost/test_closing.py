"""Closed months stay as they were reported; what becomes known later books into the open month."""

from __future__ import annotations

from csv import DictReader
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import in_process
from ledgers import HOUR, SECOND, START_NS, Segment, dollars
from outlay.clock import SYSTEM
from outlay.cost.charges import month_window
from outlay.cost.closing import (
    CLOSED,
    KeptMonth,
    NotTheOwner,
    document_of,
    keep_month,
    with_closed_months,
)
from outlay.cost.spending import Spending, SpendItem
from outlay.ledger import PriceCorrected, kind_of
from outlay.store import open_store, outlay_home
from outlay.units import Money
from outlay.web.book_reader import BookReader
from outlay.web.money import money_page
from outlay.web.page import PageQuery
from postgres import PostgresServer

SEPTEMBER, OCTOBER = month_window("2023-09"), month_window("2023-10")


def write_run(root: Path, name: str, cost: float, *, day: int = 2, price: float = 3) -> Path:
    """Write a run of September 2023 that costs so many dollars."""
    start_s = (SEPTEMBER.start_ns - START_NS) / SECOND + day * 86_400
    about = {"price": dollars(price), "run_id": name, "name": name, "user": "ada", "model": "m"}
    Segment(start=start_s, about=about).step(cost / price * 3600).end().write(root / name)
    return root / name


def said(*words: object) -> Any:
    done = in_process(*words, "--json")
    assert done.code == 0, done.err
    return done.json


def booked(month: str, *more: object) -> tuple[float, list[tuple[str, str, float]]]:
    """Return a month's total in dollars, and what of it was booked late: origin, run, amount."""
    found = said("cost", "allocate", "--by", "user", "--month", month, *more)
    total = sum(each["total"]["micros"] for each in found["totals"]) / 10**6
    late = [(row["origin"], row["run"], row["cost"]["micros"] / 10**6) for row in found["late"]]
    return total, late


def close(month: str, *more: object) -> Any:
    return said("books", "close", month, "--reason", "invoices seen", *more)


def document(month: str) -> bytes:
    return (outlay_home() / CLOSED / f"{month}.json").read_bytes()


def test_a_closed_month_does_not_move_and_the_open_one_names_what_came_later(
    tmp_path: Path,
) -> None:
    """September is reported with 20; a log of 100 and accounts of 96 are imported later."""
    said("collect", write_run(tmp_path, "a", 20))
    assert booked("2023-09") == (20, [])
    closed = close("2023-09")
    written = document("2023-09")
    as_of = ("--as-of", "2023-10-01")
    known: list[tuple[str, str, float]] = []
    for name, cost in (("b", 100), ("c", 96)):
        said("collect", write_run(tmp_path, name, cost, day=5))
        known.append(("2023-09", name, cost))
        assert booked("2023-09") == booked("2023-09", *as_of) == (20, [])
        assert said("cost", "summary", *as_of)["totals"] == {"USD": 20.0}
        assert booked("2023-10") == (sum(cost for _, _, cost in known), known)
    assert said("cost", "summary")["totals"] == {"USD": 216.0}
    (row,) = said("books", "show")["months"]
    assert (row["sha256"], document("2023-09")) == (closed["sha256"], written)


def test_what_was_booked_late_is_booked_once(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    first = close("2023-09")
    said("collect", write_run(tmp_path, "b", 100))
    second = close("2023-10")
    assert second["previous"] == first["sha256"]
    assert booked("2023-10") == (100, [("2023-09", "b", 100)])
    assert booked("2023-11") == (0, [])
    said("collect", write_run(tmp_path, "c", 96))
    assert booked("2023-11") == (96, [("2023-09", "c", 96)])
    assert booked("2023-10", "--as-of", "2023-11-01") == (100, [("2023-09", "b", 100)])
    assert "booked here" in in_process("books", "show", "2023-10").out


def test_a_price_is_corrected_in_its_month_before_it_is_closed_and_in_the_open_one_after(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path, "a", 200, price=30)
    said("collect", run)
    correct = ("cost", "correct", run, "--reason", "typed one zero too much")
    first = said(*correct, "--price", "3 USD/h")
    assert (first["cost_was"]["micros"], first["cost"]["micros"]) == (200_000_000, 20_000_000)
    assert (first["was"], first["books_into"]) == ("30.00 USD/h", None)
    assert booked("2023-09") == (20, [])
    close("2023-09")
    written = document("2023-09")
    assert said(*correct, "--price", "1.50 USD/h")["books_into"] == "2023-10"
    assert booked("2023-09") == (20, [])
    assert booked("2023-10") == (-10, [("2023-09", "a", -10)])
    assert document("2023-09") == written
    shown = in_process("cost", run, columns=200).out
    assert "1.50 USD/h per GPU: corrected from 3.00 USD/h: typed one zero too much" in shown


def test_a_correction_is_a_line_of_the_log_and_no_sign_of_life(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", 20)
    before = said("runs", tmp_path)["runs"][0]
    said("cost", "correct", run, "--price", "6 USD/h", "--reason", "a better invoice")
    after = said("runs", tmp_path)["runs"][0]
    assert (after["last_seen_ns"], after["status"]) == (before["last_seen_ns"], "completed")
    assert (before["cost"]["micros"], after["cost"]["micros"]) == (20_000_000, 40_000_000)
    (path,) = (run / "ledger").iterdir()
    assert kind_of(PriceCorrected(t_ns=0, price=dollars(1))) in path.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--price", "3 USD/h", "--reason", "x"), "--price"),
        (("--price", "2 USD/h", "--reason", " "), "--reason"),
        (("--price", "2 USD/h", "--reason", "x", "--was", "7 USD/h"), "--was"),
        (("--price", "two", "--reason", "x"), "--price"),
    ],
    ids=["same price", "no reason", "a price it never had", "no price"],
)
def test_a_correction_that_cannot_be_meant_is_refused(
    tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    run = write_run(tmp_path, "a", 20)
    (path,) = (run / "ledger").iterdir()
    before = path.read_bytes()
    done = in_process("cost", "correct", run, *words)
    assert (done.code, what in done.err) == (2, True)
    assert path.read_bytes() == before


def test_of_several_prices_the_wrong_one_is_named(tmp_path: Path) -> None:
    story = Segment(about={"price": dollars(3), "run_id": "a"}).step(3600).price(30).step(3600)
    story.end().write(tmp_path)
    corrected = ("cost", "correct", tmp_path, "--price", "4 USD/h", "--reason", "x")
    assert in_process(*corrected).code == 2
    found = said(*corrected, "--was", "30 USD/h")
    assert found["cost"]["micros"] == 7_000_000


def test_a_price_of_a_live_run_is_not_corrected(tmp_path: Path) -> None:
    now_s = (SYSTEM.wall_ns() - START_NS) / SECOND
    Segment(start=now_s - 60, about={"price": dollars(3)}).step(30).write(tmp_path)
    done = in_process("cost", "correct", tmp_path, "--price", "4 USD/h", "--reason", "x")
    assert (done.code, "run.set_price" in done.err) == (2, True)


def test_months_are_closed_in_order_and_once(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    close("2023-09")
    for month in ("2023-09", "2023-11", "2023-08", "9999-01", "September"):
        done = in_process("books", "close", month, "--reason", "x")
        assert (done.code, "MONTH" in done.err or "month" in done.err) == (2, True), month
    assert in_process("books", "close", "2023-10", "--reason", "").code == 2


def test_a_month_that_has_not_ended_is_not_closed() -> None:
    done = in_process("books", "close", "2999-01", "--reason", "x")
    assert (done.code, "has ended" in done.err) == (2, True)


def test_a_changed_document_is_found_and_does_not_count(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    close("2023-09")
    path = outlay_home() / CLOSED / "2023-09.json"
    path.write_text(path.read_text().replace("20000000", "10000000"))
    shown = in_process("books", "show", "--json")
    (finding,) = shown.json["findings"]
    assert (shown.code, "is not the document that was closed" in finding["message"]) == (1, True)
    assert booked("2023-09")[0] == 20


def test_documents_are_found_by_a_new_store(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    sha256 = close("2023-09")["sha256"]
    (outlay_home() / "outlay.db").unlink()
    assert [each["sha256"] for each in said("books", "show")["months"]] == [sha256]
    assert booked("2023-09")[0] == 20
    assert booked("2023-10") == (-20, [("2023-09", "a", -20)]), "its log is not registered"


def test_stated_exchange_rates_are_shown_as_stated(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    bad = in_process("books", "close", "2023-09", "--reason", "x", "--rate", "EUR 2")
    assert (bad.code, "USD/EUR" in bad.err) == (2, True)
    closed = close("2023-09", "--rate", "0.93 EUR/USD")
    assert closed["at_stated_rates"] == [{"micros": 18_600_000, "currency": "EUR"}]
    assert "18.60 EUR at the stated 1 USD = 0.93 EUR" in in_process("books", "show").out


def test_every_screen_of_the_open_month_names_the_origin(tmp_path: Path) -> None:
    said("collect", write_run(tmp_path, "a", 20))
    close("2023-09")
    said("collect", write_run(tmp_path, "b", 100))
    focus = tmp_path / "focus.csv"
    words = ("--by", "user", "--month", "2023-10", "--focus", focus)
    assert "2023-09" in in_process("cost", "allocate", *words, columns=120).out
    (row,) = DictReader(focus.read_text().splitlines())
    assert (row["ChargeClass"], row["EffectiveCost"]) == ("Correction", "100.00")
    assert "2023-09" in row["ChargeDescription"]
    digest = in_process("digest", "--since", "2023-10-01T00:00Z", columns=120)
    assert "Booked late" in digest.out
    page = money_page(PageQuery(path="/money", query=[("month", "2023-10")]), BookReader())
    assert "Booked late" in "".join(page.parts)
    assert [float(str(each["cost"])) for each in page.rows] == [100.0]


def test_only_the_owner_closes_a_store_in_postgresql(postgres_server: PostgresServer) -> None:
    name = "books_that_close"
    postgres_server.execute(f"CREATE DATABASE {name}")
    postgres_server.execute("CREATE ROLE clerk LOGIN PASSWORD 'clerk-password'")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTLAY_STORE", postgres_server.url(name))
            store = open_store()
            postgres_server.execute(
                "GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO clerk", database=name
            )
            patch.setenv("OUTLAY_STORE", postgres_server.url(name, "clerk", "clerk-password"))
            theirs = open_store()
            month = document_of(
                "2023-09", Spending(spends=()), by="clerk", reason="x", now_ns=OCTOBER.end_ns
            )
            with pytest.raises(NotTheOwner, match="clerk may not"):
                keep_month(theirs, month)
            assert not (outlay_home() / CLOSED).exists()
            assert keep_month(store, month)[0].document == month
            theirs.dispose()
            store.dispose()
    finally:
        postgres_server.execute(f"DROP DATABASE {name}")
        postgres_server.execute("DROP ROLE clerk")


# Laws

MONTHS = [month_window(f"2023-{month:02}") for month in range(1, 7)]


def spend(run: int, month: int, micros: int) -> SpendItem:
    start_ns = MONTHS[month].start_ns + HOUR
    return SpendItem(
        source="ledger", run_id=str(run), model="m", name=str(run), start_ns=start_ns,
        end_ns=start_ns + HOUR, booked_ns=start_ns, cost=Money(micros), assumed=Money(0),
    )  # fmt: skip


evidence = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 4)), st.integers(-(10**9), 10**9), max_size=8
)


def by_month(spending: Spending) -> list[int]:
    cut = (spending.within(month.start_ns, month.end_ns) for month in MONTHS)
    return [sum(each.cost.micros for each in found.spends) for found in cut]


@given(st.lists(evidence, min_size=1, max_size=5))
def test_closed_months_never_change_and_all_months_are_what_is_known(
    rounds: list[dict[tuple[int, int], int]],
) -> None:
    """Each round something else is known, and then one more month is closed."""
    closed: list[KeptMonth] = []
    reported: list[int] = []
    for place, known in enumerate(rounds):
        spends = tuple(spend(run, month, micros) for (run, month), micros in known.items())
        now = with_closed_months(Spending(spends=spends), closed)
        found = by_month(now)
        assert found[:place] == reported
        assert sum(found) == sum(known.values())
        month = document_of(
            f"2023-{place + 1:02}", now, by="x", reason="x", now_ns=MONTHS[place].end_ns
        )
        closed.append(KeptMonth(month, ""))
        reported.append(found[place])
        again = with_closed_months(Spending(spends=spends), closed)
        assert by_month(again) == found, "closing changes no month"
        late = Spending(spends=(*spends, replace(spend(9, 0, 77), run_id="late")))
        then_ns = MONTHS[place].end_ns
        before = by_month(with_closed_months(late, closed, as_of_ns=then_ns))
        assert before[: place + 1] == reported, "as of the end of the month, for ever"
