"""One damaged run of each kind among good ones: every command shows the good and names the bad."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from command_line import in_process, outlay
from hostile import DAMAGES, good_run
from outlay import run
from outlay.errors import InvalidValue

GOOD = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    for number in range(GOOD):
        good_run(directory / f"good-{number:03d}", f"good-{number:03d}")
    for name, damage in DAMAGES.items():
        damage(good_run(directory / f"bad-{name}", f"bad-{name}"))
    good_run(directory / os.fsdecode(b"bad-caf\xe9"), "bad-latin")
    return directory


def good_in(rows: list[dict[str, object]]) -> int:
    return len({row["name"] for row in rows if str(row["name"]).startswith("good-")})


def damages_named_in(text: str) -> set[str]:
    return {name for name in DAMAGES if f"bad-{name}" in text}


def test_every_listing_shows_the_good_and_names_the_damaged(runs: Path) -> None:
    listed = outlay("runs", runs, "--all", "--json")
    assert good_in(listed.json["runs"]) == GOOD
    assert damages_named_in(listed.out) == set(DAMAGES)
    collected = in_process("collect", runs, "--json")
    assert collected.json["registered"] >= GOOD
    assert damages_named_in(collected.out) >= {"fifo", "not-utf8", "metric-of-words"}
    assert good_in(in_process("runs", "--all", "--json").json["runs"]) == GOOD
    for command in (["runs", str(runs)], ["runs"], [], ["cost", "summary"]):
        assert in_process(*command).code == 0


TOTALS = [
    ["cost", "summary"], ["cost", "model", "m"], ["cost", "compare"], ["cost", "roi", "m"],
    ["cost", "forecast", "m", "2"], ["cost", "allocate", "--by", "user", "--month", "2023-11"],
    ["cost", "budget", "status"], ["cost-report"], ["cost-report", "--model", "m"],
]  # fmt: skip


def test_every_total_counts_the_good_and_names_the_damaged(runs: Path) -> None:
    in_process("collect", runs)
    listed = in_process("runs", "--all", "--json").json["runs"]
    damaged = {
        Path(row["dir"]).name
        for row in listed
        if any(finding["severity"] == "error" for finding in row["findings"])
    }
    assert len(damaged) >= 15
    for command in TOTALS:
        ended = in_process(*command, "--json")
        assert ended.code == 0, command
        said = {Path(finding["source"]).name for finding in ended.json["findings"]}
        assert damaged - said == set(), command
    models = in_process("cost", "summary", "--json").json["models"]
    assert sum(model["runs"] for model in models.values()) >= GOOD
    assert in_process("advise", "--model", "m").code == 0


COMMANDS = [
    ["goodput"], ["goodput", "deviation"], ["cost", "show"], ["cost", "forecast", "--run"],
    ["report"], ["report", "--md"], ["advise"], ["ledger", "cat"], ["ledger", "verify"],
    ["budget", "show"], ["budget", "plan", "--mode", "iso_tokens", "--limit", "1M", "--from"],
    ["export", "csv"],
]  # fmt: skip


@pytest.mark.parametrize("name", [*DAMAGES])
def test_commands_on_a_damaged_run_exit_with_a_documented_code(tmp_path: Path, name: str) -> None:
    run_dir = good_run(tmp_path / "run", "one")
    DAMAGES[name](run_dir)
    for command in COMMANDS:
        assert in_process(*command, run_dir).code in (0, 1, 2)


@pytest.mark.parametrize("name", [*DAMAGES])
@pytest.mark.parametrize("budget", [None, "iso_tokens=1M"])
def test_damaged_run_can_be_continued_or_is_refused(
    tmp_path: Path, name: str, budget: str | None
) -> None:
    run_dir = good_run(tmp_path / "run", "one")
    DAMAGES[name](run_dir)
    with contextlib.suppress(InvalidValue), run("m", dir=run_dir, budget=budget) as training:
        for _ in training.steps([1, 2], tokens=3):
            pass


@pytest.mark.parametrize("raw", [b"\xff", b"[" * 9999, b'{"dir":"a\\u0000"}', b'{"dir":5}'])
def test_a_bad_notice_does_not_end_a_listing(private_home: Path, raw: bytes) -> None:
    (private_home / "inbox" / "y.json").mkdir(parents=True)
    (private_home / "inbox" / "x.json").write_bytes(raw)
    shown = in_process("runs", "--json").json
    assert {Path(f["source"]).name for f in shown["findings"]} == {"x.json", "y.json"}
