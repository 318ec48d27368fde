"""A month's bill beside the books: by resource what differs, and why. Pure.

The rows' amounts sum to the bill and to the books, each to the micro-unit: matched, only in the
bill, only in the books. The difference of a matched resource's usage has four causes, of which the
price is the rest, so that they sum to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from outlay.bills.bill_line import (
    CATEGORIES,
    BillLine,
    Category,
    InvoiceTotal,
    exact_sum,
    in_micros,
    totals_of,
)
from outlay.bills.matching import (
    BilledResource,
    BillKey,
    BookMachine,
    Match,
    machines_of,
    match,
    resources_of,
)
from outlay.cost.machines.billed_time import covered_ns
from outlay.cost.spending import SpendItem
from outlay.prices.presets import terms_of
from outlay.units import Money
from outlay.units.billing_terms import BillingTerms
from outlay.units.quantity import NS_PER_HOUR

CAUSES: Final = ("increment", "boot and shutdown", "price", "commitment", "unmatched")
State = Literal["matched", "only in the bill", "only in the books"]
STATES: Final[tuple[State, ...]] = ("matched", "only in the bill", "only in the books")
_TOLERANCE: Final = Fraction(5, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledRow:
    """One resource: what the books have, what was billed, and why they differ; in micro-units.

    Attributes:
        resource: The vendor's id; "" for lines about none, or a machine of the books.
        how: How it was matched, or "".
        ours: What the books have without corrections by bills.
        billed: By category.
        causes: The difference between billed usage and ``ours``, by cause.
        corrected: What corrections by bills added to the books, by cause or category.
        tolerance: What usage may differ by and still be confirmed.
        machine: The machine of the books, if there is one.
    """

    state: State
    provider: str
    resource: str
    owner: str = ""
    how: str = ""
    our_ns: int = 0
    billed_ns: int = 0
    ours: int = 0
    billed: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    corrected: Mapping[str, int] = field(default_factory=dict)
    tolerance: int = 0
    machine: BookMachine | None = None

    @property
    def total(self) -> int:
        """What the bill has for it."""
        return sum(self.billed.values())

    @property
    def in_books(self) -> int:
        """What the books have for it, corrections included."""
        return self.ours + sum(self.corrected.values())

    @property
    def open_parts(self) -> dict[str, int]:
        """What the books lack to equal the bill, by cause or category; empty for a row of books."""
        if self.state == "only in the books":
            return {}
        parts = {**self.causes, **{part_name(name): m for name, m in self.billed.items()}}
        parts.pop("usage", None)
        for name, micros in self.corrected.items():
            parts[name] = parts.get(name, 0) - micros
        return {name: micros for name, micros in parts.items() if micros}

    @property
    def is_confirmed(self) -> bool:
        """Whether a bill confirms the amount of the books."""
        usage = self.billed.get("usage", 0) - self.ours
        is_alike = self.state == "matched" and abs(usage) <= self.tolerance
        return self.state != "only in the books" and (is_alike or not self.open_parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedMonth:
    """What was booked and billed in a month, and the part of the books that a bill confirms."""

    month: str
    booked: Money
    billed: Money
    confirmed: Money

    @property
    def share(self) -> float | None:
        """The confirmed share of the books; None without books."""
        return self.confirmed.micros / self.booked.micros if self.booked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """A month's bill and books in one currency."""

    month: str
    currency: str
    rows: tuple[ReconciledRow, ...]
    invoices: tuple[InvoiceTotal, ...] = ()

    def of(self, state: State) -> list[ReconciledRow]:
        """Return the rows of one state."""
        return [row for row in self.rows if row.state == state]

    @property
    def bill(self) -> Money:
        """The sum of the invoices."""
        return Money(sum(row.total for row in self.rows), self.currency)

    @property
    def books(self) -> Money:
        """The sum of the books."""
        return Money(sum(row.in_books for row in self.rows), self.currency)

    @property
    def confirmed(self) -> ConfirmedMonth:
        """The part of the books that a bill confirms."""
        micros = sum(row.in_books for row in self.rows if row.is_confirmed)
        return ConfirmedMonth(
            month=self.month, booked=self.books, billed=self.bill,
            confirmed=Money(micros, self.currency),
        )  # fmt: skip


def part_name(category: str) -> str:
    """Return the name of a category of a bill beside the causes of a difference."""
    return "commitment fee" if category == "commitment" else category


