"""Tables on terminals of 40, 80 and 200 columns, with names of 72 letters and large amounts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from command_line import in_process, outlay
from ledgers import HOUR, Segment, dollars
from outlay.cli.app import TOPICS
from outlay.cli.output import console, print_title, shortened
from outlay.runs.collect import collect
from outlay.store import open_store
from sweep_on_disk import Sweep
from terminal import terminal

DOLLARS = 12_345_678
AMOUNT = "12,345,678.00"


def long_name(number: int) -> str:
    """Return a name of 72 letters that differs from others in the middle alone."""
    return f"{'pretraining-on-the-large-mixture':-<40}{number}{'-of-the-second-cluster':->31}"


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, models, offers and holds, and a sweep, each with such a name and amount."""
    monkeypatch.chdir(tmp_path)
    directories = []
    for number in range(3):
        name = long_name(number)
        about = {"run_id": f"{number}", "name": name, "model": name, "price": dollars(DOLLARS)}
        segment = Segment(start=number, about=about).step(1800).step(1800).end()
        segment.write(Path("runs", name))
        directories.append(tmp_path / "runs" / name)
        in_process(
            "prices", "set", "H100", "1.50 USD/h", "--provider", name, "--id", name, "--count",
            number + 1,
        )  # fmt: skip
        in_process(
            "guard", "authorize", name, f"{DOLLARS} USD", "--ceiling", "99999999", "--log", "money"
        )
    collect(open_store(), directories, segment.now_ns)
    sweep = Sweep(tmp_path / "sweep")
    for number in range(3):
        sweep.add(
            long_name(number), status="error", reason="no memory was left " * 4,
            price="1 USD/h", predicted_cost=f"{DOLLARS} USD",
        )  # fmt: skip
        sweep.events[-1] |= {"cost_micros": DOLLARS * 10**6, "currency": "USD"}
        sweep.events[-1] |= {"elapsed_ns": HOUR}
    sweep.write_journal()


COMMANDS = {
    "runs": "completed",
    "cost summary": AMOUNT,
    "guard status --log money": f"{AMOUNT}.*",
    "sweep status sweep": " error ",
    "sweep status sweep --all": " error ",
    "prices list": "on-demand|on…|1.50",
    "prices stats": "1.5000",
}


@pytest.mark.usefixtures("books")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_row_is_a_line_on_a_narrow_terminal_and_rows_are_told_apart(words: str) -> None:
    for columns in (40, 80, 200):
        shown = in_process(*words.split(), columns=columns).out
        table = [line for line in shown.splitlines() if re.search(COMMANDS[words], line)]
        rows = [line for line in table if re.match(r" *(p\S*…|pretraining|[0-9a-f]{12} )", line)]
        assert len(rows) == 3, shown
        assert max(map(cell_len, rows)) <= columns
        firsts = {re.sub(r"^[0-9a-f]{12} ", "", line).split()[0] for line in rows}
        assert len(firsts) == 3, shown


@pytest.mark.usefixtures("books")
def test_status_cost_and_goodput_of_a_run_fit_beside_its_name_in_eighty_columns() -> None:
    head, *rows = in_process("runs", columns=80).out.splitlines()
    assert head.split()[:4] == ["run", "status", "cost", "(USD)"]
    assert "goodput" in head
    for row in rows[:3]:
        assert row.split()[1:4] == ["completed", AMOUNT, "100.0%"]
    assert rows[3].startswith("no room for: ")


@pytest.mark.usefixtures("books")
def test_a_pipe_gets_all_columns_in_full_and_json_exact_amounts() -> None:
    head, first, *_ = in_process("runs").out.splitlines()
    assert head.split() == [
        "run",
        "status",
        "attempts",
        "steps",
        "cost",
        "last",
        "seen",
        "directory",
    ]
    assert first.startswith(f"{long_name(2)}  completed")
    assert f"{DOLLARS}.00 USD" in first
    assert first.endswith(f"runs/{long_name(2)}")
    runs = in_process("runs", "--json", columns=80).json["runs"]
    assert {run["cost_micros"] for run in runs} == {DOLLARS * 10**6}


