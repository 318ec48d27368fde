"""Published catalogs (gpuhunt's and SkyPilot's CSV, the gpuhunt library) and manual prices."""

from __future__ import annotations

import builtins
import csv
import gc
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpuhunt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_vendor import Answer, FakeVendor, serving
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, MissingExtra
from outlay.prices.offer import SourceFailed, Tier, read_price
from outlay.prices.price_book import fetch, fetch_all
from outlay.prices.sources.catalogs import CsvSource, GpuhuntSource, ManualSource, parse_csv
from outlay.prices.sources.vendors import sources_named
from outlay.units import Money, Rate

GPUHUNT = """\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags
p5.48xlarge,us-east-1,98.32,192,2048,8,H100,80.0,False,,nvidia,
p5.48xlarge,us-east-1,39.5,192,2048,8,H100,80.0,True,,nvidia,
m5.large,us-east-1,0.096,2,8,0,,,False,,,
"""
SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
8x_H100_SECURE,H100-SXM,8.0,128,1000,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 80}}]}",23.92,14.0,US
1x_A100-80GB,A100-80GB,1.0,8,117,"{""Gpus"": []}",1.89,,CA
cpu-4,,,4,16,,0.1,,US
"""


def saved(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_gpuhunt_prices_are_for_the_instance(tmp_path: Path) -> None:
    snapshot = fetch(CsvSource(saved(tmp_path / "aws.csv", GPUHUNT)), clock=ManualClock())
    assert not snapshot.findings
    assert [(o.tier, o.price, o.price_per_gpu) for o in snapshot.offers] == [
        (Tier.ON_DEMAND, Money.parse("98.32"), Money.parse("12.29")),
        (Tier.SPOT, Money.parse("39.5"), Money.parse("4.9375")),
    ]


def test_the_provider_is_the_files_name(tmp_path: Path) -> None:
    source = CsvSource(saved(tmp_path / "aws.csv", GPUHUNT))
    assert {offer.provider for offer in fetch(source).offers} == {"aws"}


def test_skypilot_files_are_named_by_their_directory(tmp_path: Path) -> None:
    source = CsvSource(saved(tmp_path / "runpod" / "vms.csv", SKYPILOT))
    assert {offer.provider for offer in fetch(source).offers} == {"runpod"}


def test_skypilot_has_both_prices_in_a_row(tmp_path: Path) -> None:
    snapshot = fetch(CsvSource(saved(tmp_path / "runpod" / "vms.csv", SKYPILOT)))
    assert [(o.gpu, o.gpu_count, o.tier, str(o.price)) for o in snapshot.offers] == [
        ("H100-SXM", 8, Tier.ON_DEMAND, "23.92 USD"),
        ("H100-SXM", 8, Tier.SPOT, "14.00 USD"),
        ("A100-80GB", 1, Tier.ON_DEMAND, "1.89 USD"),
    ]


def test_skypilots_memory_is_ignored(tmp_path: Path) -> None:
    snapshot = fetch(CsvSource(saved(tmp_path / "runpod" / "vms.csv", SKYPILOT)))
    assert [offer.memory_gb for offer in snapshot.offers] == [80, 80, 80]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("x,us,free,1,1,1,H100,80,False,,nvidia,", "price"),
        ("x,us,1,1,1,many,H100,80,False,,nvidia,", "gpu_count"),
        ("x,us,1,1,1,-8,H100,80,False,,nvidia,", "zero or more"),
        ("x,us,1,1,1,nan,H100,80,False,,nvidia,", "gpu_count"),
        ("x,us,1,1,1,0.5,H100,80,False,,nvidia,", "fraction of a GPU"),
        ("x,us,1,1", "no 'gpu_count' column"),
        ("x,us,nan,1,1,1,H100,80,False,,nvidia,", "price"),
    ],
)
def test_a_bad_line_is_a_finding_with_its_number(tmp_path: Path, row: str, why: str) -> None:
    snapshot = fetch(CsvSource(saved(tmp_path / "aws.csv", GPUHUNT + row + "\n")))
    (finding,) = snapshot.findings
    assert (finding.line, len(snapshot.offers)) == (5, 2)
    assert why in finding.message


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00"])
def test_a_file_of_another_kind_is_a_failure(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceFailed):
        CsvSource(saved(tmp_path / "aws.csv", text)).load(1)


@given(
    st.decimals(0, 10**6, places=6).map(str)
    | st.from_regex(r"[0-9]{0,4}\.?[0-9]{0,8}", fullmatch=True)
    | st.text(max_size=5)
)
def test_the_fast_path_parses_prices_like_money(text: str) -> None:
    try:
        expected = Money.parse(text)
    except InvalidValue:
        with pytest.raises(InvalidValue, match="price: got"):
            read_price(text)
    else:
        assert read_price(text) == expected


def test_a_file_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    assert fetch(CsvSource(tmp_path / "aws.csv")).failed


cells = st.lists(st.text(st.characters(codec="utf-8"), max_size=6) | st.floats().map(str))


@settings(deadline=None)
@given(st.lists(cells), st.sampled_from([GPUHUNT, SKYPILOT]))
def test_any_lines_yield_offers_or_findings(rows: list[list[str]], good: str) -> None:
    class Lines(list[str]):
        def write(self, line: str) -> int:
            self.append(line)
            return len(line)

    lines = Lines(good.splitlines(keepends=True))
    csv.writer(lines).writerows(rows)
    parsed = parse_csv(lines, provider="p", source="s", fetched_ns=1)
    assert parsed.offers


@pytest.fixture
def gpuhunt_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVendor]:
    """Where gpuhunt downloads its catalogs from: the same one for every provider."""

    def answer(path: str) -> Answer:
        provider = path.split("/")[1]
        if path.endswith("/version"):
            return Answer(body=b"20261115-1")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(f"{provider}.csv", GPUHUNT)
        return Answer(body=packed.getvalue())

    with serving(Answer(status=404)) as server:
        server.by_path = answer
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", server.url)
        gpuhunt.default_catalog.cache_clear()
        yield server
        gpuhunt.default_catalog.cache_clear()


@pytest.mark.usefixtures("gpuhunt_server")
def test_other_providers_come_through_gpuhunt() -> None:
    snapshot = fetch(GpuhuntSource("aws"))
    assert not snapshot.failed, snapshot.findings
    assert {(o.provider, o.gpu, o.gpu_count, o.tier, str(o.price)) for o in snapshot.offers} == {
        ("aws", "H100", 8, Tier.ON_DEMAND, "98.32 USD"),
        ("aws", "H100", 8, Tier.SPOT, "39.50 USD"),
    }


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_gpuhunt_out_of_reach_is_a_failure_and_not_no_offers(gpuhunt_server: FakeVendor) -> None:
    gpuhunt_server.by_path = None
    snapshot = fetch(GpuhuntSource("aws"))
    assert snapshot.failed
    assert "Failed to load" in snapshot.findings[0].message
    gc.collect()  # gpuhunt leaves sockets open when it fails: let that be said here and not later


def test_gpuhunt_that_loaded_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpuhunt, "query", gpuhunt.Catalog(auto_reload=False).query)
    snapshot = fetch(GpuhuntSource("runpod"))
    assert snapshot.failed
    assert "returned no offers" in snapshot.findings[0].message


@pytest.mark.usefixtures("gpuhunt_server")
def test_a_provider_that_gpuhunt_does_not_know_is_a_failure() -> None:
    snapshot = fetch(GpuhuntSource("nobody"))
    assert "Unknown provider" in snapshot.findings[0].message


def test_without_gpuhunt_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_gpuhunt(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gpuhunt":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_gpuhunt)
    with pytest.raises(MissingExtra, match=r"outlay\[gpuhunt\]"):
        GpuhuntSource("aws").load(1)


def test_a_stated_price_is_per_gpu() -> None:
    source = ManualSource(provider="own", gpu="A100 80GB", price=Rate.parse("1.10"), gpu_count=8)
    (offer,) = fetch(source).offers
    assert (offer.gpu, offer.price, offer.memory_gb) == ("A100-80GB", Money.parse("8.80"), 80)


def test_a_stated_price_of_zero_is_quarantined() -> None:
    snapshot = fetch(ManualSource(provider="own", gpu="A100", price=Rate(0)))
    assert not snapshot.offers
    assert snapshot.findings


def test_stated_prices_of_different_gpus_do_not_replace_each_other() -> None:
    first = ManualSource(provider="own", gpu="A100-80GB", price=Rate.parse("1"))
    second = ManualSource(provider="own", gpu="H100", price=Rate.parse("1"))
    assert first.name != second.name


def test_sources_are_named_by_what_a_user_types() -> None:
    names = ["vast", "runpod", "vast", "lambda", "gpuhunt:aws"]
    assert [one.name for one in sources_named(names)] == ["vast", "runpod", "lambda", "gpuhunt:aws"]


@pytest.mark.parametrize("name", ["azure", "gpuhunt:", ""])
def test_an_unknown_source_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(InvalidValue, match="gpuhunt:PROVIDER, lambda, runpod, vast"):
        sources_named([name])


def test_a_failing_source_does_not_affect_the_others(tmp_path: Path) -> None:
    good = CsvSource(saved(tmp_path / "aws.csv", GPUHUNT))
    told: list[str] = []
    snapshots = fetch_all(
        [CsvSource(tmp_path / "none.csv"), good], on_done=lambda one: told.append(one.source)
    )
    assert [snapshot.failed for snapshot in snapshots] == [True, False]
    assert sorted(told) == ["csv:aws", "csv:none"]


def test_fetching_no_sources_returns_no_snapshots() -> None:
    assert fetch_all([]) == []