def reconcile(
    month: str, spends: Iterable[SpendItem], lines: Iterable[BillLine]
) -> list[Reconciliation]:
    """Return the reconciliation of a month in each currency of its bill or books.

    ``spends`` are those that are booked in the month. Only cash can be billed; showback is left
    out.
    """
    cash = [spend for spend in spends if spend.unit.kind == "cash"]
    lines = list(lines)
    currencies = {spend.unit.currency for spend in cash} | {line.currency for line in lines}
    return [
        Reconciliation(
            month=month,
            currency=currency,
            rows=tuple(
                _rows(
                    [spend for spend in cash if spend.unit.currency == currency],
                    [line for line in lines if line.currency == currency],
                )
            ),
            invoices=totals_of(line for line in lines if line.currency == currency),
        )
        for currency in sorted(currencies)
    ]


def _rows(spends: Sequence[SpendItem], lines: Sequence[BillLine]) -> Iterator[ReconciledRow]:
    machines = {m.key: m for m in machines_of(s for s in spends if s.source != "bill")}
    resources = resources_of(lines)
    matches = match(resources, list(machines.values()))
    billed, corrected = _billed(resources), _corrected(spends)
    together: dict[str, list[BilledResource]] = defaultdict(list)
    for resource in resources:
        if (found := matches.get(resource.key)) is not None:
            together[found.machine].append(resource)
    for key, mine in together.items():
        yield _matched(machines[key], mine, matches[mine[0].key], billed, corrected)
    for resource in resources:
        if resource.key not in matches:
            yield _only_billed(resource, billed, corrected)
    for machine in machines.values():
        if machine.key not in together:
            yield _only_booked(machine)
    for (provider, name), parts in corrected.items():  # Of bills that were replaced since.
        if (provider, name) not in {resource.key for resource in resources}:
            yield ReconciledRow(
                state="only in the bill", provider=provider, resource=name, corrected=parts
            )


_Part = tuple[BillKey, Category, bool]
"""A resource, a category, and whether a commitment covers it."""


def _billed(resources: Iterable[BilledResource]) -> dict[_Part, int]:
    """Return what was billed, in micro-units that sum to the rounded bill."""
    exact: dict[_Part, list[Decimal]] = defaultdict(list)
    for resource in resources:
        for line in resource.lines:
            exact[resource.key, line.category, bool(line.commitment)].append(line.cost)
    return in_micros({part: exact_sum(costs) for part, costs in exact.items()})


