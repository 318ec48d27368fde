"""Live runs as Prometheus reads them: promtool checks the page, a real Prometheus answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

import outlay
from command_line import in_process
from homes import move_home
from outlay.clock import ManualClock
from outlay.cost.run_cost import cost_of
from outlay.errors import InvalidValue
from outlay.export.live_runs import LiveReading, LiveRuns
from outlay.export.prometheus import MetricsServer, exposition, is_authorized, read_token
from outlay.goodput.follower import read_view_as_of, summarise
from outlay.guard.budget_guard import BudgetGuard
from outlay.runs.live import Run
from outlay.runs.reading import RunReading
from outlay.store import open_store
from papers import ROOT
from system_parts import missing
from waiting import PATIENCE_S, until

SECOND = 10**9
DASHBOARD = ROOT / "docs" / "howto" / "grafana-dashboard.json"
MODEL = 'a "quoted"\\model'
Labels = dict[str, str]


@dataclass
class Lab:
    """One live run, a spend log, and what reads both."""

    run: Run
    clock: ManualClock
    live: LiveRuns
    log_path: Path

    def page(self) -> str:
        return exposition(self.live.read())

    def value(self, name: str) -> float:
        (line,) = (each for each in self.page().splitlines() if each.startswith(name + "{"))
        return float(line.rpartition(" ")[2])


def train(directory: Path) -> Lab:
    clock = ManualClock()
    run = outlay.run(
        MODEL, dir=directory / "run", price="3.60 USD/h", gpus=2, clock=clock,
        budget="iso_time=1h", stopped_price="0 USD/h",
    )  # fmt: skip
    for _ in run.steps(range(5), tokens=10):
        clock.advance(10 * SECOND)
    with run.span("evaluation"):
        clock.advance(10 * SECOND)
    guard = BudgetGuard("5.00", directory / "spend.jsonl", clock=clock)
    guard.authorize("lab02-train", "2.00")
    live = LiveRuns(open_store(), [directory / "spend.jsonl"], clock=clock)
    return Lab(run, clock, live, directory / "spend.jsonl")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = train(tmp_path)
    yield made
    made.run.close()


@pytest.fixture(scope="module")
def shared_lab(homes: Iterator[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        move_home(next(homes), patch)
        made = train(tmp_path_factory.mktemp("lab"))
        yield made
        made.run.close()


@pytest.fixture(scope="module")
def prometheus(
    shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    """A real Prometheus that has scraped the page, behind a bearer token."""
    program = shutil.which("prometheus") or missing("prometheus is not installed")
    home = tmp_path_factory.mktemp("prometheus")
    (home / "token").write_text("sesame\n")
    reading = shared_lab.live.read()  # Once: other tests have other homes while it is scraped.
    server = MetricsServer(("127.0.0.1", 0), lambda: reading, read_token(home / "token"))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    port = server.server_address[1]
    (home / "prometheus.yml").write_text(
        "scrape_configs: [{job_name: outlay, scrape_interval: 200ms, scrape_timeout: 200ms, "
        f"authorization: {{credentials_file: {home}/token}}, "
        f"static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]"
    )
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: _listening(home / "log"), lambda: (home / "log").read_text())
        base = f"http://127.0.0.1:{_listening(home / 'log')}"
        with httpx2.Client(base_url=base, trust_env=False, timeout=PATIENCE_S) as client:
            until(lambda: _scraped(client), "Prometheus did not scrape outlay")
            yield client
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        server.shutdown()
        server.server_close()


def _listening(log: Path) -> int:
    """Return the port that a Prometheus was given; 0 before it says so."""
    for line in log.read_text().splitlines():
        if "Listening on" in line and "address=" in line:
            return int(line.rpartition(":")[2].strip('" '))
    return 0


def _scraped(client: httpx2.Client) -> bool:
    try:
        return bool(ask(client, "up{job='outlay'} == 1"))
    except httpx2.HTTPError:
        return False


def ask(client: httpx2.Client, query: str) -> list[tuple[Labels, float]]:
    answer: Any = client.get("/api/v1/query", params={"query": query}).raise_for_status().json()
    return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]


def check_with_promtool(page: str) -> None:
    program = shutil.which("promtool") or missing("promtool is not installed")
    done = subprocess.run(
        [program, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("price", ["3.60 USD/h", "2 EUR/h", None])
def test_promtool_finds_nothing_wrong(lab: Lab, tmp_path: Path, price: str | None) -> None:
    with outlay.run("m", dir=tmp_path / "other", price=price, gpus=0.5, clock=lab.clock) as run:
        with run.span("my own phase"):
            lab.clock.advance(SECOND)
        assert lab.page().count("outlay_run_info{") == 2
        check_with_promtool(lab.page())


def test_prometheus_returns_the_cost_of_outlay_cost(
    prometheus: httpx2.Client, shared_lab: Lab
) -> None:
    ((_, at_s),) = ask(prometheus, "outlay_run_reading_timestamp_seconds")
    cost = outlay.read_run(shared_lab.run.dir, round(at_s * 1e9)).cost.cost
    assert cost is not None
    ((_, shown),) = ask(prometheus, "outlay_run_cost_usd_total")
    assert shown == float(cost.amount)


def test_labels_arrive_as_they_are(prometheus: httpx2.Client) -> None:
    ((labels, _),) = ask(prometheus, "outlay_run_info")
    assert labels["model"] == MODEL


@pytest.mark.parametrize(
    "query",
    [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ],
)
def test_every_query_of_the_dashboard_has_an_answer(prometheus: httpx2.Client, query: str) -> None:
    assert ask(prometheus, query)


def test_every_number_is_that_of_the_instant_that_is_exported(lab: Lab) -> None:
    lab.clock.advance(7 * SECOND)  # A long step: nothing is known of what came after the last one.
    at_ns = round(lab.value("outlay_run_reading_timestamp_seconds") * 1e9)
    reading = outlay.read_run(lab.run.dir, at_ns)
    assert at_ns == lab.clock.wall_ns() - 7 * SECOND
    assert lab.value("outlay_run_goodput_ratio") == reading.goodput.goodput
    phases = [line for line in lab.page().splitlines() if "phase_seconds_total{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in phases) == pytest.approx(60)


TRAINING = """
import sys, time
import outlay
with outlay.run("m", dir=sys.argv[1], price="3600 USD/h", gpus=1) as run:
    for step in run.steps(range(run.resume_step, 10**6), start=run.resume_step, tokens=3):
        time.sleep(0.002)
        if step % 15 == 0:
            run.checkpoint_committed()
