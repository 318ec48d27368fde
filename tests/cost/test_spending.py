"""Spending: attempts by user, tags and month; assumed amounts; as-of queries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count, pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.compat.cost_module.training import TrainingMetrics
from outlay.cost.charges import charges_of, month_window
from outlay.cost.spending import IN_NO_RUN, Spending, owner_by, spending_of
from outlay.errors import InvalidValue
from outlay.goodput.follower import read_view
from outlay.goodput.timeline import Window
from outlay.guard.entries import Captured, Held, Noted, Rental, Vendor
from outlay.runs.collect import collect
from outlay.runs.money.spending_reader import in_no_run, read_spending, refresh_books, rented_by
from outlay.store import RunRow, open_store
from outlay.units import Money, Unit

NOVEMBER, DECEMBER, JANUARY = map(month_window, ("2023-11", "2023-12", "2024-01"))
LATER_NS = JANUARY.end_ns + HOUR
USD = Unit("USD")
PRESENT = count(LATER_NS)  # No two looks are at the same instant.


def seconds_to(t_ns: int) -> float:
    """Return how long after the ledgers' begin an instant is."""
    return (t_ns - START_NS) / 1e9


def attempt(
    run_dir: Path, *, at_ns: int, hours: float, status: Any = "completed", **facts: Any
) -> None:
    about = {"price": dollars(3), "gpus": 2, "user": "ada", "model": "m", "name": run_dir.name}
    about |= {"run_id": run_dir.name, "nodes": 1} | facts
    segment = Segment(start=seconds_to(at_ns), about=about)
    segment.step(hours * 3600).end(status).write(run_dir)


def read(root: Path, as_of_ns: int | None = None) -> Spending:
    store, now_ns = open_store(), next(PRESENT)
    collect(store, sorted(root.iterdir()), now_ns)
    refresh_books(store, now_ns)
    return read_spending(store, now_ns, as_of_ns=as_of_ns).spending