def _corrected(spends: Iterable[SpendItem]) -> dict[BillKey, dict[str, int]]:
    """Return the corrections by bills, by resource and part."""
    found: dict[BillKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for spend in spends:
        if spend.source == "bill":
            found[spend.provider, spend.machine][spend.name] += spend.cost.micros
    return found


def _by_category(keys: Iterable[BillKey], billed: Mapping[_Part, int]) -> dict[str, int]:
    sums = {
        name: sum(billed.get((key, name, covered), 0) for key in keys for covered in (False, True))
        for name in CATEGORIES
    }
    return {name: micros for name, micros in sums.items() if micros}


def _matched(
    machine: BookMachine,
    resources: Sequence[BilledResource],
    how: Match,
    billed: Mapping[_Part, int],
    corrected: Mapping[BillKey, Mapping[str, int]],
) -> ReconciledRow:
    keys = [resource.key for resource in resources]
    lines = [line for resource in resources for line in resource.lines]
    amounts = _by_category(keys, billed)
    if machine.is_commitment:  # Its fee is its use.
        amounts["usage"] = amounts.get("usage", 0) + amounts.pop("commitment", 0)
    use = _ComparedUse(
        ours=machine.cost_micros,
        our_ns=machine.used_ns,
        billed=amounts.get("usage", 0),
        billed_ns=billed_ns(lines),
        covered=sum(billed.get((key, "usage", True), 0) for key in keys),
        covered_ns=billed_ns([line for line in lines if line.commitment]),
        increments_ns=_increments_ns(machine, keys[0][0]),
    )
    sums: dict[str, int] = defaultdict(int)
    for key in keys:
        for name, micros in corrected.get(key, {}).items():
            sums[name] += micros
    return ReconciledRow(
        state="matched", provider=keys[0][0], resource=keys[0][1], owner=machine.owner,
        how=how.how, our_ns=use.our_ns, billed_ns=use.billed_ns, ours=use.ours, billed=amounts,
        causes=_fee(use) if machine.is_commitment else use.causes(), corrected=dict(sums),
        machine=machine,
        tolerance=_tolerance(machine, use, keys[0][0]),
    )  # fmt: skip


def _only_billed(
    resource: BilledResource,
    billed: Mapping[_Part, int],
    corrected: Mapping[BillKey, Mapping[str, int]],
) -> ReconciledRow:
    provider, name = resource.key
    amounts = _by_category([resource.key], billed)
    usage = amounts.get("usage", 0)
    return ReconciledRow(
        state="only in the bill", provider=provider, resource=name,
        billed_ns=billed_ns(resource.lines) if name else 0, billed=amounts,
        causes={"unmatched": usage} if usage else {}, corrected=corrected.get(resource.key, {}),
    )  # fmt: skip


def _only_booked(machine: BookMachine) -> ReconciledRow:
    providers = {part.spend.provider for part in machine.parts}
    return ReconciledRow(
        state="only in the books", provider=", ".join(sorted(filter(None, providers))),
        resource=machine.key, owner=machine.owner, our_ns=machine.used_ns,
        ours=machine.cost_micros, causes={"unmatched": -machine.cost_micros}, machine=machine,
    )  # fmt: skip


# The causes of a difference


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedUse:
    """The use of one machine in the books and on the bill.

    Attributes:
        covered: The part of ``billed`` that a commitment covers, and ``covered_ns`` its time.
        increments_ns: What the vendor's billing terms add to our time.
    """

    ours: int
    our_ns: int
    billed: int
    billed_ns: int
    covered: int
    covered_ns: int
    increments_ns: int

    @property
    def rate(self) -> Fraction:
        """Our micro-units per nanosecond."""
        return Fraction(self.ours, self.our_ns) if self.our_ns else Fraction(0)

    def causes(self) -> dict[str, int]:
        """Return the difference by cause; what neither time nor a commitment explains is price."""
        more_ns = self.billed_ns - self.our_ns
        increment_ns = min(self.increments_ns, more_ns) if more_ns > 0 else 0
        found = {
            "increment": round(self.rate * increment_ns),
            "boot and shutdown": round(self.rate * (more_ns - increment_ns)),
            "commitment": round(self.covered - self.rate * self.covered_ns),
        }
        found["price"] = self.billed - self.ours - sum(found.values())
        return {cause: micros for cause, micros in found.items() if micros}


def _fee(use: _ComparedUse) -> dict[str, int]:
    """Return the difference of a commitment's cost, which does not depend on its use."""
    difference = use.billed - use.ours
    return {"commitment": difference} if difference else {}


def billed_ns(lines: Iterable[BillLine]) -> int:
    """Return how long a machine was billed: the longest of its usage's SKUs.

    Vendors bill hours in slices, and a machine's GPUs, cores and memory as SKUs of their own.
    """
    stated: dict[str, int] = defaultdict(int)
    periods: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line.category == "usage" and line.billed_ns is not None:
            stated[line.sku] += line.billed_ns
        elif line.category == "usage":
            periods[line.sku].append((line.start_ns, line.end_ns))
    if stated:
        return max(stated.values())
    return max(map(covered_ns, periods.values()), default=0)


def _starts(machine: BookMachine) -> list[tuple[int, int]]:
    """Return the times of a machine, joined where they touch."""
    found: list[tuple[int, int]] = []
    for start_ns, end_ns in machine.intervals:
        if found and start_ns <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ns))
        else:
            found.append((start_ns, end_ns))
    return found


def _terms(machine: BookMachine, provider: str) -> BillingTerms:
    return machine.terms or terms_of(provider) or BillingTerms()


def _increments_ns(machine: BookMachine, provider: str) -> int:
    """Return what started increments and minimums add, unless the books have them already."""
    if machine.terms is not None:
        return 0
    terms = _terms(machine, provider)
    return sum(terms.billed_ns(end - start) - (end - start) for start, end in _starts(machine))


def _tolerance(machine: BookMachine, use: _ComparedUse, provider: str) -> int:
    """Return what usage may differ by: one increment for each start, and 0.5 %."""
    increments_ns = len(_starts(machine)) * _terms(machine, provider).increment_ns
    return int(abs(use.ours) * _TOLERANCE + use.rate * increments_ns)


def hours(ns: int) -> float:
    """Return a duration in hours, for display."""
    return ns / NS_PER_HOUR
