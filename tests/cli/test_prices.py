"""``outlay prices`` and ``outlay survey``: output, widths and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fake_vendor import Answer, FakeVendor, as_json, serving
from outlay.cli.app import app, main
from outlay.clock import SYSTEM, utc_text
from outlay.errors import InvalidValue, OutlayError
from outlay.prices.price_book import NothingLoaded
from vendor_shapes import (
    lambda_answer,
    runpod_answer,
    runpod_type,
    vast_answer,
    vast_offer,
)

KEY = "lambda-secret-0123456789"


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeVendor]]:
    """Three vendors on loopback, where the command line looks for them."""
    answers = {"vast": vast_answer(), "runpod": runpod_answer(), "lambda": lambda_answer()}
    with ExitStack() as stack:
        fakes = {
            name: stack.enter_context(serving(as_json(answer))) for name, answer in answers.items()
        }
        for name, fake in fakes.items():
            monkeypatch.setenv(f"OUTLAY_{name.upper()}_URL", fake.url)
        monkeypatch.setenv("LAMBDA_API_KEY", KEY)
        monkeypatch.delenv("VAST_API_KEY", raising=False)
        monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
        yield fakes


def outlay(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, OutlayError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def outlay_json(*words: str) -> Any:
    return json.loads(outlay(*words, "--json"))


def test_prices_are_fetched_from_every_vendor(vendors: dict[str, FakeVendor]) -> None:
    said = outlay_json("prices", "fetch")
    assert {one["source"]: one["offers"] for one in said["snapshots"]} == {
        "runpod": 14,
        "lambda": 1,
        "vast": 2,
    }
    assert all(len(fake.asked) == 1 for fake in vendors.values())


@pytest.mark.usefixtures("vendors")
def test_only_the_named_sources_are_asked() -> None:
    said = outlay_json("prices", "fetch", "--source", "vast")
    assert [one["source"] for one in said["snapshots"]] == ["vast"]


def test_a_vendor_that_fails_is_shown_and_the_others_count(vendors: dict[str, FakeVendor]) -> None:
    vendors["runpod"].answers = [Answer(status=401)]
    said = outlay("prices", "fetch")
    assert "not loaded" in said
    assert "RUNPOD_API_KEY" in said


def test_all_vendors_failing_is_exit_code_1(vendors: dict[str, FakeVendor]) -> None:
    for fake in vendors.values():
        fake.answers = [Answer(status=404)]
    outlay("prices", "fetch", code=1)


@pytest.mark.usefixtures("vendors")
def test_no_key_is_shown_or_stored(private_home: Path) -> None:
    said = outlay("prices", "fetch") + outlay("prices", "list") + outlay("prices", "stats")
    assert KEY not in said
    stored = [file for file in private_home.rglob("*") if file.is_file()]
    assert stored
    assert [file for file in stored if KEY.encode() in file.read_bytes()] == []


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "JSON"])
def test_never_loaded_is_an_error_and_not_an_empty_list(more: list[str]) -> None:
    for words in (["list"], ["cheapest"], ["stats"], ["alerts"], ["history", "H100"]):
        with pytest.raises(NothingLoaded, match="no prices have been loaded yet"):
            outlay("prices", *words, *more)


def test_an_error_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["outlay", "prices", "list"])
    monkeypatch.setattr("sys.excepthook", sys.excepthook)  # Typer replaces it.
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("vendors")
def test_offers_are_listed_cheapest_first_with_age_and_source() -> None:
    outlay("prices", "fetch")
    offers = outlay_json("prices", "list")["offers"]
    each = [offer["price_per_gpu"]["micros"] for offer in offers]
    assert each == sorted(each)
    assert all(offer["source"] and offer["fetched_ns"] for offer in offers)
    shown = outlay("prices", "list")
    assert "age" in shown
    assert "source" in shown


@pytest.mark.usefixtures("vendors")
def test_offers_are_filtered() -> None:
    outlay("prices", "fetch")
    expected = {
        ("--gpu", "rtx 3090"): 2,
        ("--gpu", "RTX4090", "--count", "2"): 4,
        ("--spot",): 8,
        ("--on-demand",): 9,
        ("--max-price", "0.20 USD/h"): 5,
        ("--min-memory", "48"): 1,
        ("--region", "norway"): 2,
        ("--nvlink",): 2,
        ("--provider", "lambda"): 1,
        ("--gpu", "H100"): 0,
        ("--at", "2001-01-01"): 0,
        ("--max-age", "1h"): 17,
    }
    found = {each: outlay_json("prices", "list", *each)["offers"] for each in expected}
    assert {each: len(offers) for each, offers in found.items()} == expected


@pytest.mark.usefixtures("vendors")
def test_no_match_states_how_many_offers_were_searched() -> None:
    outlay("prices", "fetch")
    assert "No offer matches; 17 loaded offers" in outlay("prices", "cheapest", "--gpu", "H100")


def test_the_cheapest_leaves_out_what_is_sold_out(vendors: dict[str, FakeVendor]) -> None:
    vendors["runpod"].answers = [
        as_json(runpod_answer(runpod_type(lowestPrice={"stockStatus": None})))
    ]
    outlay("prices", "fetch")
    found = outlay_json("prices", "cheapest", "--gpu", "RTX4090")["offers"]
    assert found == []


def test_a_price_that_moved_is_an_alert(vendors: dict[str, FakeVendor]) -> None:
    outlay("prices", "fetch")
    vendors["vast"].answers = [as_json(vast_answer(vast_offer(dph_total=0.2, min_bid=0.19)))]
    said = outlay_json("prices", "fetch")
    assert [(one["kind"], one["series"]["tier"]) for one in said["alerts"]] == [
        ("drop", "on-demand")
    ]
    assert "drop" in outlay("prices", "alerts")
    assert "No price alerts" in outlay("prices", "alerts", "--hours", "0")


@pytest.mark.usefixtures("vendors")
def test_history_is_plotted_and_drawn(tmp_path: Path) -> None:
    outlay("prices", "fetch")
    said = outlay("prices", "history", "RTX3090", "--png", str(tmp_path / "h.png"))
    assert "▪" in said
    assert "community spot" in said
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("vendors")
def test_history_of_an_unknown_gpu_says_so() -> None:
    outlay("prices", "fetch")
    assert "No price of H100 was recorded in the last 30d" in outlay("prices", "history", "H100")


@pytest.mark.usefixtures("vendors")
def test_statistics_cover_every_gpu_and_source() -> None:
    outlay("prices", "fetch")
    said = outlay_json("prices", "stats")
    assert said["current_prices"]["vast:RTX3090"] == 0.105
    assert {state["source"] for state in said["sources"]} == {"vast", "runpod", "lambda"}
    assert "RTX3090" in outlay("prices", "stats")


def test_a_price_is_stated_by_hand() -> None:
    outlay("prices", "set", "A100-80GB", "1.10 USD/h", "--provider", "own", "--count", "8")
    (found,) = outlay_json("prices", "cheapest", "--gpu", "A100")["offers"]
    assert found["price"] == {"micros": 8_800_000, "currency": "USD"}


def test_a_tier_stated_by_hand_leaves_the_others_as_they_are() -> None:
    stated: list[list[str]] = [["2.00 USD/h"], ["0.95 USD/h", "--tier", "spot"]]
    for words in (*stated, ["1.80 USD/h", "--count", "8"]):
        outlay("prices", "set", "A100-80GB", *words)
    listed = outlay_json("prices", "list")["offers"]
    assert [(one["tier"], one["gpu_count"]) for one in listed] == [
        ("spot", 1), ("on-demand", 8), ("on-demand", 1)
    ]  # fmt: skip
    assert outlay_json("prices", "stats")["price_trends_24h"] == {"own:A100-80GB": 0.0}


def test_cheapest_ignores_old_prices_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "price_history.json"
    path.write_text(json.dumps({"H100|acme": [[2.0, "2024-01-01T00:00:00+00:00"]]}))
    outlay("prices", "import", str(path))
    said = " ".join(outlay("prices", "cheapest", "--gpu", "H100").split())
    assert "1 offer last seen more than 30d00h ago ignored" in said
    older = outlay_json("prices", "cheapest", "--max-age", "9999d")["offers"]
    assert [one["provider"] for one in older] == ["acme"]
    assert len(outlay_json("prices", "list")["offers"]) == 1
    figures = outlay_json("prices", "stats")
    assert (figures["current_prices"], figures["average_prices_24h"]) == ({"acme:H100": 2.0}, {})
    assert "-" in outlay("prices", "stats")


def test_a_history_is_imported_and_exported(tmp_path: Path) -> None:
    history = {"H100|acme": [[2.5, "2026-01-01T00:00:00+00:00"]]}
    (tmp_path / "in.json").write_text(json.dumps(history))
    assert "1 prices added" in outlay("prices", "import", str(tmp_path / "in.json"))
    outlay("prices", "export", str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == history


def test_a_catalog_is_imported(tmp_path: Path) -> None:
    (tmp_path / "aws.csv").write_text(
        "instance_name,location,price,gpu_count,gpu_name,gpu_memory,spot\n"
        "p5,us,98.32,8,H100,80,False\nbad,us,?,8,H100,80,False\n"
    )
    said = outlay("prices", "import", str(tmp_path / "aws.csv"))
    assert "1 offers of aws" in said
    assert "csv:aws:3" in said


@pytest.mark.usefixtures("vendors")
def test_the_survey_is_written_with_its_pick(tmp_path: Path) -> None:
    said = outlay_json("survey", "--gpus", "2", "-o", str(tmp_path / "out"))
    assert said["rule"] == "cheapest spot with NVLink"
    assert said["pick"]["gpu"] == "RTX3090"
    text = (tmp_path / "out" / "vendor-survey.md").read_text()
    assert f"Snapshot of {utc_text(said['taken_ns'])}" in text
    assert abs(SYSTEM.wall_ns() - said["taken_ns"]) < 3600 * 10**9
    assert said["justification"] in text.strip().split("\n\n")  # A paragraph of its own.


@pytest.mark.usefixtures("vendors")
def test_the_survey_keeps_what_it_fetched() -> None:
    outlay("survey")
    assert outlay_json("prices", "list")["offers"]


@pytest.mark.usefixtures("vendors")
def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    outlay("prices", "fetch")
    for words in (
        ["survey", "--offline", "-o", str(taken)],
        ["prices", "export", str(taken / "h.json")],
        ["prices", "history", "RTX3090", "--png", str(taken / "h.png")],
    ):
        with pytest.raises(InvalidValue, match="a writable path"):
            outlay(*words)


def test_the_survey_offline_plans_with_the_placeholder_and_says_so(tmp_path: Path) -> None:
    said = outlay("survey", "--offline", "-o", str(tmp_path))
    assert "Assumption, not a price" in said
    assert "0.70 USD per hour" in (tmp_path / "vendor-survey.md").read_text()


def test_the_survey_compares_machines_whose_price_was_set_by_hand(tmp_path: Path) -> None:
    for gpu, count in (("A100-80GB", "2"), ("H100", "8")):
        outlay("prices", "set", gpu, "1.10 USD/h", "--provider", "lab", "--count", count)
    said = outlay_json("survey", "--offline", "--gpus", "2", "-o", str(tmp_path))
    pick = said["pick"]
    assert (pick["provider"], pick["gpu"], said["placeholder"]) == ("lab", "A100-80GB", None)
    assert "| set by hand | 2x A100-80GB" in (tmp_path / "vendor-survey.md").read_text()


def test_the_survey_without_any_vendor_in_reach_plans_with_the_placeholder(
    vendors: dict[str, FakeVendor],
) -> None:
    for fake in vendors.values():
        fake.answers = [Answer(status=404)]
    assert outlay_json("survey")["placeholder"]["ceiling"] == {
        "micros": 3_000_000,
        "currency": "USD",
    }


@pytest.mark.usefixtures("vendors")
def test_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    outlay("prices", "fetch")
    for columns in (80, 200):
        monkeypatch.setattr("outlay.cli.output.console.width", columns)
        for command in (["list"], ["stats"], ["alerts"], ["history", "RTX4090"]):
            lines = outlay("prices", *command).splitlines()
            assert max(map(len, lines)) <= columns
