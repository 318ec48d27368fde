"""Laws of bills: rows sum to the bill and to the books; a correction closes every difference."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from outlay.bills.bill_correction import correction_spends, corrections_for
from outlay.bills.bill_line import CATEGORIES, BillLine, in_micros
from outlay.bills.reconciliation import Reconciliation, reconcile
from outlay.cost.charges import month_window
from outlay.cost.spending import SpendItem
from outlay.units import Money
from outlay.units.billing_terms import BillingTerms

MONTH = "2026-10"
START_NS = month_window(MONTH).start_ns
HOUR = 3600 * 10**9
RESOURCES = st.sampled_from(["", "i-1", "i-2", "i-3", "arn:aws:ec2:x:1:instance/i-1"])
CURRENCIES = st.sampled_from(["USD", "EUR"])
AMOUNTS = st.decimals(-1000, 1000, allow_nan=False, allow_infinity=False, places=12)


@st.composite
def bill_lines(draw: st.DrawFn) -> list[BillLine]:
    lines = []
    for number in range(draw(st.integers(0, 12))):
        start_ns = START_NS + draw(st.integers(0, 100)) * HOUR
        lines.append(
            BillLine(
                id=str(number), invoice=draw(st.sampled_from("ab")), provider="us", month=MONTH,
                category=draw(st.sampled_from(CATEGORIES)), cost=draw(AMOUNTS),
                currency=draw(CURRENCIES), start_ns=start_ns,
                end_ns=start_ns + draw(st.integers(0, 5)) * HOUR, resource=draw(RESOURCES),
                billed_ns=draw(st.none() | st.integers(0, 9 * HOUR)),
                commitment=draw(st.sampled_from(["", "plan"])),
            )
        )  # fmt: skip
    return lines


@st.composite
def booked(draw: st.DrawFn) -> list[SpendItem]:
    spends = []
    for number in range(draw(st.integers(0, 8))):
        start_ns = START_NS + draw(st.integers(0, 100)) * HOUR
        cost = Money(draw(st.integers(-(10**6), 10**9)), draw(CURRENCIES))
        machines = draw(st.sampled_from([{}, {"i-1": 3, "i-2": 4}]))
        spends.append(
            SpendItem(
                source="ledger", run_id=f"r{number}", model="m", name="n", start_ns=start_ns,
                end_ns=start_ns + draw(st.integers(0, 9 * HOUR)), booked_ns=start_ns, cost=cost,
                assumed=cost * 0, user=draw(st.sampled_from(["", "ada", "bob"])),
                machine=draw(st.sampled_from(["", "i-1", "i-2"])), machines=machines,
            )
        )  # fmt: skip
    return spends


def half_even(exact: Fraction) -> int:
    return round(exact)  # Of a Fraction, Python's round is exact and half to even.


def of_currency(found: list[Reconciliation], currency: str) -> Reconciliation:
    (one,) = (each for each in found if each.currency == currency)
    return one


@given(lines=bill_lines(), spends=booked())
def test_rows_sum_to_the_bill_and_to_the_books(
    lines: list[BillLine], spends: list[SpendItem]
) -> None:
    found = reconcile(MONTH, spends, lines)
    for currency in {line.currency for line in lines} | {s.cost.currency for s in spends}:
        one = of_currency(found, currency)
        exact = sum((Fraction(e.cost) for e in lines if e.currency == currency), Fraction(0))
        assert one.bill.micros == half_even(exact * 10**6)
        books = sum(spend.cost.micros for spend in spends if spend.cost.currency == currency)
        assert one.books.micros == books
        for row in one.rows:
            if row.state != "only in the books":
                assert row.in_books + sum(row.open_parts.values()) == row.total


@given(lines=bill_lines(), spends=booked())
def test_once_corrected_the_books_are_the_bill_and_what_only_they_have(
    lines: list[BillLine], spends: list[SpendItem]
) -> None:
    before = reconcile(MONTH, spends, lines)
    made = corrections_for(before, [], by="ada", reason="a bill", at_ns=0)
    after = reconcile(MONTH, [*spends, *correction_spends(made)], lines)
    for one in after:
        own = sum(row.in_books for row in one.of("only in the books"))
        assert one.books.micros - own == one.bill.micros
    assert corrections_for(after, made, by="ada", reason="again", at_ns=1) == []


@given(st.dictionaries(st.integers(0, 20), AMOUNTS))
def test_amounts_are_rounded_once(parts: dict[int, Decimal]) -> None:
    found = in_micros(parts)
    whole = sum((Fraction(part) for part in parts.values()), Fraction(0))
    assert sum(found.values()) == half_even(whole * 10**6)
    for key, part in parts.items():
        assert abs(found[key] - Fraction(part) * 10**6) < 1


TERMS = st.builds(
    BillingTerms,
    increment_ns=st.integers(0, 3 * HOUR),
    minimum_ns=st.integers(0, 3 * HOUR),
    setup_ns=st.integers(0, HOUR),
)


@given(TERMS, st.integers(0, 100 * HOUR))
def test_a_machine_is_never_billed_less_than_used_and_less_than_an_increment_more(
    terms: BillingTerms, used_ns: int
) -> None:
    billed_ns = terms.billed_ns(used_ns)
    least_ns = max(used_ns + terms.setup_ns, terms.minimum_ns)
    assert least_ns <= billed_ns < least_ns + max(terms.increment_ns, 1)
    assert not terms.increment_ns or billed_ns % terms.increment_ns == 0


@given(TERMS, st.integers(0, 100 * HOUR))
def test_what_can_be_used_is_paid_for(terms: BillingTerms, paid_ns: int) -> None:
    usable_ns = terms.usable_ns(paid_ns)
    if usable_ns > 0:
        assert terms.billed_ns(usable_ns) <= paid_ns
        assert terms.billed_ns(usable_ns + max(terms.increment_ns, 1)) > paid_ns
