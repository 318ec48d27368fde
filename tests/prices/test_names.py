"""Price names: grammar, lookup and errors."""

from __future__ import annotations

from typing import Any

import pytest

from offer_builder import offer
from outlay.errors import InvalidValue
from outlay.ledger import Price
from outlay.ledger.price import handed_on, is_price_name, typed_price
from outlay.prices.names import (
    Machine,
    PriceName,
    PriceUnknown,
    Quote,
    look_up,
    look_up_automatic,
    parse_name,
)
from outlay.prices.offer import Tier

DAY_NS = 24 * 3600 * 10**9


def quote(price: object = "2.00", **changes: Any) -> Quote:
    return Quote.of(offer(price, **{"provider": "lambda", "source": "lambda"} | changes))


def found(text: str, *quotes: Quote, ids: tuple[str, ...] = ()) -> Quote:
    return look_up(parse_name(text, name="price"), quotes, name="price", ids=ids)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("lambda:H100", {"gpu": "H100"}),
        ("lambda:8xH100", {"gpu": "H100", "gpus": 8}),
        ("lambda:8 X h100", {"gpu": "h100", "gpus": 8}),
        ("lambda:8xH100:spot", {"gpu": "H100", "gpus": 8, "tier": Tier.SPOT}),
        ("lambda:H100:Reserved", {"gpu": "H100", "tier": Tier.RESERVED}),
        ("lambda:H100:community", {"gpu": "H100", "community": True}),
        ("lambda:H100:us-west-1", {"gpu": "H100", "region": "us-west-1"}),
        (
            "lambda:H100:spot:us-west-1",
            {"gpu": "H100", "tier": Tier.SPOT, "region": "us-west-1"},
        ),
    ],
)
def test_a_name_is_read_part_by_part(text: str, fields: dict[str, Any]) -> None:
    assert parse_name(text, name="price") == PriceName(text=text, provider="lambda", **fields)


@pytest.mark.parametrize(
    "text",
    [
        ":H100", "lambda:", "lambda::spot", "lambda:H100:", "lambda:0xH100", "lambda:8x",
        "lambda:9999999xH100", "lambda:H100:cheap:us-west-1", "lambda:H100:spot:us:west", ":",
    ],
)  # fmt: skip
def test_an_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"^price: got "):
        parse_name(text, name="price")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("lambda:8xH100", True), ("auto", True), (" AUTO showback", True), ("1.50 USD/h", False),
        ("$1.50/h cash", False), (1.5, False), (None, False), ('{"micros_per_hour":1}', False),
    ],
)  # fmt: skip
def test_a_name_is_distinguished_from_a_typed_price(value: object, named: bool) -> None:
    assert is_price_name(value) is named


def test_the_price_per_gpu_of_the_named_offer_is_found() -> None:
    eight = quote("23.92", gpu_count=8)
    assert found("lambda:8xH100", quote("3.29"), eight) == eight
    assert eight.price().micros_per_hour == 2_990_000


@pytest.mark.parametrize("text", ["runpod:A100-80", "RunPod:a100 80gb", "runpod:A100-SXM4-80GB"])
def test_a_gpu_is_found_in_any_spelling(text: str) -> None:
    large = quote(provider="runpod", gpu="A100-80GB")
    small = quote("1.00", provider="runpod", gpu="A100-40GB")
    assert found(text, small, large) == large


def test_a_gpu_may_be_named_by_the_vendors_own_id() -> None:
    card = quote("2.49", offer_id="gpu_1x_h100_pcie")
    assert found("lambda:GPU_1x_h100_pcie", quote("3.29", offer_id="other"), card) == card


def test_a_family_of_several_prices_is_refused_with_their_range() -> None:
    cards = [quote("1.20", gpu="A100-40GB"), quote("1.60", gpu="A100-80GB")]
    with pytest.raises(PriceUnknown, match=r"one price; .*1\.20 USD/h to 1\.60 USD/h") as caught:
        found("lambda:A100", *cards)
    assert "lambda:1xA100-80GB:on-demand at 1.60 USD/h" in str(caught.value)


