"""GPU names and memory: vendors' names resolved to canonical ones. Pure.

Memory is NVIDIA's and AMD's published figure. There are no market prices here; the floor is a price
below which no such GPU has ever been rented out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from outlay.units import Money

# A vendor's GB may be GiB, or exclude memory reserved for error correction: a difference of 10 % is
# still the same card. The next larger card of a family is at least a fifth larger.
MEMORY_TOLERANCE_PERCENT = 12

_TABLE = """
# family       memory GB   nvlink  consumer  floor $/h
P100           16          yes     no        0.02
V100           16,32       yes     no        0.02
T4             16          no      no        0.02
A10            24          no      no        0.03
A10G           24          no      no        0.03
A16            16          no      no        0.02
A30            24          yes     no        0.03
A40            48          yes     no        0.05
A100           40,80       yes     no        0.10
L4             24          no      no        0.04
L40            48          no      no        0.08
L40S           48          no      no        0.08
H100           80          yes     no        0.20
H100-NVL       94          yes     no        0.20
H200           141         yes     no        0.30
H200-NVL       141         yes     no        0.30
GH200          96,144      yes     no        0.20
B200           180         yes     no        0.40
GB200          186         yes     no        0.40
B300           270         yes     no        0.50
GB300          270         yes     no        0.50
RTX2060        6,12        no      yes       0.005
RTX2060SUPER   8           no      yes       0.005
RTX2070        8           no      yes       0.005
RTX2070SUPER   8           yes     yes       0.005
RTX2080        8           yes     yes       0.005
RTX2080SUPER   8           yes     yes       0.005
RTX2080Ti      11          yes     yes       0.005
RTX3050        6,8         no      yes       0.005
RTX3060        8,12        no      yes       0.005
RTX3060Ti      8           no      yes       0.005
RTX3070        8           no      yes       0.005
RTX3070Ti      8           no      yes       0.005
RTX3080        10,12       no      yes       0.01
RTX3080Ti      12          no      yes       0.01
RTX3090        24          yes     yes       0.02
RTX3090Ti      24          yes     yes       0.02
RTX4060        8           no      yes       0.01
RTX4060Ti      8,16        no      yes       0.01
RTX4070        12          no      yes       0.01
RTX4070SUPER   12          no      yes       0.01
RTX4070Ti      12          no      yes       0.01
RTX4070TiSUPER 16          no      yes       0.01
RTX4080        16          no      yes       0.02
RTX4080SUPER   16          no      yes       0.02
RTX4090        24          no      yes       0.04
RTX5060        8           no      yes       0.01
RTX5060Ti      8,16        no      yes       0.01
RTX5070        12          no      yes       0.01
RTX5070Ti      16          no      yes       0.02
RTX5080        16          no      yes       0.02
RTX5090        32          no      yes       0.05
RTX6000        24          yes     no        0.02
A4000          16          no      no        0.01
A4500          20          yes     no        0.01
A5000          24          yes     no        0.02
A6000          48          yes     no        0.05
RTX2000Ada     16          no      no        0.02
RTX4000Ada     20          no      no        0.02
RTX5000Ada     32          no      no        0.03
RTX6000Ada     48          no      yes       0.06
RTXPRO4500     32          no      no        0.05
RTXPRO6000     96          no      no        0.10
MI100          32          no      no        0.05
MI210          64          no      no        0.05
MI250          128         no      no        0.10
MI250X         128         no      no        0.10
MI300A         128         no      no        0.15
MI300X         192         no      no        0.15
MI308X         128         no      no        0.15
MI325X         288         no      no        0.20
MI350X         288         no      no        0.20
MI355X         288         no      no        0.20
"""

# Other normalised names of a family, apart from prefixes and form factors.
_ALIASES = {
    "RTXA4000": "A4000",
    "RTXA4500": "A4500",
    "RTXA5000": "A5000",
    "RTXA6000": "A6000",
    "QRTX6000": "RTX6000",
    "RTX4070S": "RTX4070SUPER",
    "RTX4070STI": "RTX4070TISUPER",
    "RTX4080S": "RTX4080SUPER",
    "RTX2060S": "RTX2060SUPER",
    "RTX2070S": "RTX2070SUPER",
    "RTX2080S": "RTX2080SUPER",
    "RTXPRO6000WS": "RTXPRO6000",
    "RTXPRO6000S": "RTXPRO6000",
    "RTXPRO6000MAXQ": "RTXPRO6000",
}

# These exist as SXM modules and PCIe cards, which differ in speed and price. HBM3 memory also
# identifies the H100's module: the card has an older type.
_IN_TWO_FORMS = ("P100", "V100", "A100", "H100")
_FORMS = {"SXM": re.compile(r"\bSXM\d?\b|\bH100\b.*\bHBM3\b"), "PCIe": re.compile(r"\bPCI-?E\b")}
_NOISE = re.compile(
    r"\b(NVIDIA|AMD|INSTINCT|GEFORCE|TESLA|QUADRO|SXM\d?|PCI-?E|OAM|HBM\d?E?|GENERATION|"
    r"WORKSTATION|SERVER|EDITION|BLACKWELL|TENSOR|CORE|GPU)\b"
)
_MEMORY = re.compile(r"\b(\d{1,3})\s*G(?:I?B)?\b")
_SEPARATOR = re.compile(r"[^A-Z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A card as its maker specifies it.

    Attributes:
        name: Canonical, with the memory if a family has several sizes: ``A100-80GB``, ``RTX4090``.
        family: Shared by cards that differ only in memory: ``A100``.
        nvlink: Whether NVLink exists for this card.
        consumer: A desktop card; surveys for short, cheap jobs use these.
        floor: Per GPU-hour; a lower price is a mistake.
    """

    name: str
    family: str
    memory_gb: int
    nvlink: bool
    consumer: bool
    floor: Money


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedGpu:
    """A vendor's GPU name, resolved as far as possible.

    Attributes:
        card: Canonical if known, else the vendor's name with normalised whitespace.
        form: ``SXM`` or ``PCIe``; "" if unknown, or if the card has only one form factor.
        memory_gb: Per GPU; None if unknown.
        spec: None for an unknown card, or if the memory fits no card of the family.
    """

    card: str
    form: str = ""
    memory_gb: int | None
    spec: GpuSpec | None

    @property
    def name(self) -> str:
        """Card and form factor: ``RTX4090``, ``H100-SXM``, ``A100-80GB-PCIe``."""
        return f"{self.card}-{self.form}" if self.form else self.card


