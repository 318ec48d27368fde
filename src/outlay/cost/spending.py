"""Total spending: runs, stated trainings and rentals. Pure.

Every figure about several runs comes from here. An attempt is charged to its own user, tags and
month; units are never added; every amount has its assumed part; runs without a price
are reported in one finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from outlay.clock import utc_datetime
from outlay.cost.charges import month_edges
from outlay.errors import Finding, InvalidValue
from outlay.membership import Membership, paying_team, teams_on
from outlay.store.run_row import AttemptCharge, RunRow
from outlay.units import Money, Unit
from outlay.units.billing_terms import BillingTerms

TEAM = ("team", "tag:team")
"""How ``owner_by`` names the owner whom ``with_teams`` states."""
IN_NO_RUN = "(rented, in no run)"
"""The model name of a rental's cost outside of runs."""
OWNED_IN_NO_RUN = "(owned, in no run)"
"""The model name of an owned machine's cost outside of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """An amount that was spent, the assumed part of it, and GPUs times microseconds."""

    cost: Money
    assumed: Money
    gpu_us: int = 0

    @property
    def unit(self) -> Unit:
        """That of its cost."""
        return self.cost.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendItem(Spent):
    """One amount that was spent.

    Attributes:
        source: ``ledger`` (a run log), ``stated`` (a stated or imported training), ``rental``
            (a rental's cost while no run was on it), ``owned`` (the same of an owned machine),
            ``increment`` (what a machine was billed beyond the time of its runs), ``commitment``
            (paid for a term) or ``bill`` (a correction by a vendor's bill).
        run_id: For a rental, its hold; for an owned machine, its host.
        start_ns: Start of the charged time ``[start_ns, end_ns)``.
        booked_ns: Decides the month.
        provider: From the price, or "".
        machine: The vendor's instance id; of an owned machine, its host; "" if unknown or several.
        between: Charges the time between two attempts.
        host: Its node, if it is of one.
        machines: Weights of several machines, by instance id.
        aliases: Other names of the machine: of a rental, its name and other ids.
        offer: The name of the price's offer, and ``terms`` its billing terms.
        closed: Whether it is as a closed month has it, whatever is known now.
        origin: The closed month, such as ``2026-09``, that it belongs to, if it became known after
            that was closed; "" otherwise.
    """

    source: Literal["ledger", "stated", "rental", "owned", "increment", "commitment", "bill"]
    run_id: str
    model: str
    name: str
    start_ns: int
    end_ns: int
    booked_ns: int
    user: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""
    machine: str = ""
    between: bool = False
    host: str = ""
    machines: Mapping[str, int] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    offer: str = ""
    terms: BillingTerms | None = None
    closed: bool = False
    origin: str = ""

    @property
    def is_machine(self) -> bool:
        """Whether it charges a machine while no run was on it."""
        return self.source in ("rental", "owned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtotal(Spent):
    """The sum of spends of one unit."""

    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """All spends in order of booking, and findings.

    Attributes:
        unpriced: Runs without a price, whose cost is unknown.
    """

    spends: tuple[SpendItem, ...]
    unpriced: tuple[RunRow, ...] = ()
    findings: tuple[Finding, ...] = ()

    def within(self, start_ns: int, end_ns: int) -> Spending:
        """Return what is booked during ``[start_ns, end_ns)``, and the unpriced runs in it."""
        return replace(
            self,
            spends=tuple(s for s in self.spends if start_ns <= s.booked_ns < end_ns),
            unpriced=tuple(
                run
                for run in self.unpriced
                if run.started_ns < end_ns and start_ns <= run.last_seen_ns
            ),
        )

    def with_teams(self, memberships: Sequence[Membership]) -> Spending:
        """Return it with a tag ``team`` where there is none and the user was in just one team."""
        return replace(self, spends=tuple(_with_team(s, memberships) for s in self.spends))

    def of_unit(self, unit: Unit) -> list[SpendItem]:
        """Return the spends of one unit."""
        return [spend for spend in self.spends if spend.unit == unit]

    def units(self) -> list[Unit]:
        """Return every unit that occurs, cash first."""
        return sorted({spend.unit for spend in self.spends}, key=lambda unit: unit[::-1])

    def totals(self) -> dict[Unit, Subtotal]:
        """Return the total of each unit."""
        return {unit: subtotal(self.of_unit(unit)) for unit in self.units()}

    def by(self, owner_of: Callable[[SpendItem], str]) -> dict[tuple[str, Unit], Subtotal]:
        """Return the subtotal of each owner and unit, largest first."""
        groups: dict[tuple[str, Unit], list[SpendItem]] = {}
        for spend in self.spends:
            groups.setdefault((owner_of(spend), spend.unit), []).append(spend)
        sums = {key: subtotal(found) for key, found in groups.items()}
        return dict(sorted(sums.items(), key=lambda each: (each[0][1], -each[1].cost.micros)))

    def unpriced_finding(self) -> list[Finding]:
        """Return one finding about all runs without a price, if any."""
        if not self.unpriced:
            return []
        count = len(self.unpriced)
        if count == 1:
            source, message = self.unpriced[0].dir, "has no price, so its cost is not counted"
        else:
            message = f"{count:,} have no price, so their cost is not counted: outlay runs --all"
            source = "runs"
        return [Finding(source=source, message=message, severity="warning")]


def subtotal(spends: Sequence[SpendItem]) -> Subtotal:
    """Return the sum of spends of one unit; ``spends`` must not be empty."""
    nothing = spends[0].unit.money(0)
    return Subtotal(
        cost=sum((spend.cost for spend in spends), start=nothing),
        assumed=sum((spend.assumed for spend in spends), start=nothing),
        gpu_us=sum(spend.gpu_us for spend in spends),
        runs=len({each.run_id for each in spends if each.source in ("ledger", "stated")}),
    )


def spending_of(
    reports: Iterable[RunRow], runs: Iterable[RunRow], machines: Iterable[SpendItem] = ()
) -> Spending:
    """Return all spending, from reports that include their charges.

    ``machines`` is the cost of machines while no run was on them.
    """
    known = {run.run_id: run for run in runs}
    spends: list[SpendItem] = list(machines)
    findings: list[Finding] = []
    for report in reports:
        run = known.get(report.run_id, report)
        charges = charges_in(report, run)
        if report.charges is None and len(charges) > 1:
            findings.append(_split_by_time(run))
        spends += (_spend(report, run, charge) for charge in charges)
    return Spending(
        spends=tuple(sorted(spends, key=lambda s: (s.booked_ns, s.run_id, s.start_ns))),
        unpriced=tuple(run for run in known.values() if run.cost is None),
        findings=tuple(findings),
    )


def charges_in(report: RunRow, run: RunRow) -> tuple[AttemptCharge, ...]:
    """Return a report's charges; if only its totals are known, they are split over its time."""
    if report.charges is not None:
        return report.charges
    return _whole(report, run) if report.source == "stated" else tuple(_by_time(report, run))


def spend_of(report: RunRow) -> SpendItem:
    """Return a whole run as one spend, booked when it ended."""
    (whole,) = _whole(report, report)
    return _spend(report, report, whole)


def _spend(report: RunRow, run: RunRow, charge: AttemptCharge) -> SpendItem:
    unit = report.unit_of(charge)
    return SpendItem(
        source=report.source,
        run_id=report.run_id,
        model=report.model,
        name=run.name,
        start_ns=charge.start_ns,
        end_ns=charge.end_ns,
        booked_ns=charge.booked_ns,
        cost=unit.money(charge.micros),
        assumed=unit.money(charge.assumed_micros),
        gpu_us=charge.gpu_us,
        user=charge.user,
        tags=charge.tags,
        provider=charge.provider,
        between=charge.between,
        machine=charge.machine,
        host=next(iter(charge.hosts)) if len(charge.hosts) == 1 else "",
        machines=charge.machines,
        offer=charge.offer,
        terms=charge.terms,
    )


def _whole(report: RunRow, run: RunRow) -> tuple[AttemptCharge, ...]:
    """Return a training as one charge, booked when it ended."""
    return (
        AttemptCharge(
            start_ns=report.at_ns - report.wall_ns,
            end_ns=report.at_ns,
            booked_ns=report.at_ns,
            micros=report.paid.micros,
            assumed_micros=report.paid_assumed.micros,
            gpu_us=report.gpu_ns // 1000,
            user=run.user,
            tags=run.tags,
        ),
    )


def _by_time(report: RunRow, run: RunRow) -> Iterator[AttemptCharge]:
    """Yield a run's charges by month if only its totals are known, split evenly over time."""
    begin_ns, end_ns = run.started_ns, run.last_seen_ns
    edges = month_edges(begin_ns, end_ns) or [begin_ns, begin_ns]
    length_ns = max(end_ns - begin_ns, 1)

    def part(amount: int, start_ns: int, until_ns: int) -> int:
        if until_ns == edges[-1]:
            return amount - amount * (start_ns - begin_ns) // length_ns
        upto = amount * (until_ns - begin_ns) // length_ns
        return upto - amount * (start_ns - begin_ns) // length_ns

    for start_ns, until_ns in pairwise(edges):
        yield AttemptCharge(
            start_ns=start_ns,
            end_ns=until_ns,
            booked_ns=start_ns,
            micros=part(report.paid.micros, start_ns, until_ns),
            assumed_micros=part(report.paid_assumed.micros, start_ns, until_ns),
            gpu_us=part(report.gpu_ns // 1000, start_ns, until_ns),
            user=run.user,
            tags=run.tags,
        )


def _split_by_time(run: RunRow) -> Finding:
    message = f"{run.name} spans several months and its log cannot be read: split evenly over time"
    return Finding(source=run.dir or run.name, message=message, severity="warning")


def _with_team(spend: SpendItem, memberships: Sequence[Membership]) -> SpendItem:
    stated = spend.tags.get("team", "")
    day = utc_datetime(spend.start_ns).strftime("%Y-%m-%d")
    team = paying_team(stated, teams_on(memberships, spend.user, day))
    return spend if team == stated else replace(spend, tags={**spend.tags, "team": team})


def owner_by(by: str) -> Callable[[SpendItem], str]:
    """Return a function from a spend to its owner, or "".

    Args:
        by: ``user``, ``model``, ``team``, ``project`` (tags of that name), or ``tag:NAME``.

    Raises:
        InvalidValue: It is none of these.
    """
    match by.split(":", 1):
        case ["user"]:
            return lambda spend: spend.user
        case ["model"]:
            return lambda spend: spend.model
        case [("team" | "project") as tag]:
            return lambda spend: spend.tags.get(tag, "")
        case ["tag", tag] if tag:
            return lambda spend: spend.tags.get(tag, "")
        case _:
            raise InvalidValue("--by", by, "user, model, team, project or tag:NAME")


def energy_in(
    spends: Iterable[SpendItem], rows: Mapping[str, RunRow], start_ns: int, end_ns: int
) -> int:
    """Return the energy of runs within ``[start_ns, end_ns)``, in millijoules.

    A run that is partly in it counts by the part of its GPU time.
    """
    inside: dict[str, Fraction] = defaultdict(Fraction)
    for spend in spends:
        overlap_ns = min(spend.end_ns, end_ns) - max(spend.start_ns, start_ns)
        if spend.gpu_us > 0 and overlap_ns > 0 and not spend.origin:
            inside[spend.run_id] += Fraction(
                spend.gpu_us * overlap_ns, spend.end_ns - spend.start_ns
            )
    known = ((rows.get(run_id), gpu_us) for run_id, gpu_us in inside.items())
    parts = (
        row.energy_mj * min(gpu_us * 1000 / row.gpu_ns, Fraction(1))
        for row, gpu_us in known
        if row is not None and row.energy_mj and row.gpu_ns
    )
    return round(sum(parts, start=Fraction(0)))
