"""Vendor survey: offers compared for one short job, and a pick by a fixed rule. Pure.

The rule: the cheapest spot offer with NVLink between its GPUs; if there is none, the cheapest spot
offer with all GPUs in one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from outlay.clock import utc_text
from outlay.errors import Finding
from outlay.escaping import markdown_table, markdown_text
from outlay.prices.alerts import change_percent
from outlay.prices.gpus import matching_names, resolve
from outlay.prices.offer import Offer, Snapshot, Tier, cheapest_first
from outlay.units import Money

ROWS_PER_VENDOR = 3
USUAL_PRICE = Money.parse("0.35")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """Which of a vendor's offers are compared.

    Attributes:
        tier: None admits all.
        gpus: Cards or families; empty means consumer cards, or with ``consumer=False`` all.
    """

    tier: Tier | None = Tier.SPOT
    gpus: tuple[str, ...] = ()
    consumer: bool = True

    def admits(self, offer: Offer) -> bool:
        """Return whether an offer is part of the comparison."""
        if self.tier is not None and offer.tier is not self.tier:
            return False
        if self.gpus:
            return any(matching_names(gpu, [offer.gpu]) for gpu in self.gpus)
        if not self.consumer:
            return True
        spec = resolve(offer.gpu).spec
        return spec is not None and spec.consumer


BY_HAND: Final = "set by hand"
"""The row of prices that a person has set: a contract, a quote, one's own cluster."""

# Consumer cards on spot. Lambda has neither: its two common multi-GPU machines on demand are used.
SHORTLISTS = {
    "runpod": Shortlist(),
    "lambda": Shortlist(tier=Tier.ON_DEMAND, gpus=("A100", "A6000")),
    "vast": Shortlist(),
    BY_HAND: Shortlist(tier=None, consumer=False),
}


