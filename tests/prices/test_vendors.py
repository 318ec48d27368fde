"""Units of each vendor's figures: per GPU or per machine, dollars or cents, spot or on demand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlay.prices.offer import Offer, SourceFailed, Tier
from outlay.prices.sources.vendors import parse_lambda, parse_runpod, parse_vast
from outlay.units import Money
from vendor_shapes import (
    lambda_answer,
    lambda_type,
    runpod_answer,
    runpod_type,
    vast_answer,
    vast_offer,
)


def from_vast(**changes: Any) -> dict[Tier, Offer]:
    body = json.dumps(vast_answer(vast_offer(**changes))).encode()
    return {offer.tier: offer for offer in parse_vast(body, 1).offers}


def from_runpod(**changes: Any) -> list[Offer]:
    body = json.dumps(runpod_answer(runpod_type(**changes))).encode()
    return list(parse_runpod(body, 1).offers)


def from_lambda(entry: dict[str, Any]) -> list[Offer]:
    return list(parse_lambda(json.dumps(lambda_answer(entry)).encode(), 1).offers)


def test_vast_prices_are_for_all_gpus_of_an_offer() -> None:
    offer = from_vast()[Tier.ON_DEMAND]
    assert offer.price == Money.parse("0.40")
    assert offer.price_per_gpu == Money.parse("0.20")


def test_vast_spot_is_the_bid_with_the_same_storage() -> None:
    assert from_vast()[Tier.SPOT].price == Money.parse("0.21")


def test_vast_memory_is_in_megabytes() -> None:
    assert from_vast()[Tier.SPOT].memory_gb == 24


def test_vast_offers_have_nvlink_bandwidth_region_cuda_and_storage() -> None:
    offer = from_vast()[Tier.ON_DEMAND]
    assert offer.nvlink is True
    assert offer.bandwidth_mbps == 808
    assert offer.region == "Norway, NO"
    assert offer.cuda == "12.4"
    assert offer.storage_price == Money.parse("0.72")
    assert offer.community


@pytest.mark.parametrize(("bandwidth", "nvlink"), [(0, False), (56.2, True), (None, None)])
def test_vast_nvlink_is_its_bandwidth(bandwidth: float | None, nvlink: bool | None) -> None:
    assert from_vast(bw_nvlink=bandwidth)[Tier.SPOT].nvlink is nvlink


def test_nvlink_of_a_single_gpu_is_unknown() -> None:
    assert from_vast(num_gpus=1)[Tier.SPOT].nvlink is None


def test_vast_null_fields_are_unknown_and_not_zero() -> None:
    offer = from_vast(geolocation=None, inet_down=None, gpu_ram=None, storage_cost=None)[Tier.SPOT]
    assert offer.region is None
    assert offer.bandwidth_mbps is None
    assert offer.storage_price is None


def test_vast_without_a_bid_has_no_spot() -> None:
    assert Tier.SPOT not in from_vast(min_bid=None)


def test_runpod_prices_are_per_gpu() -> None:
    offers = [offer for offer in from_runpod() if offer.gpu_count == 4 and not offer.community]
    by_tier = {offer.tier: offer for offer in offers}
    assert by_tier[Tier.ON_DEMAND].price == Money.parse("2.76")
    assert by_tier[Tier.ON_DEMAND].price_per_gpu == Money.parse("0.69")
    assert by_tier[Tier.SPOT].price_per_gpu == Money.parse("0.35")


def test_runpod_clouds_have_their_own_largest_pod() -> None:
    offers = from_runpod()
    assert max(offer.gpu_count for offer in offers if offer.community) == 4
    assert max(offer.gpu_count for offer in offers if not offer.community) == 8


@pytest.mark.parametrize(
    ("stock", "availability"), [("High", 1), ("Low", 1), (None, 0)], ids=["high", "low", "none"]
)
def test_runpod_null_stock_means_sold_out(stock: str | None, availability: int) -> None:
    offers = from_runpod(lowestPrice={"stockStatus": stock})
    assert {offer.availability for offer in offers} == {availability}


@pytest.mark.parametrize("lowest", [None, {"minimumBidPrice": 0.2}])
def test_runpod_availability_is_unknown_without_a_stock_status(lowest: object) -> None:
    assert {offer.availability for offer in from_runpod(lowestPrice=lowest)} == {None}


@pytest.mark.parametrize("missing", [None, 0, 0.0])
def test_runpod_prices_of_null_or_zero_are_not_offered(missing: float | None) -> None:
    offers = from_runpod(secureSpotPrice=missing, communitySpotPrice=missing)
    assert {offer.tier for offer in offers} == {Tier.ON_DEMAND}


def test_runpod_reserved_terms_have_different_offer_ids() -> None:
    offers = from_runpod(oneMonthPrice=0.6, threeMonthPrice=0.5)
    reserved = [o for o in offers if o.tier is Tier.RESERVED and o.gpu_count == 1]
    assert {offer.offer_id: str(offer.price) for offer in reserved} == {
        "NVIDIA GeForce RTX 4090 (1 month)": "0.60 USD",
        "NVIDIA GeForce RTX 4090 (3 months)": "0.50 USD",
    }


def test_runpod_errors_with_status_200_are_a_failure() -> None:
    with pytest.raises(SourceFailed, match="rate limited"):
        parse_runpod(b'{"errors": [{"message": "rate limited"}], "data": null}', 1)


def test_runpod_consumer_cards_have_no_nvlink() -> None:
    assert {offer.nvlink for offer in from_runpod() if offer.gpu_count > 1} == {False}


def test_runpod_sxm_boards_have_nvlink() -> None:
    changes = {"id": "NVIDIA H100 80GB HBM3", "displayName": "H100 SXM", "memoryInGb": 80}
    pairs = [offer for offer in from_runpod(**changes) if offer.gpu_count == 2]
    assert {(offer.gpu, offer.nvlink) for offer in pairs} == {("H100-SXM", True)}


def test_runpod_pcie_boards_may_or_may_not_have_nvlink() -> None:
    changes = {"id": "NVIDIA A100 80GB PCIe", "displayName": "A100 PCIe", "memoryInGb": 80}
    pairs = [offer for offer in from_runpod(**changes) if offer.gpu_count == 2]
    assert {(offer.gpu, offer.nvlink) for offer in pairs} == {("A100-80GB-PCIe", None)}


def test_a_slice_of_a_gpu_is_not_the_gpu() -> None:
    changes = {"id": "NVIDIA B300 MIG 1g.24gb", "displayName": "B300 MIG", "memoryInGb": 24}
    assert {offer.gpu for offer in from_runpod(**changes)} == {"NVIDIA B300 MIG 1g.24gb"}


def test_lambda_prices_are_cents_for_the_instance() -> None:
    (offer,) = from_lambda(lambda_type())
    assert offer.price == Money.parse("1.60")
    assert offer.price_per_gpu == Money.parse("0.80")


def test_lambda_lists_each_region_with_capacity() -> None:
    entry = lambda_type()
    entry["regions_with_capacity_available"] = [{"name": "us-east-1"}, {"name": "us-west-2"}]
    assert [(o.region, o.availability) for o in from_lambda(entry)] == [
        ("us-east-1", 1),
        ("us-west-2", 1),
    ]


def test_lambda_without_a_region_is_sold_out() -> None:
    entry = lambda_type()
    entry["regions_with_capacity_available"] = []
    assert [(o.region, o.availability) for o in from_lambda(entry)] == [(None, 0)]


@pytest.mark.parametrize(
    ("name", "description", "gpu", "nvlink"),
    [
        ("gpu_8x_a100_80gb_sxm4", "A100 (80 GB SXM4)", "A100-80GB-SXM", True),
        ("gpu_8x_a100_80gb_sxm4", None, "A100-80GB-SXM", True),
        ("gpu_8x_a100", None, "A100", None),
        ("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", "H100-SXM", True),
        ("gpu_2x_a6000", "A6000 (48 GB)", "A6000", None),
    ],
)
def test_lambda_types_name_their_gpu(
    name: str, description: str | None, gpu: str, nvlink: bool | None
) -> None:
    (offer,) = from_lambda(lambda_type(name, gpu_description=description))
    assert (offer.gpu, offer.nvlink) == (gpu, nvlink)


def test_lambda_machines_without_a_gpu_are_no_offers() -> None:
    assert from_lambda(lambda_type(specs={"vcpus": 4, "gpus": 0})) == []