@pytest.mark.parametrize("question", [*TOPICS.values(), "a" * 36, "a" * 37])
def test_a_title_is_not_cut(
    question: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_force_terminal", True)
    for columns in (40, 80, 200):
        monkeypatch.setattr(console, "_width", columns)
        print_title(question)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
        assert " ".join(line.strip("─ ") for line in lines) == question
        assert max(map(cell_len, lines)) <= columns


def test_amounts_have_two_decimals_and_a_small_one_is_not_zero(tmp_path: Path) -> None:
    for name, per_hour in (("large", 1234.5678), ("small", 0.001234)):
        story = Segment(about={"run_id": name, "name": name, "price": dollars(per_hour)})
        story.step(3600).end().write(tmp_path / name)
    lines = in_process("runs", tmp_path, columns=80).out.splitlines()
    costs = {line.split()[0]: line.split()[2:4] for line in lines[1:3]}
    assert costs == {"large": ["1,234.57", "100.0%"], "small": ["<0.01", "100.0%"]}
    alone = in_process("runs", tmp_path / "small", columns=80).out.splitlines()[1]
    assert alone.split()[2] == "0.0012", "of a column of small amounts two digits are shown"


def test_status_has_a_colour_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Segment(about={"name": "bert"}).step(1).end("failed").write(tmp_path / "bert")
    with terminal("runs", tmp_path) as screen:
        assert screen.end() == 0
        assert "\x1b[31mfailed" in screen.raw
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal("runs", tmp_path) as screen:
        assert screen.end() == 0
        assert "failed" in screen.shown
        assert "\x1b[31m" not in screen.raw
    assert "\x1b" not in outlay("runs", tmp_path).out


def test_a_sweep_is_counts_and_what_to_look_at(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for number, elapsed_h in enumerate((1, 1, 1, 3)):
        sweep.add(f"{number:03}_a", status="completed" if number < 3 else "running")
        sweep.events[-1] |= {"elapsed_ns": elapsed_h * HOUR}
        if number == 3:
            sweep.events.insert(-1, sweep.events[-1] | {"status": "preempted"})
            sweep.events[-1] = {"t_ns": 1, "run": "003_a", "status": "running"}
    sweep.add("004_a", status="skipped", reason="the ceiling is used up")
    sweep.write_journal()
    shown = in_process("sweep", "status", tmp_path, columns=80).out
    assert shown.startswith("3 completed, 1 running, 1 skipped;")
    rows = [line.split() for line in shown.splitlines() if re.match(r"00\d_a", line)]
    assert [row[:2] for row in rows] == [["003_a", "running"], ["004_a", "skipped"]]
    assert "slow: usually 1h00m" in shown
    assert "The other 3 runs: outlay sweep status" in shown
    every = in_process("sweep", "status", tmp_path, "--all", columns=80).out
    assert len(re.findall(r"^00\d_a", every, re.MULTILINE)) == 5


def test_offers_are_grouped_by_gpu_on_a_terminal_and_flat_in_a_pipe() -> None:
    for gpu, price in (("H100", "2"), ("L40S", "1"), ("H100", "3")):
        in_process("prices", "set", gpu, f"{price} USD/h", "--provider", f"p{price}")
    grouped = in_process("prices", "list", columns=80).out.splitlines()[1:]
    assert [line.split()[0] for line in grouped] == ["L40S", "p1", "H100", "p2", "p3"]
    flat = in_process("prices", "list").out.splitlines()[1:]
    assert [line.split()[:3] for line in flat] == [
        ["p1", "1x", "L40S"], ["p2", "1x", "H100"], ["p3", "1x", "H100"],
    ]  # fmt: skip


def test_statistics_of_prices_are_grouped_by_gpu_on_a_terminal_and_flat_in_a_pipe() -> None:
    for gpu, price in (("H100", "2"), ("L40S", "1"), ("H100", "3")):
        in_process("prices", "set", gpu, f"{price} USD/h", "--provider", f"p{price}")
    heading, *grouped = in_process("prices", "stats", columns=80).out.splitlines()[:6]
    assert [line.split()[:2] for line in grouped] == [
        ["L40S"], ["p1", "1.0000"], ["H100"], ["p2", "2.0000"], ["p3", "3.0000"],
    ]  # fmt: skip
    assert "gpu" not in heading.split()
    heading, *flat = in_process("prices", "stats").out.splitlines()[:4]
    assert [line.split()[:3] for line in flat] == [
        ["p1", "L40S", "1.0000"], ["p2", "H100", "2.0000"], ["p3", "H100", "3.0000"],
    ]  # fmt: skip


@given(st.lists(st.text(max_size=40), max_size=6), st.integers(2, 30))
def test_shortened_texts_fit_and_short_ones_are_unchanged(texts: list[str], width: int) -> None:
    found = shortened(texts, width)
    assert len(found) == len(texts)
    for text, short in zip(texts, found, strict=True):
        assert cell_len(short) <= width
        if cell_len(text) <= width:
            assert short == text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["abcdefghijklmnop"], ["abcde…mnop"]),
        (["a" * 20 + "1", "a" * 20 + "2"], ["aaaaa…aaa1", "aaaaa…aaa2"]),
        (["1" + "a" * 20, "2" + "a" * 20], ["1aaaa…aaaa", "2aaaa…aaaa"]),
        ([f"{'a' * 20}{n}{'b' * 20}" for n in (1, 2)], ["aa…aaaaa1…", "aa…aaaaa2…"]),
    ],
    ids=["middle", "end", "beginning", "both sides"],
)
def test_an_ellipsis_is_where_texts_stay_different(texts: list[str], expected: list[str]) -> None:
    assert shortened(texts, 10) == expected