"""


def test_readings_are_consistent_and_cost_never_decreases_over_kills(
    tmp_path: Path,
) -> None:
    """Three starts, each killed in the midst of a step; looked at while it trains and between."""
    live, directory = LiveRuns(open_store()), tmp_path / "run"
    seen: list[RunReading] = []
    pages: list[float] = []

    def look(*, attempts: int = 0, tokens: int = 0) -> bool:
        """Look once; say whether the run has come that far."""
        reading = live.read()
        for run in reading.runs:
            seen.append(run)
            text = re.search(r"^outlay_run_cost_usd_total{.*} (.*)$", exposition(reading), re.M)
            assert text is not None
            pages.append(float(text[1]))
        last = [run.figures for run in reading.runs]
        return any(run.attempts >= attempts and run.tokens >= tokens for run in last)

    for attempt in (1, 2, 3):
        command = [sys.executable, "-c", TRAINING, str(directory)]
        with subprocess.Popen(command, start_new_session=True) as process:
            until(partial(look, attempts=attempt), "it did not start")
            until(partial(look, tokens=seen[-1].figures.tokens + 60), "it makes no steps")
            process.kill()
        look()
    assert pages == sorted(pages)
    assert pages[-1] > pages[0]
    for run, shown in zip(seen[::5], pages[::5], strict=True):
        view = read_view_as_of(directory, run.t_ns)  # As outlay cost and goodput saw it then.
        assert view is not None
        summary = summarise(view)
        assert run.cost == cost_of(view)
        assert run.cost.cost is not None
        assert (shown, run.figures.goodput) == (float(run.cost.cost.amount), summary.goodput)
        assert run.breakdown.phases == {row.phase: row.ns for row in summary.phases if row.ns}


def test_ceilings_are_on_the_page(lab: Lab) -> None:
    whole = f'outlay_guard_remaining_usd{{log="{lab.log_path}",scope="whole"}} 3.0'
    assert whole in lab.page()


def test_the_series_of_a_run_end_with_it(lab: Lab) -> None:
    lab.run.close()
    assert "outlay_run_" not in lab.page()


def test_an_unreadable_log_is_counted_and_runs_are_still_shown(lab: Lab) -> None:
    lab.log_path.write_text("{not a line\n")
    page = lab.page()
    assert "outlay_unreadable{} 1.0" in page
    assert "outlay_run_info" in page


def test_a_log_named_twice_or_in_bytes_that_are_no_text_gives_one_page(
    lab: Lab, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    shutil.copy(lab.log_path, odd / "spend.jsonl")
    twice = [lab.log_path, Path(os.path.relpath(lab.log_path)), odd / "spend.jsonl"]
    page = exposition(LiveRuns(open_store(), twice, clock=lab.clock).read())
    assert page.count("outlay_guard_ceiling_usd{") == 2
    assert page.encode()
    check_with_promtool(page)


def test_a_failed_scrape_says_why_and_the_next_one_succeeds() -> None:
    troubles = [OSError("the disk is gone")]

    def read() -> LiveReading:
        if troubles:
            raise troubles.pop()
        return LiveReading(t_ns=1, runs=(), guards=(), findings=())

    with MetricsServer(("127.0.0.1", 0), read) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        answers = [httpx2.get(url, trust_env=False) for _ in range(2)]
        server.shutdown()
    assert [answer.status_code for answer in answers] == [503, 200]
    assert answers[0].text == "the disk is gone\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--textfile", "outlay.txt"), "ends in .prom"),
        (("--every", "5s"), "--textfile FILE"),
        (("--port", "9", "--textfile", "a.prom"), "either --port or --textfile"),
    ],
)
def test_invalid_options_are_refused(words: tuple[str, ...], expected: str) -> None:
    done = in_process("export", "prometheus", *words)
    assert (done.code, expected in done.err) == (InvalidValue.exit_code, True)


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = in_process("export", "prometheus", "--port", str(taken.getsockname()[1]))
    assert (done.code, "a port that is free" in done.err) == (InvalidValue.exit_code, True)


@pytest.mark.parametrize(
    ("header", "allowed"), [("Bearer sesame", True), ("Bearer open", False), (None, False)]
)
def test_a_token_is_required(header: str | None, allowed: bool) -> None:
    assert is_authorized(header, "sesame") is allowed


def test_a_server_for_others_needs_a_token() -> None:
    done = in_process("export", "prometheus", "--port", "0", "--host", "0.0.0.0")
    assert done.code == InvalidValue.exit_code
    assert "--token-file" in done.err


def test_a_textfile_is_the_page(tmp_path: Path) -> None:
    done = in_process("export", "prometheus", "--textfile", tmp_path / "outlay.prom")
    assert done.code == 0
    assert "outlay_reading_timestamp_seconds" in (tmp_path / "outlay.prom").read_text()


def test_numbers_are_floats_and_phases_sum_to_the_cost(lab: Lab) -> None:
    numbers = lab.run.summary(numbers=True)
    assert {type(value) for value in numbers.values()} == {float}
    parts = [value for name, value in numbers.items() if name.startswith("outlay/cost_usd/")]
    assert sum(parts) == pytest.approx(numbers["outlay/cost_usd"])
    assert numbers["outlay/goodput"] == pytest.approx(5 / 6)
    assert numbers["outlay/budget_fraction"] == pytest.approx(50 / 3600)
    assert numbers["outlay/wasted_cost_usd"] == pytest.approx(numbers["outlay/cost_usd"] / 6)


def test_a_data_loading_span_is_data_wait(lab: Lab) -> None:
    with lab.run.span("data_loading"):
        lab.clock.advance(4 * SECOND)
    assert lab.run.summary(numbers=True)["outlay/data_wait_s"] == 4
    assert lab.run.summary()["outlay/data_wait_s"] == 4


def test_facts_are_the_texts_of_the_summary(lab: Lab) -> None:
    assert lab.run.facts() == {"outlay/run_id": lab.run.run_id, "outlay/currency": "USD"}
