"""Finding offers among a hundred thousand: outlay against gpuhunt, on the same catalog, in one run.

Then importing as many, for which ten seconds are allowed; then the price book with a million
observations: an as-of look-up and 24 h statistics.

    python benchmarks/prices.py [--offers 100000] [--observations 1000000]
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import gpuhunt
import timing
from gpuhunt._internal import storage
from gpuhunt._internal.catalog import OFFLINE_PROVIDERS, ProviderCatalog

from outlay.clock import ManualClock
from outlay.compat.cost_module.price_history import import_history
from outlay.compat.cost_module.tracker import GPUPriceTracker
from outlay.prices.catalog import Catalog, Query
from outlay.prices.gpus import SPECS
from outlay.prices.offer import Offer, Snapshot, Tier
from outlay.prices.offer_search import search_offers
from outlay.prices.price_book import PriceBook, fetch
from outlay.prices.sources.catalogs import CsvSource
from outlay.store import open_store
from outlay.units import Money

HOUR_NS = 3_600_000_000_000
REPEATS = 7


def best_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the fastest of several repeats, in milliseconds."""
    return timing.best_s(work, rounds=repeats) * 1000


def write_catalogs(directory: Path, offers: int) -> list[Path]:
    """Write a gpuhunt catalog for each of its providers; the same every time."""
    draw = random.Random(1)
    paths = []
    for provider in OFFLINE_PROVIDERS:
        path = directory / f"{provider}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, storage.CATALOG_V2_FIELDS)
            writer.writeheader()
            writer.writerows(_rows(draw, offers // len(OFFLINE_PROVIDERS)))
        paths.append(path)
    return paths


def _rows(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    specs = sorted(SPECS.values(), key=lambda spec: spec.name)
    for number in range(count):
        spec = draw.choice(specs)
        gpus = draw.choice([1, 2, 4, 8])
        yield {
            "instance_name": f"type-{number}",
            "location": f"region-{draw.randrange(40)}",
            "price": round(gpus * (0.5 + spec.memory_gb / 40 * draw.uniform(0.6, 3)), 4),
            "cpu": 8 * gpus,
            "memory": 64 * gpus,
            "gpu_count": gpus,
            "gpu_name": spec.family.replace("-", ""),
            "gpu_memory": float(spec.memory_gb),
            "spot": draw.random() < 0.5,
            "disk_size": "",
            "gpu_vendor": "amd" if spec.name.startswith("MI") else "nvidia",
            "flags": "",
            "cpu_arch": "x86",
            "provider_data": "{}",
        }


def load_gpuhunt(paths: list[Path]) -> gpuhunt.Catalog:
    """Load the files into gpuhunt's memory, as it does with what it downloads."""
    catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
    for path in paths:
        items = list(storage.load(io.StringIO(path.read_text()), provider=path.stem))
        catalog.catalog[path.stem] = ProviderCatalog(version="1", items=items)
    catalog.loaded_at = time.monotonic()
    return catalog


def load_outlay(paths: list[Path]) -> Catalog:
    """Load the files into outlay's memory."""
    return Catalog(offer for path in paths for offer in CsvSource(path).load(1).offers)


def compare_queries(directory: Path, offers: int) -> None:
    paths = write_catalogs(directory, offers)
    theirs, ours = load_gpuhunt(paths), load_outlay(paths)
    print(f"{len(ours):,} offers in memory, best of {REPEATS}")
    _row("load", best_ms(lambda: load_outlay(paths), 3), best_ms(lambda: load_gpuhunt(paths), 3))

    def our_h100() -> list[Offer]:
        return ours.find(Query(gpu="H100"), limit=20)

    def their_h100() -> Any:
        return theirs.query(gpu_name="H100")[:20]

    # gpuhunt's order holds within a provider only, so the answers are compared as prices of all.
    cheapest = sorted(_exact_per_gpu(item) for item in theirs.query(gpu_name="H100"))[:20]
    assert [one.price_per_gpu.amount for one in our_h100()] == cheapest
    _row("cheapest 20 H100", best_ms(our_h100), best_ms(their_h100), least=20)

    five = Money.parse("5")
    query = Query(tier=Tier.SPOT, min_memory_gb=40, max_total_price=five)

    def their_spot() -> Any:
        return theirs.query(spot=True, min_gpu_memory=40, max_price=5)

    assert len(ours.find(query)) == len(their_spot())
    print(f"  ({len(their_spot()):,} offers answer the next question)")
    found_ms, theirs_ms = best_ms(lambda: ours.find(query)), best_ms(their_spot)
    _row("spot, >= 40 GB, <= $5", found_ms, theirs_ms, least=20)


def compare_imports(directory: Path, offers: int) -> None:
    """Import a catalog and a history into the store, with alerts and the price file.

    gpuhunt keeps nothing: its figure is for loading the same offers into memory.
    """
    paths, homes = write_catalogs(directory, offers), iter(range(100))

    def empty_book() -> PriceBook:
        os.environ["OUTLAY_HOME"] = str(directory / f"home-{next(homes)}")
        return PriceBook(open_store())

    def import_catalogs() -> None:
        book = empty_book()
        book.record(fetch(CsvSource(path)) for path in paths)
        book.publish()

    history = _write_history(directory / "history" / "prices.json", offers)

    def import_prices() -> None:
        empty_book()
        assert import_history(open_store(), history).added == offers

    works = {
        "gpuhunt, load": lambda: load_gpuhunt(paths),
        "load": lambda: [fetch(CsvSource(path)) for path in paths],
        "import a catalog": import_catalogs,
        "import a history": import_prices,
    }
    gpuhunt_ms, *ours = (one.seconds * 1000 for one in timing.compare(works, calls=1, rounds=3))
    print(f"\n{offers:,} prices imported, best of 3")
    for name, ms in zip(list(works)[1:], ours, strict=True):
        _row(f"{name}, screened", ms, gpuhunt_ms)
        print(f"  {'':<24} {ms / 10_000:.0%} of 10 s")


def _write_history(path: Path, prices: int) -> Path:
    draw, begun = random.Random(1), datetime(2025, 1, 1, tzinfo=UTC)
    keys = [f"{gpu}|vendor-{n}" for gpu in ("H100", "A100-80GB", "RTX4090", "L4") for n in range(5)]
    histories: dict[str, list[tuple[float, str]]] = {key: [] for key in keys}
    for number in range(prices):
        at = begun + timedelta(minutes=number)
        price = round(draw.uniform(1, 1.5), 4)
        histories[draw.choice(keys)].append((price, at.isoformat()))
    path.parent.mkdir()
    path.write_text(json.dumps(histories))
    return path


def _exact_per_gpu(item: Any) -> Decimal:
    each = Decimal(repr(item.price)) / int(item.gpu_count)
    return each.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def _row(name: str, ours_ms: float, theirs_ms: float, least: float | None = None) -> None:
    ratio = theirs_ms / ours_ms
    print(f"  {name:<24} outlay {ours_ms:9.3f} ms  gpuhunt {theirs_ms:9.3f} ms  {ratio:7.1f}x")
    timing.row(
        f"prices: {name}", ours_ms, timing.Figure("gpuhunt", theirs_ms), unit="ms", least=least
    )


def measure_book(directory: Path, observations: int) -> None:
    """Fill a store with hourly snapshots of four sources, then ask it."""
    store = open_store(directory)
    clock = ManualClock()
    hours = observations // 2000
    begun = time.perf_counter()
    PriceBook(store).record(_history(clock, hours))
    took = time.perf_counter() - begun
    print(f"\n{hours * 2000:,} observations in the store ({took:.0f} s to write)")
    tracker, query = GPUPriceTracker(directory, clock=clock), Query(gpu="H100")
    past_ns = clock.wall_ns() - hours * HOUR_NS // 2
    begun = time.perf_counter()
    PriceBook(store).record([_look("vendor-0", clock.wall_ns() + 1, random.Random(2))])
    _figure("record 500 offers", (time.perf_counter() - begun) * 1000)
    _figure("as-of: cheapest H100", best_ms(lambda: search_offers(store, query, at_ns=past_ns)))
    _figure("as-of: cheapest now", best_ms(lambda: search_offers(store, query)))
    _figure("24 h statistics", best_ms(tracker.get_price_statistics))


def _history(clock: ManualClock, hours: int) -> Iterator[Snapshot]:
    draw = random.Random(1)
    for hour in range(hours):
        at_ns = clock.wall_ns() - (hours - hour) * HOUR_NS
        for vendor in range(4):
            yield _look(f"vendor-{vendor}", at_ns, draw)


def _look(source: str, at_ns: int, draw: random.Random) -> Snapshot:
    names = ("H100", "A100-80GB", "RTX4090", "L40S", "H200", "B200", "A6000", "L4", "T4", "RTX3090")
    offers = tuple(
        Offer(
            provider=source,
            gpu=names[number % 10],
            gpu_count=1 + number % 8,
            price=Money(draw.randrange(500_000, 9_000_000)),
            tier=Tier.SPOT if number % 2 else Tier.ON_DEMAND,
            region=f"region-{number % 7}",
            offer_id=f"offer-{number}",
            fetched_ns=at_ns,
            source=source,
        )
        for number in range(500)
    )
    return Snapshot(source=source, fetched_ns=at_ns, offers=offers)


def _figure(name: str, ms: float) -> None:
    print(f"  {name:<24} {ms:9.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offers", type=int, default=100_000)
    parser.add_argument("--observations", type=int, default=1_000_000)
    asked = parser.parse_args()
    print(f"{timing.machine()}, gpuhunt in the same process")
    with tempfile.TemporaryDirectory() as directory:
        compare_queries(Path(directory), asked.offers)
        compare_imports(Path(directory), asked.offers)
        measure_book(Path(directory), asked.observations)


if __name__ == "__main__":
    main()
