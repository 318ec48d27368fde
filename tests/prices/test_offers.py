"""Offers: GPU names, screening, and search for the cheapest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gpuhunt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from offer_builder import offer
from outlay.errors import InvalidValue
from outlay.prices.catalog import Catalog, Query
from outlay.prices.gpus import SPECS, family_of, matching_names, resolve, same_memory
from outlay.prices.offer import Offer, Tier, cheapest_first, nvlink_between, screen
from outlay.units import Money


@pytest.mark.parametrize(
    ("name", "memory", "canonical"),
    [
        ("NVIDIA A100-SXM4-80GB", None, "A100-80GB-SXM"),
        ("A100 PCIE", 40.0, "A100-40GB-PCIe"),
        ("A100", 81559 / 1024, "A100-80GB"),
        ("A100", 85.9, "A100-80GB"),
        ("a100_80gb_sxm4", None, "A100-80GB-SXM"),
        ("A100", None, "A100"),
        ("A100 (40 GB SXM4)", None, "A100-40GB-SXM"),
        ("NVIDIA H100 80GB HBM3", 80, "H100-SXM"),
        ("NVIDIA H100 PCIe", 80, "H100-PCIe"),
        ("Tesla V100-SXM2-16GB", None, "V100-16GB-SXM"),
        ("H200 SXM", 141, "H200"),
        ("H100 NVL", 94, "H100-NVL"),
        ("H100-SXM", None, "H100-SXM"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090"),
        ("RTX 4070S Ti", 16, "RTX4070TiSUPER"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "RTX6000Ada"),
        ("RTX6000-Ada", None, "RTX6000Ada"),
        ("Quadro RTX 6000 (24 GB)", None, "RTX6000"),
        ("NVIDIA RTX A6000", 48, "A6000"),
        ("RTX PRO 6000 WS", 96, "RTXPRO6000"),
        ("AMD Instinct MI300X OAM", 192, "MI300X"),
        ("Tesla V100", 16, "V100-16GB"),
        ("V100-32GB", None, "V100-32GB"),
        ("NVIDIA B300 MIG 1g.24gb", 24, "NVIDIA B300 MIG 1g.24gb"),
        ("Quantum  9000", None, "Quantum 9000"),
    ],
)
def test_a_vendors_name_is_resolved(name: str, memory: float | None, canonical: str) -> None:
    assert resolve(name, memory).name == canonical


def test_the_table_gives_the_memory() -> None:
    spec = resolve("NVIDIA H100 80GB HBM3").spec
    assert spec is not None
    assert spec.memory_gb == 80


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("H100", {"H100", "H100-SXM", "H100 PCIe"}),
        ("H100 SXM5", {"H100-SXM"}),
        ("NVIDIA H100 PCIe", {"H100 PCIe"}),
        ("A100 SXM", {"A100-40GB-SXM"}),
        ("A100-80GB-SXM", {"A100-80GB"}),  # Nothing is known to be one: this may be.
        ("A100-40GB-PCIe", set()),
    ],
)
def test_a_form_factor_is_another_gpu(asked: str, found: set[str]) -> None:
    names = ["H100", "H100-SXM", "H100 PCIe", "H100-NVL", "A100-40GB-SXM", "A100-80GB"]
    assert matching_names(asked, names) == found


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_canonical_name_resolves_to_itself(name: str) -> None:
    assert resolve(name).name == name


def test_gpuhunt_agrees_on_memory() -> None:
    for known in gpuhunt.KNOWN_ACCELERATORS:
        family = family_of(known.name)
        if family and known.memory:
            assert any(same_memory(known.memory, card.memory_gb) for card in family), known


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("A100", {"A100", "A100-40GB", "A100-80GB"}),
        ("a100 80gb", {"A100-80GB"}),
        ("A100-40GB", {"A100-40GB"}),
        ("h100", {"H100", "H100 SXM5"}),
        ("quantum9000", {"Quantum 9000"}),
        ("B100", set()),
    ],
)
def test_a_family_means_all_its_cards(asked: str, found: set[str]) -> None:
    names = ["A100", "A100-40GB", "A100-80GB", "H100", "H100 SXM5", "H100-NVL", "Quantum 9000"]
    assert matching_names(asked, names) == found


@pytest.mark.parametrize(
    ("name", "gpu", "count", "joined"),
    [
        ("H100 SXM5", "H100", 8, True),
        ("H100 SXM5", "H100", 1, None),
        ("H100 PCIe", "H100", 8, None),
        ("RTX 4090", "RTX4090", 2, False),
        ("RTX 3090", "RTX3090", 2, None),
        ("Quantum 9000 SXM", "Quantum 9000", 2, None),
    ],
)
def test_nvlink_is_unknown_unless_certain(
    name: str, gpu: str, count: int, joined: bool | None
) -> None:
    assert nvlink_between(name, gpu, count) is joined


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_an_offer_has_gpus(count: int) -> None:
    with pytest.raises(InvalidValue, match="gpu_count"):
        offer(gpu_count=count)


def test_an_absurd_price_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^price"):
        offer("1000001")
    with pytest.raises(InvalidValue, match="storage_price"):
        offer(storage_price=Money(10**25))


@given(st.integers(1, 10**12), st.integers(1, 64))
def test_the_price_per_gpu_is_the_nearest_micro_unit(micros: int, count: int) -> None:
    found = replace(offer(), price=Money(micros), gpu_count=count).price_per_gpu.micros
    assert abs(found * count - micros) * 2 <= count


IMPOSSIBLE = {
    "a price of 0": offer("0", tier=Tier.SPOT),
    "a $0.01 A100": offer("0.01", gpu="A100-80GB"),
    "a $0.01 GPU of an 8-GPU offer": offer("0.08", gpu="A100-80GB", gpu_count=8),
    "memory that contradicts the card": offer(memory_gb=24),
    "total memory given as one GPU's": offer("4.00", gpu_count=2, memory_gb=160),
    "memory that no card of the family has": offer(gpu="A100", memory_gb=24),
}


@pytest.mark.parametrize("row", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_rows_are_quarantined(row: Offer) -> None:
    screened = screen([row, offer()])
    assert screened.offers == (offer(),)
    assert len(screened.findings) == 1


def test_spot_above_on_demand_of_the_same_machine_is_quarantined() -> None:
    steady = offer("2.00", offer_id="p5")
    spot = offer("2.01", offer_id="p5", tier=Tier.SPOT)
    screened = screen([spot, steady])
    assert screened.offers == (steady,)
    assert "costs more than the same machine on demand" in screened.findings[0].message


@pytest.mark.parametrize(
    "spot",
    [
        offer("2.00", offer_id="p5", tier=Tier.SPOT),
        offer("2.01", offer_id="other", tier=Tier.SPOT),
        offer("2.01", offer_id="p5", tier=Tier.SPOT, region="elsewhere"),
        offer("4.00", offer_id="p5", tier=Tier.SPOT, gpu_count=2),
        offer("2.01", tier=Tier.SPOT),
    ],
    ids=["as dear", "another thing", "another region", "another size", "no id"],
)
def test_spot_is_compared_only_with_the_same_machine(spot: Offer) -> None:
    assert not screen([spot, offer("2.00", offer_id="p5")]).findings


def test_a_price_far_below_the_median_is_quarantined() -> None:
    usual = [offer("4.00", gpu="Quantum 9000", offer_id=str(n)) for n in range(5)]
    wrong = offer("0.04", gpu="Quantum 9000")
    assert screen([*usual, wrong]).offers == tuple(usual)


def test_few_prices_make_no_median() -> None:
    usual = [offer("4.00", gpu="Quantum 9000", offer_id=str(n)) for n in range(3)]
    assert not screen([*usual, offer("0.04", gpu="Quantum 9000")]).findings


def test_a_finding_says_which_offer_and_what_is_wrong() -> None:
    (finding,) = screen([offer(memory_gb=24, region="eu", offer_id="x1")]).findings
    assert finding.source == "test"
    assert finding.message == (
        "acme 1x H100 on-demand in eu (x1): 24 GB of memory, where H100 has 80 GB"
    )


offers = st.builds(
    offer,
    st.integers(1, 400).map(lambda cents: f"{cents / 100:.2f}"),
    gpu=st.sampled_from(["H100", "A100-80GB", "A100-40GB", "RTX4090", "Quantum 9000"]),
    gpu_count=st.sampled_from([1, 2, 3, 8]),
    tier=st.sampled_from(Tier),
    memory_gb=st.sampled_from([None, 24, 40, 80]),
    region=st.sampled_from([None, "eu-north", "us-west"]),
    nvlink=st.sampled_from([None, True, False]),
    availability=st.sampled_from([None, 0, 1]),
    provider=st.sampled_from(["acme", "Bolt"]),
)
limits = st.integers(1, 3)
FILTERS: list[dict[str, Any]] = [
    *({"gpu": gpu} for gpu in ("A100", "H100", "rtx 4090", "quantum 9000", "none")),
    {"gpu_count": 1},
    {"gpu_count": 2},
    *({"tier": tier} for tier in Tier),
    {"max_price": Money.parse("0.50")},
    {"max_price": Money.parse("2")},
    {"max_total_price": Money.parse("3")},
    {"min_memory_gb": 40},
    {"min_memory_gb": 80},
    {"region": "EU"},
    {"provider": "bolt"},
    {"nvlink": True},
    {"rentable": True},
]


def plainly_matches(query: Query, one: Offer) -> bool:
    """The same question, asked of one offer in the plainest way."""
    return all(
        [
            query.gpu is None or bool(matching_names(query.gpu, [one.gpu])),
            query.gpu_count in (None, one.gpu_count),
            query.tier in (None, one.tier),
            query.max_price is None or one.price_per_gpu <= query.max_price,
            query.max_total_price is None or one.price <= query.max_total_price,
            query.min_memory_gb is None or (one.memory_gb or 0) >= query.min_memory_gb,
            query.region is None or query.region.lower() in (one.region or "").lower(),
            query.provider is None or query.provider.lower() == one.provider.lower(),
            not query.nvlink or one.nvlink is True,
            not query.rentable or one.availability != 0,
        ]
    )


FILTER = st.sampled_from(FILTERS)


@settings(max_examples=150, deadline=None)
@given(st.lists(offers, max_size=20), st.lists(FILTER, min_size=4, max_size=4), st.none() | limits)
def test_the_catalog_finds_what_a_plain_scan_finds_in_order(
    some: list[Offer], filters: list[dict[str, Any]], limit: int | None
) -> None:
    catalog = Catalog(some)
    for one, other in pairwise(filters):
        for query in (Query(**one), Query(**(other | one))):
            matching = sorted((o for o in some if plainly_matches(query, o)), key=cheapest_first)
            assert catalog.find(query, limit=limit) == matching[:limit]


def test_prices_of_another_currency_are_not_compared() -> None:
    euros = offer("1 EUR")
    assert Catalog([euros]).find(Query(max_price=Money.parse("5 USD"))) == []
