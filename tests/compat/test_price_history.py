"""The price history file: import and export without loss."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offer_builder import offer, store_without_prices
from outlay.compat.cost_module.gpu_price import GPUPrice
from outlay.compat.cost_module.price_history import (
    CorruptHistory,
    export_history,
    history_file,
    import_history,
    read_history,
)
from outlay.compat.cost_module.tracker import GPUPriceTracker
from outlay.prices.offer import Snapshot, Tier
from outlay.prices.price_book import PriceBook
from outlay.prices.series import alerts
from outlay.store import open_store

HISTORY = {
    "RTX 4090|vast.ai": [
        [0.1438056, "2026-01-01T00:00:00+00:00"],
        [0.3, "2026-01-02T00:00:00.000001+00:00"],
    ],
    "A|B|lambda": [[2, "2026-01-01T12:00:00"]],
}


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_history_is_imported_with_all_its_digits(tmp_path: Path) -> None:
    import_history(open_store(), written(tmp_path / "h.json", HISTORY))
    (first, second) = GPUPriceTracker().histories["RTX 4090", "vast.ai"].prices
    assert first[0] == datetime(2026, 1, 1, tzinfo=UTC)
    export_history(open_store(), tmp_path / "out.json")
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["RTX 4090|vast.ai"] == HISTORY["RTX 4090|vast.ai"]
    assert second[1] == 0.3


def test_a_gpu_may_have_a_bar_in_its_name(tmp_path: Path) -> None:
    import_history(open_store(), written(tmp_path / "h.json", HISTORY))
    assert ("A|B", "lambda") in GPUPriceTracker().histories


def test_importing_twice_adds_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "h.json", HISTORY)
    assert import_history(open_store(), path).added == 3
    again = import_history(open_store(), path)
    assert (again.added, again.known) == (0, 3)


def test_imported_history_raises_the_alerts_that_tracking_it_would(tmp_path: Path) -> None:
    prices = [1.0, 0.95, 0.5, 0.9, 0.89, 0.49, 0.49]
    instants = [datetime(2026, 1, 1 + day, tzinfo=UTC) for day in range(len(prices))]
    stamped = [[price, at.isoformat()] for price, at in zip(prices, instants, strict=True)]
    history = {"H100|a": stamped, "H100|b": stamped[::-1]}
    import_history(open_store(tmp_path / "all"), written(tmp_path / "h.json", history))
    one_by_one = GPUPriceTracker(tmp_path / "each")
    for provider in "ab":
        for price, at in zip(prices, instants, strict=True):
            one_by_one.track_price(GPUPrice("H100", provider, price, timestamp=at))
    found = alerts(open_store(tmp_path / "all"))
    assert [(alert.kind, alert.current.micros) for alert in found[::2]] == [
        ("drop", 500_000), ("surge", 900_000), ("drop", 490_000)
    ]  # fmt: skip
    assert found == alerts(open_store(tmp_path / "each"))


def test_what_is_imported_between_known_prices_leaves_their_alerts(tmp_path: Path) -> None:
    tracking = GPUPriceTracker(tmp_path)
    for day, price in ((1, 1.0), (9, 0.5)):
        at = datetime(2026, 1, day, tzinfo=UTC)
        tracking.track_price(GPUPrice("H100", "a", price, timestamp=at))
    history = {"H100|a": [[2.0, "2026-01-05T00:00:00+00:00"]]}
    import_history(open_store(tmp_path), written(tmp_path / "h.json", history))
    told = [(alert.current.micros, alert.previous.micros) for alert in alerts(open_store(tmp_path))]
    assert told == [(2_000_000, 1_000_000), (500_000, 1_000_000)]


def test_an_imported_price_is_what_the_next_one_is_compared_with(tmp_path: Path) -> None:
    import_history(open_store(), written(tmp_path / "h.json", HISTORY))
    alert = GPUPriceTracker().track_price(GPUPrice("RTX 4090", "vast.ai", 0.15))
    assert alert is not None
    assert alert.alert_type == "drop"


def test_invalid_prices_are_findings_and_the_rest_is_imported(tmp_path: Path) -> None:
    bad = {"A|p": [[0.0, "2026-01-01T00:00:00"], [-1, "2026-01-02"], [1.5, "2026-01-03T00:00:00"]]}
    bad["A|p"][1][1] = "2026-01-02T00:00:00"
    imported = import_history(open_store(), written(tmp_path / "h.json", bad))
    assert (imported.added, len(imported.findings)) == (1, 2)


CORRUPT = {
    "not JSON": "{",
    "empty": "",
    "a list": "[]",
    "a key without a provider": '{"A100": []}',
    "a price in words": '{"A|p": [["cheap", "2026-01-01T00:00:00"]]}',
    "a time that is none": '{"A|p": [[1.0, "yesterday"]]}',
    "a point too short": '{"A|p": [[1.0]]}',
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT.keys())
def test_a_corrupt_file_is_not_imported(tmp_path: Path, content: str) -> None:
    with pytest.raises(CorruptHistory, match="left as it is"):
        import_history(open_store(), written(tmp_path / "h.json", content))


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT.keys())
def test_a_corrupt_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    GPUPriceTracker().track_price(GPUPrice("A", "p", 1.0))
    path = written(tmp_path / "h.json", content)
    with pytest.raises(CorruptHistory):
        export_history(open_store(), path)
    assert path.read_text() == content


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorruptHistory, match="No such file"):
        import_history(open_store(), tmp_path / "none.json")


def test_an_export_keeps_the_prices_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "h.json", HISTORY)
    GPUPriceTracker().track_price(GPUPrice("H100", "p", 2.0))
    assert export_history(open_store(), path) == 4
    assert export_history(open_store(), path) == 4


def test_a_fetched_snapshot_is_written_as_its_cheapest_offer(tmp_path: Path) -> None:
    offers = (offer("2.00"), offer("1.50", tier=Tier.SPOT), offer("3.00"))
    PriceBook(open_store()).record([Snapshot(source="test", fetched_ns=1000, offers=offers)])
    export_history(open_store(), tmp_path / "h.json")
    assert json.loads((tmp_path / "h.json").read_text()) == {
        "H100|acme": [[1.5, "1970-01-01T00:00:00.000001+00:00"]]
    }


def test_a_data_directory_means_the_file_in_it(tmp_path: Path) -> None:
    assert history_file(tmp_path) == tmp_path / "prices" / "price_history.json"
    assert history_file(tmp_path / "h.json") == tmp_path / "h.json"


# Times without a zone, which such a file may hold, are UTC.
YEARS = datetime(1990, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001
names = st.text(st.characters(codec="utf-8", exclude_characters="|"), min_size=1, max_size=8)
histories = st.dictionaries(
    st.builds("{}|{}".format, names, names),
    st.lists(
        st.tuples(
            st.floats(min_value=1e-5, max_value=1e5),
            st.datetimes(*YEARS).map(datetime.isoformat),
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_import_then_export_is_the_identity(history: dict[str, Any]) -> None:
    with TemporaryDirectory() as directory:
        path, out = Path(directory) / "h.json", Path(directory) / "out.json"
        store = store_without_prices()
        import_history(store, written(path, history))
        export_history(store, out)
        assert Counter(read_history(out)) == Counter(read_history(path))
