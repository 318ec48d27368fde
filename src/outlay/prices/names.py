"""Prices by name: ``PROVIDER:[COUNTx]GPU[:TIER][:REGION]``, read and looked up. Pure.

The grammar, whose parts are compared without regard to letter case:

- ``PROVIDER``: as offers name it: ``lambda``, ``runpod``, ``vast``, ``own``.
- ``COUNT``: GPUs of the offer; left out where every size costs the same per GPU.
- ``GPU``: a card or a family (``H100``, ``A100-80``), or the id that the vendor gives its offer.
- ``TIER``: ``on-demand`` (where it is left out), ``spot``, ``reserved``, ``community``,
  ``community-spot``.
- ``REGION``: as the vendor names it; left out where every region costs the same.

``auto`` stands for the machine that asks. A name that means several prices is refused with their
range: which of them is paid is not guessed.
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
from outlay.ledger.price import AUTO, Kind, Price
from outlay.prices.gpus import family_of, matching_names
from outlay.prices.offer import MOST_GPUS, Offer, Tier
from outlay.units import Rate

FORM: Final = "PROVIDER:[COUNTx]GPU[:TIER][:REGION]"
MARKETS: Final = ("vast",)
"""Providers whose every machine has a price of its own."""
OWN: Final = "own"
"""The provider of what is owned: its prices are showback."""
_SHOWN = 8
_COMPARED = 300
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
_TIER_WORDS: Final = {terms: word for word, terms in _TIERS.items()}


class Quote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An offer as far as a price by name needs it; a row of the price file.

    Attributes:
        micros_per_hour: Of one GPU.
        offer_micros_per_hour: Of the whole offer, before it was divided.
        source: Which source said so.
        fetched_ns: When it was so, UTC nanoseconds.
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

    @classmethod
    def of(cls, offer: Offer) -> Quote:
        """Return what the price file keeps of an offer."""
        return cls(
            provider=offer.provider, gpu=offer.gpu, gpus=offer.gpu_count, tier=offer.tier,
            community=offer.community, region=offer.region or "", offer_id=offer.offer_id or "",
            micros_per_hour=offer.per_gpu_micros, offer_micros_per_hour=offer.price.micros,
            currency=offer.price.currency, source=offer.source, fetched_ns=offer.fetched_ns,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The offer as a name; offers of one name may still differ, which their ids tell apart."""
        word = _TIER_WORDS[self.tier, self.community]
        region = f":{self.region}" if self.region else ""
        return f"{self.provider}:{self.gpus}x{self.gpu}:{word}{region}"

    @property
    def rate(self) -> Rate:
        """What one GPU of it costs per hour."""
        return Rate(self.micros_per_hour, self.currency)

    @property
    def kind(self) -> Kind:
        """Cash where it is rented by the hour; showback where it is owned or reserved."""
        owned = self.provider.lower() == OWN or self.tier is Tier.RESERVED
        return "showback" if owned else "cash"

    def price(self, kind: Kind | None = None) -> Price:
        """Return it as a price that is frozen with a run."""
        by_id = f" ({self.offer_id})" if self.offer_id else ""
        return Price(
            micros_per_hour=self.micros_per_hour, currency=self.currency, source=self.source,
            kind=kind or self.kind, offer=self.name + by_id, fetched_ns=self.fetched_ns,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceName:
    """What a name asks for; see the grammar above."""

    text: str
    provider: str
    gpu: str
    gpus: int | None = None
    tier: Tier = Tier.ON_DEMAND
    community: bool = False
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a process knows about where it runs.

    Attributes:
        provider: "" where nothing says.
        ids: Of the rented instance, in every spelling.
        gpu: The driver's name of the GPU; "" where there is none.
        gpus: How many are visible; 0 where nobody knows.
        partition: Of the Slurm job it runs in; "" outside one.
    """

    provider: str = ""
    ids: frozenset[str] = frozenset()
    gpu: str = ""
    gpus: int = 0
    partition: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str], *, gpu: str = "", gpus: int = 0) -> Machine:
        """Return the machine that an environment describes."""
        pod, label = environ.get("RUNPOD_POD_ID", ""), environ.get("VAST_CONTAINERLABEL", "")
        ids = {pod, label.partition(".")[2] or label}  # Vast writes C.<instance>
        ids |= {environ.get("CONTAINER_ID", ""), environ.get("INSTANCE_ID", "")}
        in_job = environ.get("SLURM_JOB_ID")
        return cls(
            provider="runpod" if pod else "vast" if label else "",
            ids=frozenset(ids - {""}),
            gpu=gpu,
            gpus=gpus,
            partition=environ.get("SLURM_JOB_PARTITION", "") if in_job else "",
        )


class PriceUnknown(InvalidValue):
    """A name that stands for no price, or for more than one."""


def parse_name(text: str, *, name: str) -> PriceName:
    """Return what a name asks for.

    Raises:
        InvalidValue: It is no name of this form.
    """
    provider, *rest = (part.strip() for part in text.split(":"))
    counted = _COUNTED.fullmatch(rest[0]) if rest else None
    if not provider or counted is None or len(rest) > 3 or not all(rest):
        raise InvalidValue(name, text, f'"1.50 USD/h", or {FORM} such as "lambda:8xH100:on-demand"')
    gpus = None if counted[1] is None else int(counted[1])
    if gpus is not None and not 1 <= gpus <= MOST_GPUS:
        raise InvalidValue(name, text, f"a count of 1 to {MOST_GPUS} GPUs")
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
    """Return the offer that a name stands for.

    Where several sources offer the same, the newest snapshot counts. On a market the
    ``ids`` of the instance that asks tell which offer it is; ``name`` is what an error calls it.

    Raises:
        PriceUnknown: It stands for none, or for several prices; says which are known.
    """
    theirs = [quote for quote in quotes if quote.provider.lower() == asked.provider.lower()]
    wanted = asked.gpu.lower()
    found = [quote for quote in _with_terms(asked, theirs) if quote.offer_id.lower() == wanted]
    if not found:
        found = _of_gpu(asked, theirs)
        if found and _is_market(found[0]):
            found = _of_instance(asked, found, ids, name)
    if not found:
        raise PriceUnknown(name, asked.text, _known_phrase(asked.text, theirs or quotes))
    newest = max(found, key=lambda quote: quote.fetched_ns)
    found = sorted((q for q in found if q.source == newest.source), key=_order)
    if len({(quote.micros_per_hour, quote.currency) for quote in found}) > 1:
        raise PriceUnknown(name, asked.text, f"one price; it stands for {_range(found)}")
    return found[0]


def look_up_automatic(
    machine: Machine, quotes: Sequence[Quote], rates: Mapping[str, Price], *, name: str
) -> Quote | Price:
    """Return what the machine that asks costs: its partition's rate, else its provider's offer.

    Raises:
        PriceUnknown: The machine does not say enough, or nothing is known about its price.
    """
    if machine.partition in rates and machine.partition:
        return rates[machine.partition]
    if not machine.provider:
        raise PriceUnknown(name, AUTO, _needed(machine, quotes))
    if not machine.gpu:
        expected = f"a GPU, which no driver names here; say {machine.provider}:COUNTxGPU"
        raise PriceUnknown(name, AUTO, expected)
    text = f"{machine.provider}:{machine.gpus or 1}x{machine.gpu}"
    asked = PriceName(
        text=text, provider=machine.provider, gpu=machine.gpu, gpus=machine.gpus or None
    )
    theirs = [quote for quote in quotes if quote.provider.lower() == machine.provider]
    if not _of_gpu(asked, theirs):
        asked = replace(asked, gpus=None)  # Some of its GPUs are visible: any size must do.
    return look_up(asked, quotes, name=name, ids=machine.ids)


def _with_terms(asked: PriceName, quotes: Iterable[Quote]) -> list[Quote]:
    """Return what fits in all but the GPU; an offer that names no region is in every one."""
    return [
        quote
        for quote in quotes
        if quote.tier is asked.tier
        and (quote.community is asked.community or _is_market(quote))
        and asked.gpus in (None, quote.gpus)
        and (not asked.region or quote.region.lower() in ("", asked.region.lower()))
    ]


def _of_gpu(asked: PriceName, quotes: Sequence[Quote]) -> list[Quote]:
    gpu = asked.gpu
    if not family_of(gpu) and _BARE_MEMORY.fullmatch(gpu):
        gpu = f"{gpu}GB"  # A100-80
    names = matching_names(gpu, {quote.gpu for quote in quotes})
    return [quote for quote in _with_terms(asked, quotes) if quote.gpu in names]


def _is_market(quote: Quote) -> bool:
    return quote.provider.lower() in MARKETS


def _of_instance(
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
        f"the id of an offer, since {provider} is a market and every machine has its own price: "
        f"{_range(sorted(found, key=_order))} ({seen}). Say {provider}:ID, or what you pay: "
        f'"0.40 USD/h"; or `outlay prices set GPU PRICE --provider {provider} --id INSTANCE`',
    )


def _order(quote: Quote) -> tuple[object, ...]:
    return (quote.currency, quote.micros_per_hour, quote.gpus, quote.region, quote.offer_id)


def _range(found: Sequence[Quote]) -> str:
    """Return from what to what some offers cost, and which they are."""
    low, high = min(found, key=_order), max(found, key=_order)
    span = str(low.rate) if low.rate == high.rate else f"{low.rate} to {high.rate}"
    return f"{span} per GPU: {_listed(_labels(found))}"


def _labels(found: Sequence[Quote]) -> list[str]:
    """Return each offer's name and price; by its id where the name is another's too."""
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
    more = len(labels) - _SHOWN
    return ", ".join(labels[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _known_phrase(text: str, quotes: Sequence[Quote]) -> str:
    """Return what is known instead, the names closest to the text first."""
    if not quotes:
        return (
            "a price that is known, and none is on this machine: `outlay prices fetch`, "
            '`outlay prices set GPU PRICE`, or type one such as "1.50 USD/h"'
        )
    names = {quote.name for quote in quotes}
    if len(names) > _COMPARED:
        names = {":".join(name.split(":")[:3]) for name in names}  # Without regions.
    closest = sorted(sorted(names), key=lambda name: -_likeness(text, name))
    return f"a price that is known: {_listed(closest)}; `outlay prices fetch` asks for more"


def _likeness(text: str, name: str) -> float:
    return SequenceMatcher(None, text.lower(), name.lower()).ratio()


def _needed(machine: Machine, quotes: Sequence[Quote]) -> str:
    seen = [f"{machine.gpus or 'some'} x {machine.gpu}"] if machine.gpu else ["no GPU driver"]
    if machine.partition:
        seen.append(f"Slurm partition {machine.partition}, which has no rate")
        advice = f'`outlay prices partition set {machine.partition} "1.20 USD/h"`'
    else:
        seen.append("no provider that is recognised")
        advice = f'"1.50 USD/h" or {FORM}'
    text = f"{machine.gpus or 1}x{machine.gpu}" if machine.gpu else ""
    return f"a machine whose price can be told ({', '.join(seen)}): {advice}; or " + _known_phrase(
        text, quotes
    )