def test_offers_of_one_name_are_distinguished_by_their_ids() -> None:
    cards = [quote("2.49", offer_id="gpu_1x_h100_pcie"), quote("3.29", offer_id="gpu_1x_h100_sxm5")]
    with pytest.raises(PriceUnknown, match=r"lambda:gpu_1x_h100_pcie at 2\.49 USD/h"):
        found("lambda:1xH100", *cards)


def test_a_region_decides_where_prices_differ() -> None:
    east, west = quote("3", region="us-east-1"), quote("2", region="us-west-1")
    assert found("lambda:H100:us-east-1", east, west) == east
    with pytest.raises(PriceUnknown, match="us-east-1"):
        found("lambda:H100", east, west)


def test_the_region_is_optional_if_every_region_has_one_price() -> None:
    assert found("lambda:H100", quote(region="a"), quote(region="b")).micros_per_hour == 2_000_000


def test_the_latest_snapshot_wins() -> None:
    old = quote("2", source="gpuhunt:lambdalabs", fetched_ns=1)
    new = quote("3", source="lambda", fetched_ns=2)
    assert found("lambda:H100", old, new) == new


def test_community_machines_match_only_a_community_tier() -> None:
    secure = quote("0.69", provider="runpod")
    private = quote("0.34", provider="runpod", community=True)
    assert found("runpod:H100", secure, private) == secure
    assert found("runpod:H100:community", secure, private) == private


def test_an_unknown_price_lists_what_is_known_closest_first() -> None:
    known = [quote(gpu="H200"), quote(gpu="A10"), quote(gpu="GH200-96GB"), quote(gpu="RTX4090")]
    with pytest.raises(PriceUnknown) as caught:
        found("lambda:1xH100", *known)
    said = str(caught.value)
    assert said.startswith("price: got 'lambda:1xH100'; expected a known price: ")
    assert said.index("1xH200") < said.index("RTX4090")
    assert "outlay prices fetch" in said


def test_without_any_prices_the_error_says_how_to_fetch_them() -> None:
    with pytest.raises(PriceUnknown, match="there is none on this machine: `outlay prices fetch`"):
        found("lambda:H100")


VAST = [
    quote("0.40", provider="vast", gpu="RTX3090", gpu_count=2, community=True, offer_id="7001"),
    quote("0.60", provider="vast", gpu="RTX3090", gpu_count=2, community=True, offer_id="7002"),
]


def test_a_market_is_refused_with_the_range_of_its_prices() -> None:
    with pytest.raises(PriceUnknown, match=r"market.*0\.20 USD/h to 0\.30 USD/h.*vast:7001"):
        found("vast:RTX3090", *VAST)


def test_a_market_of_one_offer_is_refused_all_the_same() -> None:
    with pytest.raises(PriceUnknown, match="no instance id is set"):
        found("vast:RTX3090", VAST[0])


def test_on_a_market_the_instance_id_selects_the_offer() -> None:
    assert found("vast:RTX3090", *VAST, ids=("7002",)) == VAST[1]


def test_an_instance_that_is_not_on_the_market_is_refused() -> None:
    with pytest.raises(PriceUnknown, match="instance 9 is none of them"):
        found("vast:RTX3090", *VAST, ids=("9",))


def test_on_a_market_an_offer_may_be_named_by_its_id() -> None:
    assert found("vast:7001", *VAST) == VAST[0]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RUNPOD_POD_ID": "abc"}, Machine(provider="runpod", ids=frozenset({"abc"}))),
        ({"VAST_CONTAINERLABEL": "C.7001"}, Machine(provider="vast", ids=frozenset({"7001"}))),
        (
            {"VAST_CONTAINERLABEL": "C.7001", "CONTAINER_ID": "7001"},
            Machine(provider="vast", ids=frozenset({"7001"})),
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_PARTITION": "gpu"}, Machine(partition="gpu")),
        ({"SLURM_JOB_PARTITION": "gpu"}, Machine()),
        ({}, Machine()),
    ],
)
def test_a_machine_is_recognised_by_its_environment(
    environ: dict[str, str], expected: Machine
) -> None:
    assert Machine.of(environ) == expected