def paid(spending: Spending, month: Window, by: str = "user") -> dict[str, int]:
    """Return who paid how many whole dollars in a month."""
    found = spending.within(month.start_ns, month.end_ns).by(owner_by(by))
    return {owner: sums.cost.micros // 10**6 for (owner, _), sums in found.items()}


def resumed_by_another(root: Path) -> None:
    """A run of 12 dollars in November that somebody else went on with in January.

    Nothing says what became of the machine: 6 dollars an hour are assumed for the time between.
    """
    first_ns = NOVEMBER.end_ns - 10 * HOUR
    attempt(root / "a", at_ns=first_ns, hours=2, status="failed", tags={"team": "nlp"})
    resumed = {"user": "bob", "tags": {"team": "cv"}}
    attempt(root / "a", at_ns=JANUARY.start_ns + HOUR, hours=1, **resumed)


GAP_HOURS = 8 + 31 * 24 + 1


def test_each_attempt_is_charged_to_its_own_user_tags_and_month(tmp_path: Path) -> None:
    resumed_by_another(tmp_path)
    found = read(tmp_path)
    assert paid(found, NOVEMBER) == {"ada": 12}
    assert paid(found, NOVEMBER, "team") == {"nlp": 12}
    assert paid(found, DECEMBER) == {}
    assert paid(found, JANUARY) == {"ada": 6 * GAP_HOURS, "bob": 6}
    assert paid(found, JANUARY, "team") == {"nlp": 6 * GAP_HOURS, "cv": 6}


def test_what_is_assumed_is_part_of_the_amount(tmp_path: Path) -> None:
    resumed_by_another(tmp_path)
    total = read(tmp_path).totals()[USD]
    assert total.assumed == Money(6 * GAP_HOURS * 10**6)
    assert total.cost - total.assumed == Money(18 * 10**6)


def test_a_past_month_does_not_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    resumed_by_another(tmp_path)
    closed = read(tmp_path, as_of_ns=NOVEMBER.end_ns + HOUR)
    november = (NOVEMBER.start_ns, NOVEMBER.end_ns)
    assert read(tmp_path).within(*november).spends == closed.within(*november).spends
    assert closed.totals()[USD].cost == Money(12 * 10**6)


def test_cost_as_of_an_instant_uses_the_log_up_to_it(tmp_path: Path) -> None:
    at_ns = DECEMBER.start_ns
    attempt(tmp_path / "a", at_ns=at_ns, hours=1, status="failed")
    before = read(tmp_path)
    attempt(tmp_path / "a", at_ns=at_ns + 5 * HOUR, hours=1)
    attempt(tmp_path / "b", at_ns=at_ns + 6 * HOUR, hours=1)
    assert read(tmp_path, as_of_ns=at_ns + 4 * HOUR).spends == before.spends
    assert len(read(tmp_path).spends) == 4  # With the time between the attempts of a.


def test_a_run_that_ran_at_that_instant_is_charged_up_to_it(tmp_path: Path) -> None:
    segment = Segment(start=0, about={"price": dollars(6), "run_id": "a", "model": "m"})
    for _ in range(60):
        segment.step(300)
    segment.end().write(tmp_path / "a")
    found = read(tmp_path, as_of_ns=START_NS + 2 * HOUR + HOUR // 20)
    assert found.totals()[USD].cost == Money(12_300_000)


def test_a_run_across_two_months_is_split_exactly(tmp_path: Path) -> None:
    about = {"price": dollars(3), "gpus": 2, "run_id": "a", "model": "m"}
    segment = Segment(start=seconds_to(DECEMBER.start_ns) - 5400, about=about)
    segment.step(3600).price(6, gpus=2).step(3600).end().write(tmp_path / "a")
    found = read(tmp_path)
    assert [paid(found, month) for month in (NOVEMBER, DECEMBER)] == [{"": 12}, {"": 6}]
    gpu_hours = [spend.gpu_us / 3.6e9 for spend in found.spends]
    assert gpu_hours == [3.0, 1.0]


def test_charges_sum_to_the_run_at_a_price_that_no_second_divides(tmp_path: Path) -> None:
    for start, status in ((0, "failed"), (10_000, "failed"), (4_000_000, "completed")):
        about = {"price": dollars(2.493), "gpus": "3/7", "run_id": "a", "model": "m"}
        Segment(start=start, about=about).step(777.77).end(status).write(tmp_path / "a")  # type: ignore[arg-type]
    view = read_view(tmp_path / "a", LATER_NS)
    charges = charges_of(view)
    assert view.rates is not None
    ends = (view.timeline.start_ns, view.timeline.end_ns)
    assert sum(c.micros for c in charges) == view.rates.cost_between(*ends).micros
    assert sum(c.assumed_micros for c in charges) == view.rates.assumed_between(*ends).micros
    assert all(0 <= c.assumed_micros <= c.micros for c in charges)


def test_a_stated_training_is_spent_like_any_other(tmp_path: Path) -> None:
    attempt(tmp_path / "a", at_ns=DECEMBER.start_ns, hours=1)
    moment = datetime(2023, 12, 24, tzinfo=UTC)
    CostAnalyzer().analyze_training_run(
        TrainingMetrics("s", "m", 1, 1, 1, 0.1, 2.0, "T4", 1.5, timestamp=moment)
    )
    found = read(tmp_path)
    assert paid(found, DECEMBER, "model") == {"m": 9}
    assert {spend.source for spend in found.spends} == {"ledger", "stated"}


def test_a_training_stated_later_is_excluded_by_as_of(tmp_path: Path) -> None:
    attempt(tmp_path / "a", at_ns=DECEMBER.start_ns, hours=1)
    moment = datetime(2023, 12, 2, tzinfo=UTC)
    CostAnalyzer().analyze_training_run(
        TrainingMetrics("s", "m", 1, 1, 1, 0.1, 2.0, "T4", 1.5, timestamp=moment)
    )
    found = read(tmp_path, as_of_ns=DECEMBER.end_ns)
    assert paid(found, DECEMBER, "model") == {"m": 6}
    assert "1 stated since" in str(found.findings[0])


def test_currencies_and_kinds_are_not_added(tmp_path: Path) -> None:
    from outlay.ledger.price import Price

    for name, price in (
        ("a", dollars(3)),
        ("b", Price(3_000_000, "EUR")),
        ("c", Price(3_000_000, kind="showback")),
    ):
        attempt(tmp_path / name, at_ns=DECEMBER.start_ns, hours=1, price=price)
    totals = read(tmp_path).totals()
    assert {str(unit): str(total.cost) for unit, total in totals.items()} == {
        "EUR": "6.00 EUR", "USD": "6.00 USD", "USD showback": "6.00 USD showback",
    }  # fmt: skip


def test_runs_without_a_price_are_counted_once_and_in_scope(tmp_path: Path) -> None:
    for name, at_ns in (("a", DECEMBER.start_ns), ("b", DECEMBER.start_ns), ("c", START_NS)):
        attempt(tmp_path / name, at_ns=at_ns, hours=1, price=None)
    found = read(tmp_path)
    december = found.within(DECEMBER.start_ns, DECEMBER.end_ns)
    assert [len(each.unpriced) for each in (found, december)] == [3, 2]
    (finding,) = december.unpriced_finding()
    assert "2 have no price" in str(finding)


def test_a_run_whose_log_is_gone_and_whose_charges_are_unknown_is_split_by_time() -> None:
    run = run_row(
        dir="/gone", started_ns=NOVEMBER.start_ns, last_seen_ns=LATER_NS, cost=Money(1_000_001),
        assumed=Money(7), gpu_ns=10_000, wall_ns=10_000,
    )  # fmt: skip
    found = spending_of([run], [run])
    assert [s.booked_ns for s in found.spends] == [
        month.start_ns for month in (NOVEMBER, DECEMBER, JANUARY, month_window("2024-02"))
    ]
    total = found.totals()[USD]
    assert (total.cost.micros, total.assumed.micros, total.gpu_us) == (1_000_001, 7, 10)
    assert "split evenly over time" in str(found.findings[0])


def run_row(**changes: object) -> RunRow:
    fields = {"run_id": "r", "dir": "/r", "model": "bert", "name": "r", "status": "completed"}
    numbers = {"attempts": 1, "steps": 1, "tokens": 1, "started_ns": 0, "last_seen_ns": 1}
    costs = {"cost": Money(1)}
    return RunRow(**(fields | numbers | costs | {"updated_ns": 1} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("by", "owner"),
    [("user", "ada"), ("team", "nlp"), ("project", ""), ("tag:gpu pool", "x"), ("model", "m")],
)
def test_a_spend_belongs_to_its_user_model_or_tag(tmp_path: Path, by: str, owner: str) -> None:
    tags = {"team": "nlp", "gpu pool": "x"}
    attempt(tmp_path / "a", at_ns=DECEMBER.start_ns, hours=1, tags=tags)
    assert owner_by(by)(read(tmp_path).spends[0]) == owner


@pytest.mark.parametrize("by", ["tag", "tag:", "colour"])
def test_an_unknown_owner_key_is_refused(by: str) -> None:
    with pytest.raises(InvalidValue, match="tag:NAME"):
        owner_by(by)


class TestARental:
    """A machine at 2 dollars an hour, from an hour before a month ends."""

    rental = Rental(
        name="box", rate="2 USD/h", started="2023-11-30T23:00:00Z", deadline="2023-12-02T00:00:00Z",
        vendor=Vendor(name="lambda", list=("true",), terminate=("true",)),
    )  # fmt: skip
    same: ClassVar[dict[str, Any]] = {"op_label": "box", "currency": "USD", "v": 1, "hold": "h"}

    def lines(self, *more: Any) -> list[Any]:
        held = Held(
            **self.same, ts=self.rental.started, lab="02", day="2023-11-30", rental=self.rental
        )
        event: dict[str, Any] = {"event": "created", "detail": {"resource": "i-1"}}
        return [held, Noted(**self.same, ts=self.rental.started, **event), *more]

    def costs(self, lines: Sequence[Any], until_ns: int, *reports: RunRow) -> list[int]:
        (rented,) = rented_by(lines, until_ns)
        spends = list(in_no_run(rented, reports))
        assert {(spend.model, spend.provider) for spend in spends} == {(IN_NO_RUN, "lambda")}
        for one, two in pairwise(spends):
            assert one.end_ns == two.start_ns
        return [spend.cost.micros // 10**6 for spend in spends]

    def test_is_charged_by_month_while_it_runs(self) -> None:
        assert self.costs(self.lines(), DECEMBER.start_ns + 3 * HOUR) == [2, 6]

    def test_costs_what_was_captured_once_it_is_gone(self) -> None:
        gone = Captured(
            **self.same, ts="2023-12-01T02:00:00Z", lab="02", day="2023-11-30", actual=Decimal(7)
        )
        assert self.costs(self.lines(gone), LATER_NS) == [2, 5]
        assert self.costs(self.lines(gone), DECEMBER.start_ns + HOUR) == [2, 2]

    def test_what_a_run_on_it_is_charged_is_not_spent_twice(self, tmp_path: Path) -> None:
        about = {"price": dollars(2), "gpus": 1, "instance_id": "i-1"}
        attempt(tmp_path / "a", at_ns=DECEMBER.start_ns, hours=2, **about)
        read(tmp_path)
        reports = read_spending(open_store(), LATER_NS).reports
        assert self.costs(self.lines(), DECEMBER.start_ns + 3 * HOUR, *reports) == [2, 2]