def _read_table(text: str) -> dict[str, tuple[GpuSpec, ...]]:
    families: dict[str, tuple[GpuSpec, ...]] = {}
    for line in text.strip().splitlines()[1:]:
        family, memories, nvlink, consumer, floor = line.split()
        sizes = memories.split(",")
        families[_key(family)] = tuple(
            GpuSpec(
                name=family if len(sizes) == 1 else f"{family}-{size}GB",
                family=family,
                memory_gb=int(size),
                nvlink=nvlink == "yes",
                consumer=consumer == "yes",
                floor=Money.parse(floor),
            )
            for size in sizes
        )
    return families


def _key(name: str) -> str:
    return _SEPARATOR.sub("", name.upper())


_FAMILIES = _read_table(_TABLE)
SPECS = {spec.name: spec for cards in _FAMILIES.values() for spec in cards}


@lru_cache(maxsize=4096)
def resolve(name: str, memory_gb: float | None = None) -> ResolvedGpu:
    """Resolve a vendor's GPU name.

    Args:
        name: As the vendor writes it: ``NVIDIA A100-SXM4-80GB``, ``h100_sxm5``, ``RTX 4090``.
        memory_gb: Per GPU, if the vendor states it; takes precedence over a figure in the name.
    """
    text = name.upper().replace("_", " ")
    in_name = _MEMORY.search(text)
    seen_gb = memory_gb or (float(in_name[1]) if in_name else None)
    cards = () if "MIG" in text.split() else family_of(name)
    rounded_gb = round(seen_gb) if seen_gb else None
    if not cards:
        return ResolvedGpu(card=" ".join(name.split()), memory_gb=rounded_gb, spec=None)
    form = ""
    if cards[0].family in _IN_TWO_FORMS:
        form = next((form for form, pattern in _FORMS.items() if pattern.search(text)), "")
    fitting = [card for card in cards if seen_gb is None or same_memory(seen_gb, card.memory_gb)]
    if len(fitting) == 1:
        card = fitting[0]
        return ResolvedGpu(card=card.name, form=form, memory_gb=card.memory_gb, spec=card)
    return ResolvedGpu(card=cards[0].family, form=form, memory_gb=rounded_gb, spec=None)


@lru_cache(maxsize=4096)
def family_of(name: str) -> tuple[GpuSpec, ...]:
    """Return the cards of a name's family; empty if it is unknown."""
    text = name.upper().replace("_", " ")
    bare = _key(_MEMORY.sub(" ", _NOISE.sub(" ", text)))
    return _FAMILIES.get(_ALIASES.get(bare, bare), ())


def same_memory(seen_gb: float, spec_gb: float) -> bool:
    """Return whether two figures describe the same card, allowing for GB versus GiB."""
    return abs(seen_gb - spec_gb) * 100 <= MEMORY_TOLERANCE_PERCENT * spec_gb


def matching_names(asked: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of ``names`` that match the requested GPU.

    A family matches all of its cards (``A100``: both memory sizes), a card matches every form
    factor, and an unknown name matches itself, ignoring case and separators. If a form factor is
    requested (``H100-SXM``), names without one match only if no name has it.
    """
    wanted = resolve(asked)
    cards = {card.name for card in family_of(asked)}
    accepted = {wanted.card} if wanted.card in SPECS and len(cards) > 1 else cards | {wanted.card}
    keys = {_key(name) for name in accepted}
    found = {name: resolve(name) for name in names}
    forms = {name: gpu.form for name, gpu in found.items() if _key(gpu.card) in keys}
    if not wanted.form:
        return frozenset(forms)
    exact = frozenset(name for name, form in forms.items() if form == wanted.form)
    return exact or frozenset(name for name, form in forms.items() if not form)
