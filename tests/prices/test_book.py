"""The price book: snapshots, offers at any point in time, price points and alerts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine

from command_line import python
from offer_builder import offer, store_without_prices
from outlay.clock import ManualClock
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertKind, AlertRules
from outlay.prices.catalog import Query
from outlay.prices.gpus import matching_names
from outlay.prices.offer import Offer, Snapshot, Tier, cheapest_first
from outlay.prices.offer_search import search_offers
from outlay.prices.price_book import NothingLoaded, PriceBook, SourceState
from outlay.prices.series import Alert, PricePoint, alerts, current_points, points
from outlay.prices.sources.vendors import parse_vast
from outlay.store import open_store
from outlay.units import Money
from vendor_shapes import vast_answer, vast_offer


@pytest.fixture
def store() -> Engine:
    return open_store()


def look(at_ns: int, *offers: Offer, source: str = "acme", failed: bool = False) -> Snapshot:
    """A snapshot of a source at an instant."""
    stamped = tuple(replace(one, fetched_ns=at_ns, source=source) for one in offers)
    return Snapshot(source=source, fetched_ns=at_ns, offers=stamped, failed=failed)


def record(store: Engine, *snapshots: Snapshot) -> None:
    PriceBook(store).record(snapshots)


def prices(offers: Iterable[Offer]) -> list[str]:
    return sorted(str(one.price) for one in offers)


def test_an_offer_survives_a_round_trip(store: Engine) -> None:
    everything = offer(
        "3.21",
        gpu_count=4,
        tier=Tier.SPOT,
        community=True,
        memory_gb=80,
        nvlink=False,
        interconnect="PCIe 5",
        bandwidth_mbps=10_000,
        region="Norway, NO",
        availability=3,
        storage_price=Money(720_000),
        cuda="12.4",
        offer_id="x-1",
        given="3.2100000001",
    )
    record(store, look(7, everything))
    assert PriceBook(store).offers() == [replace(everything, fetched_ns=7, source="acme")]


def test_a_new_snapshot_replaces_the_one_before_of_its_source(store: Engine) -> None:
    record(store, look(1, offer("1"), offer("2")), look(2, offer("3")))
    assert prices(PriceBook(store).offers()) == ["3.00 USD"]


def test_sources_do_not_replace_each_other(store: Engine) -> None:
    record(store, look(1, offer("1")), look(2, offer("3"), source="bolt"))
    assert prices(PriceBook(store).offers()) == ["1.00 USD", "3.00 USD"]


def test_a_failed_fetch_keeps_the_earlier_offers(store: Engine) -> None:
    record(store, look(1, offer("1")), look(2, failed=True))
    assert prices(PriceBook(store).offers()) == ["1.00 USD"]


def test_an_empty_snapshot_means_that_nothing_is_offered(store: Engine) -> None:
    record(store, look(1, offer("1")), look(2))
    assert PriceBook(store).offers() == []


def test_past_offers_can_be_queried(store: Engine) -> None:
    record(store, look(10, offer("1")), look(20, offer("3")))
    assert prices(PriceBook(store).offers(at_ns=19)) == ["1.00 USD"]
    assert prices(PriceBook(store).offers(at_ns=20)) == ["3.00 USD"]
    assert PriceBook(store).offers(at_ns=9) == []


def price_at(book: PriceBook, gpu: str, at_ns: int, tier: Tier | None = None) -> Offer | None:
    offers = book.offers(at_ns=at_ns, gpu=gpu, tier=tier)
    return min(offers, key=cheapest_first, default=None)


def test_the_price_at_an_instant_is_the_cheapest_per_gpu(store: Engine) -> None:
    record(store, look(1, offer("3"), offer("8", gpu_count=4), offer("1", gpu="RTX4090")))
    found = price_at(PriceBook(store), "H100", 5)
    assert found is not None
    assert found.price_per_gpu == Money.parse("2")


def test_an_unknown_gpu_has_no_price(store: Engine) -> None:
    record(store, look(1, offer()))
    assert price_at(PriceBook(store), "B200", 5) is None


def naive_price_at(
    snapshots: list[Snapshot], gpu: str, at_ns: int, tier: Tier | None
) -> int | None:
    """The cheapest price per GPU by looking through everything."""
    last: dict[str, Snapshot] = {}
    for snapshot in snapshots:
        if snapshot.failed or snapshot.fetched_ns > at_ns:
            continue
        known = last.get(snapshot.source)
        if known is None or snapshot.fetched_ns > known.fetched_ns:
            last[snapshot.source] = snapshot
    return min(
        (
            one.price_per_gpu.micros
            for snapshot in last.values()
            for one in snapshot.offers
            if matching_names(gpu, [one.gpu]) and tier in (None, one.tier)
        ),
        default=None,
    )


some_offers = st.builds(
    offer,
    st.integers(1, 30),
    gpu=st.sampled_from(["H100", "A100-40GB", "A100-80GB"]),
    gpu_count=st.sampled_from([1, 2, 8]),
    tier=st.sampled_from([Tier.SPOT, Tier.ON_DEMAND]),
)
looks = st.lists(
    st.builds(
        lambda source, at_ns, offers, failed: look(
            at_ns, *([] if failed else offers), source=source, failed=failed
        ),
        st.sampled_from(["acme", "bolt"]),
        st.integers(0, 12),
        st.lists(some_offers, max_size=4),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda snapshot: (snapshot.source, snapshot.fetched_ns),
)


instants = st.sets(st.integers(-1, 13), min_size=5, max_size=5)


@settings(max_examples=40, deadline=None)
@given(looks, instants, st.sampled_from(["H100", "A100"]), st.sampled_from([None, Tier.SPOT]))
def test_the_price_at_any_instant_equals_a_naive_scan(
    snapshots: list[Snapshot], instants: set[int], gpu: str, tier: Tier | None
) -> None:
    book = PriceBook(store_without_prices())
    book.record(snapshots)
    for at_ns in instants:
        found = price_at(book, gpu, at_ns, tier)
        micros = None if found is None else found.price_per_gpu.micros
        assert micros == naive_price_at(snapshots, gpu, at_ns, tier)


def test_several_offers_of_one_fetch_are_one_point(store: Engine) -> None:
    record(store, look(1, offer("0.30"), offer("0.40"), offer("0.55")))
    (point,) = points(store)
    assert (str(point.price), point.offers) == ("0.30 USD", 3)


def test_points_are_filtered(store: Engine) -> None:
    record(
        store, look(1, offer("1"), offer("2", gpu="A100-80GB", tier=Tier.SPOT)), look(5, offer())
    )
    assert len(points(store)) == 3
    assert [point.series.gpu for point in points(store, gpu="A100")] == ["A100-80GB"]
    assert [point.at_ns for point in points(store, since_ns=5)] == [5]
    assert [point.series.tier for point in points(store, tier=Tier.SPOT)] == [Tier.SPOT]
    assert points(store, provider="nobody") == []


def test_current_points_are_those_of_the_last_snapshot(store: Engine) -> None:
    record(store, look(1, offer("1"), offer(gpu="A100-80GB")), look(2, offer("3")))
    assert [str(point.price) for point in current_points(store)] == ["3.00 USD"]


def moves(store: Engine, *amounts: str) -> list[AlertKind]:
    """The alerts of a price that takes these values one after the other."""
    record(store, *(look(n, offer(amount)) for n, amount in enumerate(amounts)))
    return [alert.kind for alert in alerts(store)]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("1.00", "0.90", []),
        ("1.00", "0.899999", [AlertKind.DROP]),
        ("1.00", "1.20", []),
        ("1.00", "1.200001", [AlertKind.SURGE]),
        ("0.10", "0.09", []),
        ("3.30", "3.96", []),
        ("1.00", "1.00", []),
    ],
)
def test_ten_percent_down_and_twenty_up_are_not_yet_alerts(
    store: Engine, before: str, after: str, kinds: list[AlertKind]
) -> None:
    assert moves(store, before, after) == kinds


def test_a_historic_low_is_an_alert(store: Engine) -> None:
    assert moves(store, "1.00", "1.05", "0.99") == [AlertKind.LOW]


def test_the_same_low_again_is_no_alert(store: Engine) -> None:
    assert moves(store, "1.00", "1.05", "0.99", "0.99") == [AlertKind.LOW]


def test_one_earlier_price_makes_no_historic_low(store: Engine) -> None:
    assert moves(store, "1.00", "0.99") == []


def test_an_alert_has_both_prices(store: Engine) -> None:
    moves(store, "2.00", "1.50")
    (alert,) = alerts(store)
    assert (str(alert.previous), str(alert.current)) == ("2.00 USD", "1.50 USD")
    assert alert.change_percent == -25.0


def test_an_alert_compares_with_the_cheapest_of_the_snapshot_before(store: Engine) -> None:
    record(store, look(1, offer("0.30"), offer("0.40"), offer("0.55")), look(2, offer("0.31")))
    assert alerts(store) == []


@pytest.mark.parametrize(
    "other",
    [
        offer("9", tier=Tier.SPOT),
        offer("9", community=True),
        offer("9 EUR"),
        offer("9", gpu="B200"),
    ],
    ids=["tier", "community", "currency", "gpu"],
)
def test_only_comparable_offers_are_compared(store: Engine, other: Offer) -> None:
    record(store, look(1, offer("1.00")), look(2, other))
    assert alerts(store) == []


def test_a_price_is_compared_across_a_failed_fetch(store: Engine) -> None:
    record(store, look(1, offer("1.00")), look(2, failed=True), look(3, offer("2.00")))
    assert [alert.kind for alert in alerts(store)] == [AlertKind.SURGE]


def test_two_sources_of_one_provider_are_not_compared(store: Engine) -> None:
    record(store, look(1, offer("1.00")), look(2, offer("2.00"), source="catalog"))
    assert alerts(store) == []


def test_offers_added_to_a_snapshot_correct_its_alert(store: Engine) -> None:
    record(store, look(1, offer("1.00")), look(2, offer("1.50")))
    assert [alert.kind for alert in alerts(store)] == [AlertKind.SURGE]
    record(store, look(2, offer("1.00")))
    assert alerts(store) == []


def test_offers_added_to_a_snapshot_keep_its_cheapest(store: Engine) -> None:
    record(store, look(1, offer("1.00")), look(1, offer("3.00"), offer("2.00")))
    (point,) = points(store)
    assert (str(point.price), point.offers) == ("1.00 USD", 3)


def test_cheaper_than_before_is_not_yet_a_historic_low(store: Engine) -> None:
    assert moves(store, "1.00", "1.05", "1.02") == []


def test_alert_limits_are_configurable(store: Engine) -> None:
    book = PriceBook(store, rules=AlertRules.parse(drop_percent=1, surge_percent="0.5"))
    book.record([look(1, offer("1.00")), look(2, offer("1.006")), look(3, offer("0.99"))])
    assert [alert.kind for alert in alerts(store)] == [AlertKind.SURGE, AlertKind.DROP]


@pytest.mark.parametrize("percent", [0, -1, "ten", float("nan"), True])
def test_alert_limits_must_be_percentages(percent: object) -> None:
    with pytest.raises(InvalidValue, match="drop_percent"):
        AlertRules.parse(drop_percent=percent)


def test_an_alert_is_raised_across_processes() -> None:
    program = """
