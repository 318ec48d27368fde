"""Price names ``PROVIDER:[COUNTx]GPU[:TIER][:REGION]``: parsing and lookup. Pure.

All parts are case-insensitive:

- ``PROVIDER``: as in offers: ``lambda``, ``runpod``, ``vast``, ``own``.
- ``COUNT``: GPUs of the offer; optional if every size has the same price per GPU.
- ``GPU``: a card or a family (``H100``, ``A100-80``), or the vendor's id of an offer.
- ``TIER``: ``on-demand`` (the default), ``spot``, ``reserved``, ``community``, ``community-spot``.
- ``REGION``: the vendor's name for it; optional if every region has the same price.

``auto`` means the current machine. An ambiguous name is an error that lists the price range: outlay
does not guess.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Final

import msgspec

from outlay.errors import InvalidValue
from outlay.ledger.price import AUTO, Price
from outlay.prices.gpus import family_of, matching_names
from outlay.prices.offer import MAX_GPUS, Offer, Tier
from outlay.prices.presets import terms_of
from outlay.slurm import SlurmJob
from outlay.units import Rate
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import Kind

FORM: Final = "PROVIDER:[COUNTx]GPU[:TIER][:REGION]"
MARKETS: Final = ("vast",)
"""Marketplaces: every machine has its own price."""
OWN: Final = "own"
"""The provider name of owned hardware, whose prices are showback."""
_MAX_LISTED = 8
_MAX_COMPARED = 300
_COUNTED = re.compile(r"(?!\d+\s*[xX]\s*$)(?:(\d{1,9})\s*[xX]\s*)?(\S.*)")
_BARE_MEMORY = re.compile(r"(.*[-_ ]\d{2,3})")
_TIERS: Final = {
    "on-demand": (Tier.ON_DEMAND, False),
    "spot": (Tier.SPOT, False),
    "reserved": (Tier.RESERVED, False),
    "community": (Tier.ON_DEMAND, True),
    "community-spot": (Tier.SPOT, True),
    "community-reserved": (Tier.RESERVED, True),
}
_TIER_NAMES: Final = {terms: name for name, terms in _TIERS.items()}


class Quote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the price file: the fields of an offer that a lookup by name needs.

    Attributes:
        micros_per_hour: Per GPU.
        offer_micros_per_hour: Of the whole offer.
        fetched_ns: UTC nanoseconds.
        terms: How the vendor bills a machine, if that was stated for the offer.
    """

    provider: str
    gpu: str
    gpus: int
    tier: Tier = Tier.ON_DEMAND
    community: bool = False
    region: str = ""
    offer_id: str = ""
    micros_per_hour: int
    offer_micros_per_hour: int
    currency: str = "USD"
    source: str
    fetched_ns: int
    terms: BillingTerms | None = None

    @classmethod
    def of(cls, offer: Offer) -> Quote:
        """Return an offer as a row of the price file."""
        return cls(
            provider=offer.provider, gpu=offer.gpu, gpus=offer.gpu_count, tier=offer.tier,
            community=offer.community, region=offer.region or "", offer_id=offer.offer_id or "",
            micros_per_hour=offer.per_gpu_micros, offer_micros_per_hour=offer.price.micros,
            currency=offer.price.currency, source=offer.source, fetched_ns=offer.fetched_ns,
            terms=offer.terms,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The offer's price name; not unique, unlike its id."""
        tier = _TIER_NAMES[self.tier, self.community]
        region = f":{self.region}" if self.region else ""
        return f"{self.provider}:{self.gpus}x{self.gpu}:{tier}{region}"

    @property
    def rate(self) -> Rate:
        """Price per GPU-hour."""
        return Rate(self.micros_per_hour, self.currency)

    @property
    def kind(self) -> Kind:
        """Cash if rented by the hour; showback if owned or reserved."""
        owned = self.provider.lower() == OWN or self.tier is Tier.RESERVED
        return "showback" if owned else "cash"

    def price(self, kind: Kind | None = None) -> Price:
        """Return it as the price to record with a run."""
        by_id = f" ({self.offer_id})" if self.offer_id else ""
        return Price(
            micros_per_hour=self.micros_per_hour, currency=self.currency, source=self.source,
            kind=kind or self.kind, offer=self.name + by_id, fetched_ns=self.fetched_ns,
            terms=self.terms or terms_of(self.provider),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceName:
    """A parsed price name."""

    text: str
    provider: str
    gpu: str
    gpus: int | None = None
    tier: Tier = Tier.ON_DEMAND
    community: bool = False
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that a process runs on.

    Attributes:
        provider: "" if unknown.
        ids: Known ids of the rented instance.
        gpu: The driver's name of the GPU; "" if there is none.
        gpus: Number of visible GPUs; 0 if unknown.
        partition: The Slurm job's; "" outside of one.
    """

    provider: str = ""
    ids: frozenset[str] = frozenset()
    gpu: str = ""
    gpus: int = 0
    partition: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str], *, gpu: str = "", gpus: int = 0) -> Machine:
        """Detect the machine from environment variables."""
        pod, label = environ.get("RUNPOD_POD_ID", ""), environ.get("VAST_CONTAINERLABEL", "")
        ids = {pod, label.partition(".")[2] or label}  # Vast sets C.<instance>.
        ids |= {environ.get("CONTAINER_ID", ""), environ.get("INSTANCE_ID", "")}
        job = SlurmJob.of(environ)
        return cls(
            provider="runpod" if pod else "vast" if label else "",
            ids=frozenset(ids - {""}),
            gpu=gpu,
            gpus=gpus,
            partition="" if job is None else job.partition,
        )


class PriceUnknown(InvalidValue):
    """A name that matches no price, or several."""


def parse_name(text: str, *, name: str) -> PriceName:
    """Parse a price name; ``name`` is the option's name in errors.

    Raises:
        InvalidValue: It has another form.
    """
    provider, *rest = (part.strip() for part in text.split(":"))
    counted = _COUNTED.fullmatch(rest[0]) if rest else None
    if not provider or counted is None or len(rest) > 3 or not all(rest):
        raise InvalidValue(name, text, f'"1.50 USD/h", or {FORM} such as "lambda:8xH100:on-demand"')
    gpus = None if counted[1] is None else int(counted[1])
    if gpus is not None and not 1 <= gpus <= MAX_GPUS:
        raise InvalidValue(name, text, f"a count of 1 to {MAX_GPUS} GPUs")
    asked = PriceName(text=text, provider=provider, gpu=counted[2], gpus=gpus)
    terms = _TIERS.get(rest[1].lower()) if len(rest) > 1 else None
    if terms is not None:
        asked = replace(asked, tier=terms[0], community=terms[1])
    elif len(rest) == 3:
        raise InvalidValue(name, text, f"a tier of {', '.join(_TIERS)} before the region")
    regions = rest[2:] if terms is not None else rest[1:]
    return replace(asked, region=regions[0] if regions else "")


def look_up(
    asked: PriceName, quotes: Sequence[Quote], *, name: str, ids: Collection[str] = ()
) -> Quote:
    """Return the offer that a name refers to.

    If several sources offer the same, the newest snapshot wins. On a marketplace, ``ids`` of the
    current instance select the offer. ``name`` is the option's name in errors.

    Raises:
        PriceUnknown: It matches no offer, or several prices; lists the known ones.
    """
    theirs = [quote for quote in quotes if quote.provider.lower() == asked.provider.lower()]
    wanted = asked.gpu.lower()
    found = [quote for quote in _match_terms(asked, theirs) if quote.offer_id.lower() == wanted]
    if not found:
        found = _match_gpu(asked, theirs)
        if found and _is_market(found[0]):
            found = _match_instance(asked, found, ids, name)
    if not found:
        raise PriceUnknown(name, asked.text, _known_phrase(asked.text, theirs or quotes))
    newest = max(found, key=lambda quote: quote.fetched_ns)
    found = sorted((q for q in found if q.source == newest.source), key=_order)
    if len({(quote.micros_per_hour, quote.currency) for quote in found}) > 1:
        raise PriceUnknown(name, asked.text, f"one price; it matches {_range(found)}")
    return found[0]


def look_up_automatic(
    machine: Machine, quotes: Sequence[Quote], rates: Mapping[str, Price], *, name: str
) -> Quote | Price:
    """Return the current machine's price: its partition's rate, else its provider's offer.

    Raises:
        PriceUnknown: The machine cannot be identified, or its price is unknown.
    """
    if machine.partition in rates and machine.partition:
        return rates[machine.partition]
    if not machine.provider:
        raise PriceUnknown(name, AUTO, _unidentified_phrase(machine, quotes))
    if not machine.gpu:
        expected = f"a GPU, and no driver reports one; use {machine.provider}:COUNTxGPU"
        raise PriceUnknown(name, AUTO, expected)
    text = f"{machine.provider}:{machine.gpus or 1}x{machine.gpu}"
    asked = PriceName(
        text=text, provider=machine.provider, gpu=machine.gpu, gpus=machine.gpus or None
    )
    theirs = [quote for quote in quotes if quote.provider.lower() == machine.provider]
    if not _match_gpu(asked, theirs):
        asked = replace(asked, gpus=None)  # Only some GPUs are visible: accept any size.
    return look_up(asked, quotes, name=name, ids=machine.ids)


def _match_terms(asked: PriceName, quotes: Iterable[Quote]) -> list[Quote]:
    """Match everything but the GPU; an offer without a region matches every region."""
    return [
        quote
        for quote in quotes
        if quote.tier is asked.tier
        and (quote.community is asked.community or _is_market(quote))
        and asked.gpus in (None, quote.gpus)
        and (not asked.region or quote.region.lower() in ("", asked.region.lower()))
    ]


def _match_gpu(asked: PriceName, quotes: Sequence[Quote]) -> list[Quote]:
    gpu = asked.gpu
    if not family_of(gpu) and _BARE_MEMORY.fullmatch(gpu):
        gpu = f"{gpu}GB"  # A100-80
    names = matching_names(gpu, {quote.gpu for quote in quotes})
    return [quote for quote in _match_terms(asked, quotes) if quote.gpu in names]


def _is_market(quote: Quote) -> bool:
    return quote.provider.lower() in MARKETS


def _match_instance(
    asked: PriceName, found: Sequence[Quote], ids: Collection[str], name: str
) -> list[Quote]:
    mine = [quote for quote in found if quote.offer_id and quote.offer_id in ids]
    if mine:
        return mine
    provider = found[0].provider
    seen = f"instance {', '.join(sorted(ids))} is none of them" if ids else "no instance id is set"
    raise PriceUnknown(
        name,
        asked.text,
        f"the id of an offer, since {provider} is a marketplace where every machine has its own "
        f"price: {_range(sorted(found, key=_order))} ({seen}). Use {provider}:ID, or what you pay: "
        f'"0.40 USD/h"; or `outlay prices set GPU PRICE --provider {provider} --id INSTANCE`',
    )


def _order(quote: Quote) -> tuple[object, ...]:
    return (quote.currency, quote.micros_per_hour, quote.gpus, quote.region, quote.offer_id)


def _range(found: Sequence[Quote]) -> str:
    """Return the offers' price range, and a list of them."""
    low, high = min(found, key=_order), max(found, key=_order)
    span = str(low.rate) if low.rate == high.rate else f"{low.rate} to {high.rate}"
    return f"{span} per GPU: {_listed(_labels(found))}"


def _labels(found: Sequence[Quote]) -> list[str]:
    """Return each offer's name and price; its id if the name is not unique."""
    times = Counter(quote.name for quote in found)
    by_id = [
        f"{quote.provider}:{quote.offer_id}"
        if quote.offer_id and times[quote.name] > 1
        else quote.name
        for quote in found
    ]
    labels = (f"{label} at {quote.rate}" for label, quote in zip(by_id, found, strict=True))
    return list(dict.fromkeys(labels))


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - _MAX_LISTED
    return ", ".join(labels[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _known_phrase(text: str, quotes: Sequence[Quote]) -> str:
    """Return a list of the known names, the closest to the text first."""
    if not quotes:
        return (
            "a known price, and there is none on this machine: `outlay prices fetch`, "
            '`outlay prices set GPU PRICE`, or type one such as "1.50 USD/h"'
        )
    names = {quote.name for quote in quotes}
    if len(names) > _MAX_COMPARED:
        names = {":".join(name.split(":")[:3]) for name in names}  # Without regions.
    closest = sorted(sorted(names), key=lambda name: -_similarity(text, name))
    return f"a known price: {_listed(closest)}; `outlay prices fetch` loads more"


def _similarity(text: str, name: str) -> float:
    return SequenceMatcher(None, text.lower(), name.lower()).ratio()


def _unidentified_phrase(machine: Machine, quotes: Sequence[Quote]) -> str:
    seen = [f"{machine.gpus or 'some'} x {machine.gpu}"] if machine.gpu else ["no GPU driver"]
    if machine.partition:
        seen.append(f"Slurm partition {machine.partition}, which has no rate")
        advice = f'`outlay prices partition set {machine.partition} "1.20 USD/h"`'
    else:
        seen.append("no known provider")
        advice = f'"1.50 USD/h" or {FORM}'
    text = f"{machine.gpus or 1}x{machine.gpu}" if machine.gpu else ""
    known = _known_phrase(text, quotes)
    return f"a machine whose price is known ({', '.join(seen)}): {advice}; or {known}"
