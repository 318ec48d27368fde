"""The vendor survey: shortlists, the rule, and the document."""

from __future__ import annotations

from typing import Any

import pytest

from offer_builder import offer
from outlay.errors import Finding
from outlay.prices.offer import Offer, Snapshot, Tier
from outlay.prices.survey import Placeholder, Rule, Survey, as_markdown, justification, survey
from outlay.units import Money

NOW = 1_790_000_000_000_000_000


def pair(price: str, **changes: Any) -> Offer:
    """Two RTX 4090 in one machine, on spot."""
    fields: dict[str, Any] = {
        "gpu": "RTX4090",
        "gpu_count": 2,
        "tier": Tier.SPOT,
        "provider": "vast",
        "source": "vast",
        "fetched_ns": NOW,
        "nvlink": False,
    }
    return offer(price, **(fields | changes))


def of_vast(*offers: Offer, **options: Any) -> Survey:
    snapshot = Snapshot(source="vast", fetched_ns=NOW, offers=offers)
    return survey([snapshot], gpus=2, taken_ns=NOW, **options)


def test_the_cheapest_spot_with_nvlink_is_picked_though_others_are_cheaper() -> None:
    joined = pair("0.60", nvlink=True, gpu="RTX3090")
    result = of_vast(pair("0.40"), joined, pair("0.90", nvlink=True, gpu="RTX3090"))
    assert (result.rule, result.pick) == (Rule.NVLINK, joined)


@pytest.mark.parametrize("nvlink", [False, None])
def test_without_nvlink_the_cheapest_spot_in_one_node_is_picked(nvlink: bool | None) -> None:
    cheapest = pair("0.40", nvlink=nvlink)
    result = of_vast(pair("0.50", nvlink=nvlink), cheapest)
    assert (result.rule, result.pick) == (Rule.SINGLE_NODE, cheapest)


def test_single_gpus_are_not_a_pair() -> None:
    result = of_vast(pair("0.10", gpu_count=1), pair("0.40"), pair("0.30", gpu_count=4))
    assert result.pick == pair("0.40")


def test_what_is_sold_out_is_not_picked() -> None:
    assert of_vast(pair("0.10", availability=0), pair("0.40")).pick == pair("0.40")


def test_on_demand_is_not_spot() -> None:
    assert of_vast(pair("0.10", tier=Tier.ON_DEMAND), pair("0.40")).pick == pair("0.40")


def test_cards_for_data_centres_are_not_surveyed_unless_asked_for() -> None:
    a100 = pair("0.10", gpu="A100-80GB")
    assert of_vast(a100, pair("0.40")).pick == pair("0.40")
    assert of_vast(a100, pair("0.40"), only=["A100"]).pick == a100


@pytest.mark.parametrize("vendor", ["runpod", "vast"])
def test_runpod_and_vast_are_compared_on_spot_with_consumer_cards(vendor: str) -> None:
    offers = tuple(
        pair("1", gpu=gpu, tier=tier, provider=vendor, source=vendor)
        for gpu in ("RTX4090", "RTX6000Ada", "A100-80GB")
        for tier in (Tier.SPOT, Tier.ON_DEMAND)
    )
    snapshot = Snapshot(source=vendor, fetched_ns=NOW, offers=offers)
    (row,) = survey([snapshot], gpus=2, taken_ns=NOW).rows
    assert {(one.gpu, one.tier) for one in row.offers} == {
        ("RTX4090", Tier.SPOT),
        ("RTX6000Ada", Tier.SPOT),
    }


def test_lambda_is_compared_on_demand_with_its_usual_machines() -> None:
    offers = tuple(
        pair("2", gpu=gpu, tier=Tier.ON_DEMAND, provider="lambda", source="lambda")
        for gpu in ("A6000", "A100-40GB", "H100")
    )
    result = survey(
        [Snapshot(source="lambda", fetched_ns=NOW, offers=offers)], gpus=2, taken_ns=NOW
    )
    assert {one.gpu for one in result.rows[0].offers} == {"A6000", "A100-40GB"}
    assert result.rule is Rule.NO_SPOT
    assert justification(result).endswith("so this is the cheapest on demand.")


def test_without_a_matching_offer_there_is_a_placeholder() -> None:
    result = of_vast()
    assert (result.rule, result.pick) == (Rule.PLACEHOLDER, None)
    assert result.placeholder == Placeholder(gpus=2)


def test_the_placeholder_is_seventy_cents_an_hour_and_three_dollars_in_all() -> None:
    plan = Placeholder(gpus=2)
    assert plan.per_hour == Money.parse("0.70")
    assert plan.cost == Money.parse("2.10")
    assert plan.ceiling == Money.parse("3.00")


def full_survey() -> Survey:
    vast = Snapshot(
        source="vast",
        fetched_ns=NOW,
        offers=(
            pair("0.60", nvlink=True, gpu="RTX3090", memory_gb=24, bandwidth_mbps=808, region="NO"),
        ),
    )
    runpod = Snapshot(
        source="runpod",
        fetched_ns=NOW,
        offers=(pair("0.45", provider="runpod", source="runpod", community=True),),
        findings=(Finding(source="runpod", message="row 3: a price | of words"),),
    )
    refused = Finding(source="lambda", message="not loaded: it requires a key")
    failed = Snapshot(source="lambda", fetched_ns=NOW, findings=(refused,), failed=True)
    return survey([runpod, failed, vast], gpus=2, taken_ns=NOW)


def test_the_document_compares_the_vendors() -> None:
    text = as_markdown(full_survey())
    assert (
        "| vast | 2x RTX3090 spot | 0.30 USD | 0.60 USD | 24 GB | 808 Mbit/s down | yes | NO "
        "| vast, 2026-09-21 14:13:20Z |"
    ) in text
    assert "| runpod | 2x RTX4090 community spot | 0.225 USD | 0.45 USD | not known |" in text


def test_the_document_does_not_show_a_failure_as_no_offers() -> None:
    text = as_markdown(full_survey())
    assert "| lambda | not loaded: it requires a key |" in text
    assert "loaded; no matching offer" not in text


def test_the_document_shows_a_vendor_without_offers() -> None:
    assert "| vast | loaded; no matching offer is available now |" in as_markdown(of_vast())


def test_the_document_is_dated_and_lists_what_is_wrong() -> None:
    text = as_markdown(full_survey())
    assert "Snapshot of 2026-09-21 14:13:20Z" in text
    assert "- runpod: row 3: a price \\| of words" in text


def test_the_pick_is_justified_from_the_table_in_one_paragraph() -> None:
    paragraph = justification(full_survey())
    assert "\n" not in paragraph
    assert "**vast: 2x RTX3090 spot** at 0.30 USD per GPU-hour" in paragraph
    assert "Of 2 spot offers with 2 GPUs in one machine, 1 has NVLink" in paragraph
    assert (
        "The cheapest at runpod is 2x RTX4090 community spot at 0.225 USD per GPU-hour "
        "(-25 %, without NVLink)."
    ) in paragraph


def test_a_pick_without_nvlink_says_so() -> None:
    assert "None of 1 spot offer is known to have NVLink" in justification(of_vast(pair("0.40")))


def test_the_placeholder_is_called_an_assumption() -> None:
    paragraph = justification(of_vast())
    assert "Assumption, not a price" in paragraph
    assert "2x a consumer GPU at 0.35 USD per GPU-hour = 0.70 USD per hour" in paragraph
    assert "At most 3 hours = 2.10 USD. Ceiling: 3.00 USD, with a buffer of 40 %" in paragraph
