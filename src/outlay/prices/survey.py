"""Comparing vendors for one short job, and picking one by a written rule. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from outlay.clock import utc_text
from outlay.errors import Finding
from outlay.escaping import markdown_table, markdown_text
from outlay.prices.alerts import change_percent
from outlay.prices.gpus import matching_names, resolve
from outlay.prices.offer import Offer, Snapshot, Tier, cheapest_first
from outlay.units import Money

# The rule: the cheapest spot offer whose GPUs are joined by NVLink; where there is none, the
# cheapest spot offer that has all the GPUs in one machine.

ROWS_PER_VENDOR = 3
USUAL_PRICE = Money.parse("0.35")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """What is compared at a vendor.

    Attributes:
        gpus: Cards or families; empty means consumer cards.
    """

    tier: Tier = Tier.SPOT
    gpus: tuple[str, ...] = ()

    def admits(self, offer: Offer) -> bool:
        """Whether an offer belongs into the comparison."""
        if offer.tier is not self.tier:
            return False
        if self.gpus:
            return any(matching_names(gpu, [offer.gpu]) for gpu in self.gpus)
        spec = resolve(offer.gpu).spec
        return spec is not None and spec.consumer


# Consumer cards on spot where a vendor has them; Lambda has neither, and is compared with its
# two usual multi-GPU machines on demand.
SHORTLISTS = {
    "runpod": Shortlist(),
    "lambda": Shortlist(tier=Tier.ON_DEMAND, gpus=("A100", "A6000")),
    "vast": Shortlist(),
}


class Rule(StrEnum):
    """Which step of the rule decided."""

    NVLINK = "cheapest spot with NVLink"
    SINGLE_NODE = "cheapest spot in a single node"
    NO_SPOT = "no spot offer; cheapest on demand"
    PLACEHOLDER = "placeholder price"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A price to plan with where no vendor could be asked: an assumption, and shown as one."""

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
        """The cost and its buffer, rounded up to a whole dollar."""
        buffered = self.cost.micros * (100 + self.buffer_percent)
        return Money(-(-buffered // 100_000_000) * 1_000_000, self.cost.currency)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRow:
    """One vendor in the comparison.

    Attributes:
        offers: Its cheapest offers that fit, at most ``ROWS_PER_VENDOR`` kinds.
        fitting: How many fit in all.
        problem: Why nothing is known, where nothing was loaded.
    """

    vendor: str
    offers: tuple[Offer, ...]
    fitting: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The comparison and what came out of it."""

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
        """What to plan with instead, where there is no pick."""
        return Placeholder(gpus=self.gpus) if self.pick is None else None


def survey(
    snapshots: Sequence[Snapshot], *, gpus: int, taken_ns: int, only: Iterable[str] = ()
) -> Survey:
    """Compare vendors, a snapshot each, for a job on so many GPUs of one machine.

    ``only`` are the GPUs to compare instead of each vendor's usual ones.
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
    shortlist = Shortlist(tier=usual.tier, gpus=only) if only else usual
    # One offer is one machine, so an offer of the right size is placement in a single node.
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


# A survey as a document: ``vendor-survey.md``. Pure; every figure in it is computed.

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
        said = row.problem or "loaded; nothing that fits can be rented now"
        yield [row.vendor, said, *[""] * (len(_HEADINGS) - 2)]
    for offer in row.offers:
        yield [
            row.vendor,
            described(offer),
            str(offer.price_per_gpu),
            str(offer.price),
            "not said" if offer.memory_gb is None else f"{offer.memory_gb} GB",
            "not said" if offer.bandwidth_mbps is None else f"{offer.bandwidth_mbps} Mbit/s down",
            _YES_NO[offer.nvlink],
            offer.region or "any",
            f"{offer.source}, {utc_text(offer.fetched_ns)}",
        ]


def justification(survey: Survey) -> str:
    """Return why the pick is the pick, in one paragraph."""
    pick = survey.pick
    if pick is None:
        return _assumption(Placeholder(gpus=survey.gpus))
    return " ".join([_chosen(pick), _why(survey), *_against(survey, pick), *_warnings(pick)])


def described(offer: Offer) -> str:
    """Return what is rented, in a few words."""
    return f"{offer.gpu_count}x {offer.gpu} {offer.label}"


def _chosen(pick: Offer) -> str:
    what = markdown_text(f"{pick.provider}: {described(pick)}")
    return f"**{what}** at {pick.price_per_gpu} per GPU-hour, {pick.price} per hour for all of it."


def _why(survey: Survey) -> str:
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
            return "No spot tier has an offer that fits, so this is the cheapest on demand."


def _against(survey: Survey, pick: Offer) -> Iterator[str]:
    for other in survey.runners_up:
        more = change_percent(other.price_per_gpu.micros, pick.price_per_gpu.micros)
        joined = {True: "with NVLink", False: "without NVLink", None: "NVLink not known"}
        yield (
            f"The cheapest at {markdown_text(other.provider)} is {markdown_text(described(other))} "
            f"at {other.price_per_gpu} per "
            f"GPU-hour ({more:+.0f} %, {joined[other.nvlink]})."
        )


def _warnings(pick: Offer) -> Iterator[str]:
    if pick.tier is Tier.SPOT:
        yield "Spot can be taken back at short notice: save partial results after each measurement."


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
