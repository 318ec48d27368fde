"""Which machine of the books a resource of a bill is. Pure.

In order: the resource is the instance id of an attempt or a rental, at an overlapping time; a tag
or the resource's name is a rental's name; provider, GPU and region agree, at least 80 % of the
time is the same, and no other machine or resource fits. Otherwise it is unmatched: a resource is
never split over machines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

from outlay.bills.bill_line import BillLine
from outlay.cost.machines.billed_time import covered_ns
from outlay.cost.spending import SpendItem
from outlay.errors import InvalidValue
from outlay.prices.gpus import family_of
from outlay.prices.names import PriceName, parse_name
from outlay.rates import share_out
from outlay.units.billing_terms import BillingTerms

How = Literal["instance id", "tag", "GPU, region and time"]
_LEAST_SHARED_PERCENT: Final = 80
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_LAST: Final = re.compile(r"[^/:]+$")
_PROVIDERS: Final[Mapping[str, str]] = {
    "amazon web services": "aws", "google cloud": "gcp", "google cloud platform": "gcp",
    "lambda labs": "lambda", "vast.ai": "vast", "microsoft": "azure",
}  # fmt: skip

BillKey = tuple[str, str]
"""The provider and the resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePart:
    """The part of a spend that is for one machine, in micro-units."""

    spend: SpendItem
    micros: int


@dataclass(frozen=True, kw_only=True)
class BookMachine:
    """A machine of the books, in one currency.

    Attributes:
        key: Its id; of a run without one, the run.
        names: Every id and name under which a vendor may bill it.
    """

    key: str
    names: frozenset[str]
    parts: tuple[MachinePart, ...]

    @cached_property
    def cost_micros(self) -> int:
        """What the books have for it."""
        return sum(part.micros for part in self.parts)

    @cached_property
    def intervals(self) -> list[tuple[int, int]]:
        """The charged times, of runs and of the machine without one."""
        return sorted((part.spend.start_ns, part.spend.end_ns) for part in self.parts)

    @property
    def used_ns(self) -> int:
        """How long it is charged in the books."""
        return covered_ns(self.intervals)

    @property
    def owner(self) -> str:
        """Whose it is: the users of its runs, or the project of a rental."""
        spends = [part.spend for part in self.parts]
        names = {spend.user or spend.tags.get("lab", "") for spend in spends}
        return ", ".join(sorted(filter(None, names)))

    @cached_property
    def offer(self) -> PriceName | None:
        """The offer of its price, if there is one; it names provider, GPU and region."""
        offers = {part.spend.offer for part in self.parts if part.spend.offer}
        try:
            return parse_name(offers.pop(), name="offer") if len(offers) == 1 else None
        except InvalidValue:
            return None

    @property
    def is_commitment(self) -> bool:
        """Whether it is a commitment, and not a machine."""
        return any(part.spend.source == "commitment" for part in self.parts)

    @property
    def terms(self) -> BillingTerms | None:
        """The billing terms of its price, if that states any."""
        return next((p.spend.terms for p in self.parts if p.spend.terms is not None), None)