def test_auto_is_the_offer_of_the_current_machine() -> None:
    one, four = quote("0.69", provider="runpod"), quote("2", provider="runpod", gpu_count=4)
    machine = Machine(provider="runpod", gpu="NVIDIA H100 80GB HBM3", gpus=4)
    assert look_up_automatic(machine, [one, four], {}, name="price") == four


def test_auto_with_some_of_the_gpus_visible_needs_one_price_per_gpu() -> None:
    sizes = [quote(n, provider="runpod", gpu_count=n) for n in (1, 2)]
    machine = Machine(provider="runpod", gpu="H100", gpus=3)
    assert look_up_automatic(machine, sizes, {}, name="price") == sizes[0]
    dearer = quote("9", provider="runpod", gpu_count=4)
    with pytest.raises(PriceUnknown, match="one price"):
        look_up_automatic(machine, [*sizes, dearer], {}, name="price")


def test_auto_in_a_slurm_job_is_the_rate_of_its_partition() -> None:
    rate = Price(1_200_000, kind="showback", source="rate of gpu")
    assert look_up_automatic(Machine(partition="gpu"), [], {"gpu": rate}, name="price") == rate


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Machine(), "no known provider"),
        (Machine(gpu="NVIDIA H100", gpus=8), "8 x NVIDIA H100"),
        (Machine(partition="gpu"), "outlay prices partition set gpu"),
        (Machine(provider="runpod"), "use runpod:COUNTxGPU"),
        (Machine(provider="runpod", gpu="B200"), "lambda:1xH100:on-demand"),
    ],
)
def test_auto_on_an_unidentified_machine_is_an_error_that_lists_the_choices(
    machine: Machine, said: str
) -> None:
    with pytest.raises(PriceUnknown) as caught:
        look_up_automatic(machine, [quote()], {}, name="price")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "cash"), ({"tier": Tier.RESERVED}, "showback"), ({"provider": "own"}, "showback")],
)
def test_what_is_owned_or_reserved_is_showback(changes: dict[str, Any], kind: str) -> None:
    assert quote(**changes).price().kind == kind
    assert quote(**changes).price("cash").kind == "cash"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("1.20 USD/h", "cash"), ("1.20 USD/h showback", "showback"), ("$1.20/h  CASH", "cash")],
)
def test_a_typed_price_may_state_its_kind(text: str, kind: str) -> None:
    price = typed_price(text, name="price", source="argument")
    assert (price.micros_per_hour, price.kind) == (1_200_000, kind)


@pytest.mark.parametrize(
    "price",
    [
        Price(1_500_000, source="environment"),
        Price(1_500_000, "EUR", "environment", "showback"),
        quote(offer_id="x", fetched_ns=5).price("showback"),
    ],
)
def test_a_price_survives_its_environment_variable(price: Price) -> None:
    assert typed_price(handed_on(price), name="OUTLAY_PRICE", source="environment") == price


@pytest.mark.parametrize(
    "text", ["{", '{"micros_per_hour":-1}', '{"micros_per_hour":1,"kind":"gift"}', '{"x":1}']
)
def test_a_damaged_price_in_the_environment_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="OUTLAY_PRICE: got"):
        typed_price(text, name="OUTLAY_PRICE", source="environment")


def test_an_offer_is_old_after_a_day_and_a_typed_price_never() -> None:
    price = quote(fetched_ns=DAY_NS).price()
    assert price.age_warning(2 * DAY_NS) is None
    assert "lambda:1xH100:on-demand" in str(price.age_warning(2 * DAY_NS + 1))
    assert Price(1).age_warning(10 * DAY_NS) is None