class Rule(StrEnum):
    """The step of the rule that decided."""

    NVLINK = "cheapest spot with NVLink"
    SINGLE_NODE = "cheapest spot in a single node"
    NO_SPOT = "no spot offer; cheapest on demand"
    PLACEHOLDER = "placeholder price"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """An assumed price for planning if no vendor's prices could be loaded."""

    gpus: int
    per_gpu: Money = USUAL_PRICE
    hours: int = 3
    buffer_percent: int = 40

    @property
    def per_hour(self) -> Money:
        """All GPUs, one hour."""
        return self.per_gpu * self.gpus

    @property
    def cost(self) -> Money:
        """All GPUs, all hours."""
        return self.per_hour * self.hours

    @property
    def ceiling(self) -> Money:
        """The cost plus buffer, rounded up to a whole dollar."""
        buffered = self.cost.micros * (100 + self.buffer_percent)
        return Money(-(-buffered // 100_000_000) * 1_000_000, self.cost.currency)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRow:
    """One vendor in the comparison.

    Attributes:
        offers: Its cheapest matching offers, at most ``ROWS_PER_VENDOR`` kinds.
        problem: Why nothing was loaded, if so.
    """

    vendor: str
    offers: tuple[Offer, ...]
    fitting: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The comparison and its result."""

    gpus: int
    taken_ns: int
    rows: tuple[VendorRow, ...]
    rule: Rule
    pick: Offer | None
    runners_up: tuple[Offer, ...]
    considered: int
    with_nvlink: int
    findings: tuple[Finding, ...]

    @property
    def placeholder(self) -> Placeholder | None:
        """The assumed price if there is no pick."""
        return Placeholder(gpus=self.gpus) if self.pick is None else None


def survey(
    snapshots: Sequence[Snapshot], *, gpus: int, taken_ns: int, only: Iterable[str] = ()
) -> Survey:
    """Compare vendors, a snapshot each, for a job on ``gpus`` GPUs of one machine.

    ``only`` overrides the GPUs of each vendor's shortlist.
    """
    chosen = tuple(only)
    fitting = {
        snapshot.source: sorted(_fitting(snapshot, gpus, chosen), key=cheapest_first)
        for snapshot in snapshots
    }
    candidates = sorted((o for offers in fitting.values() for o in offers), key=cheapest_first)
    spot = [offer for offer in candidates if offer.tier is Tier.SPOT]
    joined = [offer for offer in spot if offer.nvlink]
    rule, pool = _apply_rule(joined, spot, candidates)
    pick = pool[0] if pool else None
    return Survey(
        gpus=gpus,
        taken_ns=taken_ns,
        rows=tuple(_row(snapshot, fitting[snapshot.source]) for snapshot in snapshots),
        rule=rule,
        pick=pick,
        runners_up=_cheapest_elsewhere(candidates, pick),
        considered=len(spot),
        with_nvlink=len(joined),
        findings=tuple(finding for snapshot in snapshots for finding in snapshot.findings),
    )


def _apply_rule(
    joined: list[Offer], spot: list[Offer], candidates: list[Offer]
) -> tuple[Rule, list[Offer]]:
    if joined:
        return Rule.NVLINK, joined
    if spot:
        return Rule.SINGLE_NODE, spot
    return (Rule.NO_SPOT if candidates else Rule.PLACEHOLDER), candidates


def _fitting(snapshot: Snapshot, gpus: int, only: tuple[str, ...]) -> Iterable[Offer]:
    usual = SHORTLISTS.get(snapshot.source, Shortlist())
    shortlist = replace(usual, gpus=only) if only else usual
    # An offer is one machine, so an offer of this size has all GPUs in a single node.
    for offer in snapshot.offers:
        if offer.gpu_count == gpus and offer.availability != 0 and shortlist.admits(offer):
            yield offer


def _row(snapshot: Snapshot, fitting: list[Offer]) -> VendorRow:
    kinds: dict[tuple[object, ...], Offer] = {}
    for offer in fitting:
        kinds.setdefault((offer.gpu, offer.nvlink, offer.label), offer)
    problem = None
    if snapshot.failed:
        problem = snapshot.findings[0].message if snapshot.findings else "not loaded"
    return VendorRow(
        vendor=snapshot.source,
        offers=tuple(kinds.values())[:ROWS_PER_VENDOR],
        fitting=len(fitting),
        problem=problem,
    )


def _cheapest_elsewhere(candidates: list[Offer], pick: Offer | None) -> tuple[Offer, ...]:
    cheapest: dict[str, Offer] = {}
    for offer in candidates:
        if pick is not None and offer.provider != pick.provider:
            cheapest.setdefault(offer.provider, offer)
    return tuple(cheapest.values())


# The survey as a document (vendor-survey.md)

_HEADINGS = (
    "vendor", "offer", ">per GPU-hour", ">whole, per hour", ">memory per GPU", "network", "NVLink",
    "region", "source, snapshot",
)  # fmt: skip
FINDINGS_SHOWN = 20
_YES_NO = {True: "yes", False: "no", None: "not known"}


def as_markdown(survey: Survey) -> str:
    """Return the whole document."""
    blocks = [
        f"# Vendor survey: {survey.gpus} GPUs in one machine",
        f"Snapshot of {utc_text(survey.taken_ns)}. Prices move from week to week.",
        "## Vendors compared",
        "\n".join(
            markdown_table(_HEADINGS, (cells for row in survey.rows for cells in _cells(row)))
        ),
        "## Recommended pick",
        "Rule: the cheapest spot tier with NVLink between the GPUs; where there is none, the "
        "cheapest spot tier with all GPUs guaranteed in a single node.",
        justification(survey),
    ]
    if survey.findings:
        blocks += ["## What is wrong in the data", "\n".join(_findings(survey))]
    return "\n\n".join(blocks) + "\n"


def _cells(row: VendorRow) -> Iterator[list[str]]:
    if row.problem is not None or not row.offers:
        status = row.problem or "loaded; no matching offer is available now"
        yield [row.vendor, status, *[""] * (len(_HEADINGS) - 2)]
    for offer in row.offers:
        yield [
            row.vendor,
            _describe(offer),
            str(offer.price_per_gpu),
            str(offer.price),
            "not known" if offer.memory_gb is None else f"{offer.memory_gb} GB",
            "not known" if offer.bandwidth_mbps is None else f"{offer.bandwidth_mbps} Mbit/s down",
            _YES_NO[offer.nvlink],
            offer.region or "any",
            f"{offer.source}, {utc_text(offer.fetched_ns)}",
        ]


def justification(survey: Survey) -> str:
    """Return the reason for the pick, in one paragraph."""
    pick = survey.pick
    if pick is None:
        return _assumption(Placeholder(gpus=survey.gpus))
    name = markdown_text(f"{pick.provider}: {_describe(pick)}")
    chosen = f"**{name}** at {pick.price_per_gpu} per GPU-hour, {pick.price} per hour in total."
    warnings = [_SPOT_WARNING] if pick.tier is Tier.SPOT else []
    return " ".join([chosen, _reason(survey), *_alternatives(survey, pick), *warnings])


_SPOT_WARNING = (
    "Spot can be reclaimed at short notice: save partial results after each measurement."
)


def _describe(offer: Offer) -> str:
    return f"{offer.gpu_count}x {offer.gpu} {offer.label}"


def _reason(survey: Survey) -> str:
    spot = f"{survey.considered} spot offer{'s' if survey.considered != 1 else ''}"
    match survey.rule:
        case Rule.NVLINK:
            return (
                f"Of {spot} with {survey.gpus} GPUs in one machine, {survey.with_nvlink} "
                f"{'has' if survey.with_nvlink == 1 else 'have'} NVLink between them, and this is "
                "the cheapest of those."
            )
        case Rule.SINGLE_NODE:
            return (
                f"None of {spot} is known to have NVLink between the GPUs; this is the cheapest "
                f"that has all {survey.gpus} in a single node."
            )
        case _:
            return "No spot tier has a matching offer, so this is the cheapest on demand."


def _alternatives(survey: Survey, pick: Offer) -> Iterator[str]:
    nvlink = {True: "with NVLink", False: "without NVLink", None: "NVLink not known"}
    for other in survey.runners_up:
        more = change_percent(other.per_gpu_micros, pick.per_gpu_micros)
        yield (
            f"The cheapest at {markdown_text(other.provider)} is {markdown_text(_describe(other))} "
            f"at {other.price_per_gpu} per GPU-hour ({more:+.0f} %, {nvlink[other.nvlink]})."
        )


def _assumption(plan: Placeholder) -> str:
    return (
        "**Assumption, not a price:** no vendor's prices could be used, so this plans with a "
        f"placeholder of {plan.gpus}x a consumer GPU at {plan.per_gpu} per GPU-hour = "
        f"{plan.per_hour} per hour. At most {plan.hours} hours = {plan.cost}. "
        f"Ceiling: {plan.ceiling}, with a buffer of {plan.buffer_percent} %. "
        "Run the survey again before renting anything."
    )


def _findings(survey: Survey) -> Iterator[str]:
    for finding in survey.findings[:FINDINGS_SHOWN]:
        yield f"- {markdown_text(str(finding))}"
    if len(survey.findings) > FINDINGS_SHOWN:
        yield f"- and {len(survey.findings) - FINDINGS_SHOWN} more"