@dataclass(frozen=True, kw_only=True)
class BilledResource:
    """The lines of a bill about one resource, in one currency."""

    key: BillKey
    lines: tuple[BillLine, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """The id, and the last part of one that is a path or an ARN."""
        resource = self.key[1]
        last = _LAST.search(resource)
        return frozenset(filter(None, (resource, last[0] if last else "")))

    @cached_property
    def labels(self) -> frozenset[str]:
        """Its display names, and the values of its tags."""
        found = {line.name for line in self.lines}
        return frozenset(found | {value for line in self.lines for value in line.tags.values()})

    @cached_property
    def intervals(self) -> list[tuple[int, int]]:
        """The billed times of its usage; of all lines if it has none."""
        usage = [line for line in self.lines if line.category == "usage"] or self.lines
        return sorted((line.start_ns, line.end_ns) for line in usage)


def machines_of(spends: Iterable[SpendItem]) -> list[BookMachine]:
    """Return the machines of spends of one currency; a run without a machine is one of its own."""
    spends = list(spends)
    known: dict[str, str] = {}
    names: dict[str, set[str]] = defaultdict(set)
    for spend in spends:
        if spend.source == "rental":
            key = spend.machine or spend.run_id
            names[key] |= {*spend.aliases, key}
            known |= dict.fromkeys(spend.aliases, key)
    parts: dict[str, list[MachinePart]] = defaultdict(list)
    for spend in spends:
        weights = spend.machines or {spend.machine: 1}
        for machine, micros in share_out(spend.cost.micros, weights).items():
            plain = machine.removeprefix("C.")  # Inside a Vast container the id has this prefix.
            key = known.get(plain, plain) or (
                spend.run_id if spend.source == "rental" else f"run {spend.run_id}"
            )
            names[key] |= {plain} if plain else set()
            parts[key].append(MachinePart(spend=spend, micros=micros))
    return [
        BookMachine(key=key, names=frozenset(names[key]), parts=tuple(found))
        for key, found in sorted(parts.items())
    ]


def resources_of(lines: Iterable[BillLine]) -> list[BilledResource]:
    """Return the resources of lines of one currency; "" is the resource of those without one."""
    found: dict[BillKey, list[BillLine]] = defaultdict(list)
    for line in lines:
        own = line.commitment if line.category == "commitment" else ""
        found[line.provider, line.resource or own].append(line)
    return [BilledResource(key=key, lines=tuple(mine)) for key, mine in sorted(found.items())]


@dataclass(frozen=True, slots=True)
class Match:
    """The machine that a billed resource is, and how that is known."""

    machine: str
    how: How


def match(
    resources: Sequence[BilledResource], machines: Sequence[BookMachine]
) -> dict[BillKey, Match]:
    """Return the machine of each resource that has one."""
    found: dict[BillKey, Match] = {}
    by_name: dict[str, list[BookMachine]] = defaultdict(list)
    for machine in machines:
        for name in machine.names:
            by_name[name].append(machine)
    for resource in resources:
        for how, names in (("instance id", resource.names), ("tag", resource.labels)):
            there = {m.key for n in names for m in by_name.get(n, ()) if _meet(resource, m)}
            if len(there) == 1:
                found[resource.key] = Match(there.pop(), how)  # type: ignore[arg-type]
                break
    return found | _matched_by_time(resources, machines, found)


def _meet(resource: BilledResource, machine: BookMachine) -> bool:
    """Return whether the two were charged at a common time."""
    (start_ns, end_ns), (first_ns, last_ns) = _span(resource.intervals), _span(machine.intervals)
    return start_ns <= last_ns and first_ns <= end_ns


def _span(intervals: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(start for start, _ in intervals), max(end for _, end in intervals)


def _matched_by_time(
    resources: Iterable[BilledResource],
    machines: Iterable[BookMachine],
    known: Mapping[BillKey, Match],
) -> dict[BillKey, Match]:
    """Return the matches by GPU, region and time among what is left, if they are unique."""
    taken = {each.machine for each in known.values()}
    left = [machine for machine in machines if machine.offer and machine.key not in taken]
    fits = {
        resource.key: [machine.key for machine in left if _fits(resource, machine)]
        for resource in resources
        if resource.key not in known and any(line.category == "usage" for line in resource.lines)
    }
    times: dict[str, int] = defaultdict(int)
    for machine_key in (key for keys in fits.values() for key in keys):
        times[machine_key] += 1
    return {
        key: Match(keys[0], "GPU, region and time")
        for key, keys in fits.items()
        if len(keys) == 1 and times[keys[0]] == 1
    }


def _fits(resource: BilledResource, machine: BookMachine) -> bool:
    offer = machine.offer
    assert offer is not None
    regions = {line.region.lower() for line in resource.lines if line.region}
    return (
        same_provider(resource.key[0], offer.provider)
        and (not regions or not offer.region or offer.region.lower() in regions)
        and _has_gpu((line.sku for line in resource.lines), offer.gpu)
        and _shared_percent(resource.intervals, machine.intervals) >= _LEAST_SHARED_PERCENT
    )


def same_provider(one: str, other: str) -> bool:
    """Return whether two names are of the same provider."""
    first, second = (_PROVIDERS.get(name.lower(), name.lower()) for name in (one, other))
    return first == second


def _has_gpu(skus: Iterable[str], gpu: str) -> bool:
    wanted = {card.family for card in family_of(gpu)}
    for sku in skus:
        words = _WORD.findall(sku)
        pairs = ["".join(pair) for pair in pairwise(words)]
        if wanted & {card.family for word in (*words, *pairs) for card in family_of(word)}:
            return True
    return False


def _shared_percent(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> float:
    """Return the common time, as a share of the longer one."""
    first, second = covered_ns(one), covered_ns(other)
    shared_ns = first + second - covered_ns([*one, *other])
    return 100 * shared_ns / max(first, second, 1)