import sys
from outlay.compat.cost_module.gpu_price import GPUPrice
from outlay.compat.cost_module.tracker import GPUPriceTracker
print(GPUPriceTracker().track_price(GPUPrice("H100", "acme", float(sys.argv[1]))))
"""
    first, second = (python(program, price).out for price in ("2.00", "1.00"))
    assert first == "None\n"
    assert "drop" in second


def test_sources_have_their_load_time_and_failure(store: Engine) -> None:
    finding = Finding(source="bolt", message="not loaded: no connection")
    failed = Snapshot(source="bolt", fetched_ns=9, findings=(finding,), failed=True)
    record(store, look(1, offer(), offer("3")), failed)
    assert PriceBook(store).sources() == [
        SourceState(source="acme", loaded_ns=1, offers=2, quarantined=0, failure=None),
        SourceState(
            source="bolt",
            loaded_ns=None,
            offers=0,
            quarantined=0,
            failure="not loaded: no connection",
        ),
    ]


def test_a_search_without_any_loaded_source_raises(store: Engine) -> None:
    record(store, look(9, source="bolt", failed=True))
    with pytest.raises(NothingLoaded, match="outlay prices fetch"):
        search_offers(store, Query(gpu="H100"))


def test_a_search_without_a_match_is_empty(store: Engine) -> None:
    record(store, look(1, offer()))
    found = search_offers(store, Query(gpu="B200"))
    assert (found.offers, found.searched) == ([], 1)


def test_a_source_that_failed_last_is_a_finding_beside_its_older_prices(store: Engine) -> None:
    finding = Finding(source="acme", message="not loaded: HTTP 500")
    failed = Snapshot(source="acme", fetched_ns=9, findings=(finding,), failed=True)
    record(store, look(1, offer()), failed)
    found = search_offers(store, Query())
    assert len(found.offers) == 1
    assert "showing its older prices" in found.findings[0].message


def test_offers_older_than_the_limit_are_excluded(store: Engine) -> None:
    record(store, look(1, offer()), look(5, offer("3"), source="bolt"))
    assert prices(search_offers(store, Query(), since_ns=5).offers) == ["3.00 USD"]


def test_a_vendors_offers_are_stored_without_loss(store: Engine) -> None:
    body = json.dumps(vast_answer(vast_offer(gpu_name="Quantum ☃ 9", geolocation="")))
    parsed = parse_vast(body.encode(), ManualClock().wall_ns())
    record(
        store, Snapshot(source="vast", fetched_ns=parsed.offers[0].fetched_ns, offers=parsed.offers)
    )
    assert sorted(PriceBook(store).offers(), key=cheapest_first) == sorted(
        parsed.offers, key=cheapest_first
    )


def test_a_snapshot_that_cannot_be_written_leaves_nothing(store: Engine) -> None:
    broken = look(2, replace(offer(), region=object()))
    with pytest.raises(Exception, match=r"(?i)binding|type"):
        record(store, look(1, offer()), broken)
    assert PriceBook(store).sources() == []


def test_machines_of_every_size_form_and_tier_can_be_rented_side_by_side(store: Engine) -> None:
    offers = [
        offer("16", gpu_count=8),
        offer("2.50"),
        offer("3.00"),
        offer("2.40", gpu="H100-PCIe"),
        offer("1.00", tier=Tier.SPOT),
        offer("0.90", community=True),
    ]
    record(store, look(5, *offers))
    found = PriceBook(store).cheapest_rentable()
    assert [str(one.price) for one in found] == [
        "0.90 USD", "1.00 USD", "16.00 USD", "2.40 USD", "2.50 USD"
    ]  # fmt: skip


def test_prices_of_machines_of_another_size_are_another_series(store: Engine) -> None:
    record(store, look(1, offer("8", gpu_count=8)), look(2, offer("2")))
    assert [point.series.machine for point in points(store)] == ["8x H100", "1x H100"]
    assert alerts(store) == []


def test_the_price_of_a_form_factor_is_not_that_of_the_other(store: Engine) -> None:
    record(store, look(1, offer("2.00", gpu="H100"), offer("2.70", gpu="H100-SXM")))
    found = [price_at(PriceBook(store), name, 5) for name in ("H100-SXM", "h100 sxm5", "H100")]
    assert [one and str(one.price) for one in found] == ["2.70 USD", "2.70 USD", "2.00 USD"]


def test_old_offers_are_excluded_unless_set_manually(store: Engine) -> None:
    stated = look(1, offer("1.10", provider="own"), source="manual:own:H100")
    record(store, stated, look(1, offer("2.00")), look(9, offer("3.00"), source="other"))
    recent = PriceBook(store).cheapest_rentable(since_ns=5)
    assert [str(one.price) for one in recent] == ["1.10 USD", "3.00 USD"]
    found = search_offers(store, Query(gpu="H100"), since_ns=5)
    assert (prices(found.offers), found.too_old) == (["1.10 USD", "3.00 USD"], 1)


def test_recording_in_bulk_equals_recording_one_by_one(tmp_path: Path) -> None:
    draw = Random(5)
    looks = [
        look(at, *(offer(draw.randrange(1, 9), gpu_count=n) for n in (1, 1, 8)), source=source)
        for at in draw.sample(range(50), 30)
        for source in ("a", "b")
    ]
    whole, single = open_store(tmp_path / "whole"), open_store(tmp_path / "single")
    record(whole, *looks)
    for each in sorted(looks, key=lambda one: one.fetched_ns):
        record(single, each)

    def key(found: PricePoint | Alert) -> tuple[object, ...]:
        return found.at_ns, found.series

    assert sorted(points(whole), key=key) == sorted(points(single), key=key)
    assert sorted(alerts(whole), key=key) == sorted(alerts(single), key=key)
    assert len(alerts(whole)) > 50
