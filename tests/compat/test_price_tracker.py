"""GPUPriceTracker and its documented values, also after a restart."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from fake_vendor import Answer, as_json, serving
from offer_builder import offer
from outlay.clock import ManualClock, utc_datetime
from outlay.compat.cost_module.gpu_price import GPUPrice, PriceAlert, PriceHistory
from outlay.compat.cost_module.tracker import GPUPriceTracker
from outlay.errors import InvalidValue
from outlay.prices.offer import Snapshot
from outlay.prices.price_book import PriceBook
from outlay.prices.sources.http import VendorSource
from outlay.prices.sources.vendors import VAST
from outlay.store import open_store
from vendor_shapes import vast_answer, vast_offer

HOUR = timedelta(hours=1)
CLOCK = ManualClock()
NOW = utc_datetime(CLOCK.wall_ns())


def tracker(data_dir: Path | None = None, **options: Any) -> GPUPriceTracker:
    """A new tracker, as after a restart."""
    return GPUPriceTracker(data_dir, clock=CLOCK, **options)


def seen(price: float, *, hours_ago: float = 0, gpu: str = "RTX 4090", **more: Any) -> GPUPrice:
    return GPUPrice(gpu, "vast.ai", price, timestamp=NOW - hours_ago * HOUR, **more)


def track(*prices: GPUPrice) -> list[str | None]:
    """Track prices, each in a process of its own, and return the alerts they raise."""
    raised = [tracker().track_price(price) for price in prices]
    return [None if alert is None else alert.alert_type for alert in raised]


def test_the_documented_names_are_importable_from_outlay() -> None:
    for name in ("GPUPriceTracker", "GPUPrice", "PriceHistory", "PriceAlert"):
        assert getattr(outlay, name).__name__ == name


def test_a_price_is_built_from_its_documented_fields_in_order() -> None:
    price = GPUPrice("A100", "vast.ai", 1.5, 3, "12.4", 80, "i-1", "eu", NOW)
    assert (price.gpu_name, price.provider, price.price_per_hour) == ("A100", "vast.ai", 1.5)
    assert (price.availability, price.cuda_version, price.vram_gb) == (3, "12.4", 80)
    assert (price.instance_id, price.region, price.timestamp) == ("i-1", "eu", NOW)


def test_a_price_needs_three_fields_and_is_of_now() -> None:
    price = GPUPrice("A100", "vast.ai", 1.5)
    assert (price.availability, price.cuda_version, price.vram_gb) == (0, None, None)
    assert abs(price.timestamp - datetime.now(UTC)) < HOUR  # noqa: TID251  (what is tested)


def test_a_price_becomes_plain_values_and_back() -> None:
    price = GPUPrice("A100", "vast.ai", 1.5, 3, "12.4", 80, "i-1", "eu", NOW, tier="spot")
    assert price.to_dict()["timestamp"] == NOW.isoformat()
    assert GPUPrice.from_dict(price.to_dict()) == price


def test_a_time_without_a_zone_is_utc() -> None:
    values = seen(1.0).to_dict() | {"timestamp": "2026-01-01T00:00:00"}
    assert GPUPrice.from_dict(values).timestamp == datetime(2026, 1, 1, tzinfo=UTC)


@given(
    st.floats(min_value=1e-3, max_value=1e5),
    st.text(min_size=1, max_size=9),
    st.sampled_from(["on-demand", "spot", "reserved"]),
)
def test_a_price_survives_being_an_offer(price: float, gpu: str, tier: str) -> None:
    given = GPUPrice(gpu, "p", price, 2, "12", 24, "i", "eu", NOW, tier=tier)
    assert GPUPrice.from_offer(given.to_offer()) == given


@pytest.mark.parametrize("price", [0, 0.0, -1.0, float("nan"), float("inf"), "cheap", True])
def test_an_invalid_price_is_refused_before_anything_is_written(price: Any) -> None:
    with pytest.raises(InvalidValue, match="price_per_hour"):
        tracker().track_price(seen(price))
    assert tracker().histories == {}


def test_a_price_is_tracked_by_either_name() -> None:
    tracker().track_price(price=seen(1.0))
    tracker().track_price(gpu_price=seen(2.0, gpu="H100"))
    assert {gpu for gpu, _ in tracker().histories} == {"RTX 4090", "H100"}
    with pytest.raises(InvalidValue, match="a GPUPrice"):
        tracker().track_price()


def test_an_invalid_tier_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"tier.*on-demand, reserved, spot"):
        tracker().track_price(seen(1.0, tier="cheap"))


def test_a_drop_and_a_surge_are_noticed_across_restarts() -> None:
    assert track(
        seen(1.0, hours_ago=3), seen(0.5, hours_ago=2), seen(0.55, hours_ago=1), seen(0.9)
    ) == [None, "drop", None, "surge"]


def test_a_historic_low_is_noticed() -> None:
    assert track(seen(1.0, hours_ago=2), seen(1.05, hours_ago=1), seen(0.97)) == [None, None, "low"]


def test_offers_of_one_fetch_are_not_price_changes() -> None:
    before = seen(0.3, hours_ago=1)
    assert track(before, seen(0.3), seen(0.4), seen(0.55)) == [None] * 4
    assert tracker().get_alerts() == []


def test_only_the_cheapest_of_a_fetch_raises_its_alert() -> None:
    before = seen(1.0, hours_ago=1)
    assert track(before, seen(0.3), seen(0.4), seen(0.55)) == [None, "drop", None, None]
    assert len(tracker().get_alerts()) == 1


def test_the_cheapest_of_one_fetch_is_the_price() -> None:
    track(seen(0.3), seen(0.4), seen(0.55))
    found = tracker().get_cheapest_gpu()
    assert found is not None
    assert found.price.price_per_hour == 0.3


@pytest.mark.parametrize(
    "other",
    [{"region": "eu"}, {"instance_id": "b"}, {"tier": "spot"}],
    ids=lambda each: next(iter(each)),
)
def test_another_offer_is_no_surge_and_the_cheapest_stays_the_cheapest(
    other: dict[str, Any],
) -> None:
    first: dict[str, Any] = {"region": "us", "instance_id": "a"}
    assert track(seen(1.0, hours_ago=2, **first), seen(3.0, hours_ago=1, **(first | other))) == [
        None,
        None,
    ]
    found = tracker().get_cheapest_gpu()
    assert found is not None
    assert found.price.price_per_hour == 1.0
    assert tracker().current_prices["RTX 4090", "vast.ai"] == 1.0
    assert tracker().get_price_statistics()["current_prices"] == {"vast.ai:RTX 4090": 1.0}


def test_an_instance_is_compared_with_itself() -> None:
    cheap: dict[str, Any] = {"instance_id": "a"}
    dear: dict[str, Any] = {"instance_id": "b"}
    raised = track(
        seen(1.0, hours_ago=3, **cheap), seen(3.0, hours_ago=2, **dear),
        seen(1.5, hours_ago=1, **cheap), seen(2.0, **dear),
    )  # fmt: skip
    assert raised == [None, None, "surge", "drop"]
    assert tracker().current_prices["RTX 4090", "vast.ai"] == 1.5


def test_an_offer_not_seen_for_a_day_is_not_valid() -> None:
    track(seen(1.0, hours_ago=25, instance_id="gone"), seen(3.0, instance_id="here"))
    assert tracker().current_prices["RTX 4090", "vast.ai"] == 3.0
    assert tracker().get_price_statistics()["current_prices"] == {"vast.ai:RTX 4090": 3.0}


def test_an_alert_has_its_documented_fields_and_a_message() -> None:
    track(seen(1.0, hours_ago=1))
    alert = tracker().track_price(seen(0.5))
    assert alert is not None
    assert (alert.gpu_name, alert.provider, alert.alert_type) == ("RTX 4090", "vast.ai", "drop")
    assert (alert.current_price, alert.previous_price) == (0.5, 1.0)
    assert (alert.change_percent, alert.timestamp) == (-50.0, NOW)
    assert alert.message == (
        "Price drop: RTX 4090 at vast.ai is $0.5000/h, was $1.0000/h (-50.0 %)"
    )


def test_an_alert_is_built_from_its_documented_fields_in_order() -> None:
    alert = PriceAlert("A100", "p", "surge", 2.0, 1.0, 100.0, NOW, "hello")
    assert (alert.alert_type, alert.change_percent, alert.message) == ("surge", 100.0, "hello")


def test_alerts_are_kept_for_as_long_as_asked() -> None:
    track(seen(2.0, hours_ago=50), seen(1.0, hours_ago=30), seen(0.5, hours_ago=1))
    assert [alert.current_price for alert in tracker().get_alerts()] == [0.5]
    assert [alert.current_price for alert in tracker().get_alerts(hours=48)] == [1.0, 0.5]
    assert len(tracker().alerts) == 2


def test_alert_limits_can_be_set() -> None:
    careful = tracker(drop_percent=1)
    careful.track_price(seen(1.0, hours_ago=1))
    assert careful.track_price(seen(0.98)) is not None


def test_data_dir_comes_first_and_keeps_prices_apart(tmp_path: Path) -> None:
    GPUPriceTracker(tmp_path, clock=CLOCK).track_price(seen(1.0))
    assert tracker(tmp_path).get_cheapest_gpu() is not None
    assert tracker().get_cheapest_gpu() is None


def test_the_cheapest_is_found_by_part_of_its_name() -> None:
    track(seen(0.4), seen(1.5, gpu="NVIDIA A100"), seen(0.9, gpu="a100 pcie"))
    found = tracker().get_cheapest_gpu("A100")
    assert found is not None
    price, average = found
    assert (price.gpu_name, average) == ("a100 pcie", 0.9)


def test_the_cheapest_of_nothing_is_none() -> None:
    assert tracker().get_cheapest_gpu() is None
    track(seen(0.4))
    assert tracker().get_cheapest_gpu("H100") is None


def test_the_cheapest_comes_with_its_average_of_24_hours() -> None:
    track(seen(9.0, hours_ago=30), seen(0.6, hours_ago=2), seen(0.4))
    found = tracker().get_cheapest_gpu()
    assert found is not None
    assert found.average_24h == pytest.approx(0.5)


def test_a_price_of_exactly_a_day_ago_is_not_of_the_last_24_hours() -> None:
    track(seen(9.0, hours_ago=24), seen(0.4))
    found = tracker().get_cheapest_gpu()
    assert found is not None
    assert found.average_24h == 0.4
    averages = tracker().get_price_statistics()["average_prices_24h"]
    assert averages == {"vast.ai:RTX 4090": 0.4}


def test_24_hours_without_a_price_have_no_average() -> None:
    track(seen(0.6, hours_ago=72))
    found = tracker().get_cheapest_gpu()
    assert found is not None
    assert (found.price.price_per_hour, found.average_24h) == (0.6, None)
    ((_, reason),) = tracker().get_price_recommendations()
    assert reason == f"Last seen {NOW - 72 * HOUR:%Y-%m-%d}, not in the last 24h"


def test_a_tier_that_is_tracked_neither_replaces_another_nor_makes_a_trend_of_it() -> None:
    track(seen(2.0, hours_ago=3), replace(seen(0.95, hours_ago=2), tier="spot"))
    found = tracker().get_price_recommendations()
    assert [(price.tier, price.price_per_hour) for price, _ in found] == [
        ("spot", 0.95), ("on-demand", 2.0)
    ]  # fmt: skip
    figures = tracker().get_price_statistics()
    assert figures["current_prices"] == {"vast.ai:RTX 4090": 0.95}
    assert figures["price_trends_24h"] == {"vast.ai:RTX 4090": 0.0}


@pytest.mark.parametrize(
    ("earlier", "now", "reason"),
    [
        ([1.0, 1.0], 0.95, "Near 24h low ($0.9500)"),
        ([0.5, 2.0, 2.0], 0.9, "Below 24h average ($1.3500)"),
        ([0.5, 0.6], 0.6, "Within price range"),
    ],
)
def test_recommendations_give_their_reason(earlier: list[float], now: float, reason: str) -> None:
    track(*(seen(price, hours_ago=9 - n) for n, price in enumerate(earlier)), seen(now))
    (found,) = tracker().get_price_recommendations("RTX", 3.0)
    assert found.reason == reason


def test_recommendations_are_sorted_and_within_the_price() -> None:
    track(seen(0.9, gpu="B"), seen(0.4, gpu="A"), seen(5.0, gpu="C"), seen(1.0, gpu="D"))
    found = tracker().get_price_recommendations("", 1.0)
    assert [price.price_per_hour for price, _ in found] == [0.4, 0.9, 1.0]


def test_statistics_have_their_documented_keys_after_a_restart() -> None:
    track(seen(1.0, hours_ago=3), seen(0.5), seen(2.0, gpu="H100", hours_ago=99))
    assert tracker().get_price_statistics() == {
        "total_tracked": 2,
        "gpus_by_type": {"H100": ["vast.ai"], "RTX 4090": ["vast.ai"]},
        "current_prices": {"vast.ai:H100": 2.0, "vast.ai:RTX 4090": 0.5},
        "average_prices_24h": {"vast.ai:RTX 4090": 0.75},
        "price_trends_24h": {"vast.ai:RTX 4090": -50.0},
    }


def test_figures_in_dollars_leave_other_currencies_out(tmp_path: Path) -> None:
    euros = [
        offer(price, fetched_ns=CLOCK.wall_ns() - n) for n, price in ((9, "1 EUR"), (1, "2 EUR"))
    ]
    looks = [Snapshot(source="test", fetched_ns=one.fetched_ns, offers=(one,)) for one in euros]
    PriceBook(open_store(tmp_path)).record(looks)
    tracking = tracker(tmp_path)
    assert tracking.get_cheapest_gpu() is None
    assert tracking.get_price_statistics()["total_tracked"] == 0
    assert (tracking.histories, tracking.alerts) == ({}, [])


def test_statistics_of_nothing_are_empty() -> None:
    assert tracker().get_price_statistics()["total_tracked"] == 0


def test_histories_and_current_prices_are_kept_by_gpu_and_provider() -> None:
    track(seen(1.0, hours_ago=3), seen(0.5))
    history = tracker().histories["RTX 4090", "vast.ai"]
    assert history.prices == [(NOW - 3 * HOUR, 1.0), (NOW, 0.5)]
    current = tracker().current_prices["RTX 4090", "vast.ai"]
    assert current.price_per_hour == 0.5


def fetched(*answers: Answer) -> tuple[GPUPriceTracker, list[GPUPrice]]:
    with serving(*answers) as vendor:
        source = VendorSource(VAST, base_url=vendor.url, clock=CLOCK)
        asking = tracker(vast=source)
        return asking, asking.fetch_vastai_prices()


def test_fetched_prices_are_per_gpu_and_cheapest_first() -> None:
    _, prices = fetched(as_json(vast_answer(vast_offer(), vast_offer(id=2, min_bid=0.1))))
    assert [price.price_per_hour for price in prices] == [0.055, 0.105, 0.2, 0.2]
    assert prices[0].tier == "spot"
    assert {price.timestamp for price in prices} == {NOW}


def test_tracking_a_fetch_raises_no_alert_about_itself() -> None:
    offers = [vast_offer(id=n, dph_total=0.4 + n, min_bid=0.2 + n) for n in range(3)]
    asking, prices = fetched(as_json(vast_answer(*offers)))
    assert [asking.track_price(price) for price in prices] == [None] * 6


def test_an_unreachable_vast_is_an_empty_list_with_a_finding_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="outlay")
    asking, prices = fetched(Answer(status=404))
    assert prices == []
    assert "HTTP 404" in str(asking.findings[0])
    assert "HTTP 404" in caplog.text


def test_a_history_is_built_from_its_documented_fields_in_order() -> None:
    history = PriceHistory("A100", "p", [(NOW, 1.0)], clock=CLOCK)
    history.add_price(2.0)
    history.add_price(9.0, NOW - 25 * HOUR)
    assert history.prices == [(NOW, 1.0), (NOW, 2.0), (NOW - 25 * HOUR, 9.0)]


def test_history_windows_look_at_the_last_hours_in_order_of_time() -> None:
    history = PriceHistory("A100", "p", clock=CLOCK)
    for hours, price in ((1, 3.0), (3, 1.0), (2, 2.0), (30, 99.0)):
        history.add_price(price, NOW - hours * HOUR)
    assert history.get_average() == 2.0
    assert history.get_min_max() == (1.0, 3.0)
    assert history.get_trend() == 200.0
    assert history.get_average(hours=48) == 26.25


def test_windows_without_a_point_are_zeros_as_documented() -> None:
    history = PriceHistory("A100", "p", clock=CLOCK)
    assert (history.get_average(), history.get_min_max(), history.get_trend()) == (0, (0, 0), 0)


def test_times_of_other_zones_are_the_same_instants() -> None:
    history = PriceHistory("A100", "p", clock=CLOCK)
    history.add_price(1.0, NOW.astimezone(timezone(timedelta(hours=9))))
    assert history.get_average(hours=1) == 1.0
