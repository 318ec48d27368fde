"""Alerts: each told once until it clears, to a real webhook; what fails is tried again."""

from __future__ import annotations

import http.server
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import outlay
from command_line import in_process
from ledgers import START_NS, Segment
from offer_builder import offer
from outlay.alerts.rounds import AlertRound, AlertWatch, book_path, read_book
from outlay.clock import ManualClock
from outlay.cost.book import CostBook
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger import Heartbeat
from outlay.prices.book import PriceBook
from outlay.prices.offer import Snapshot
from outlay.runs.collect import collect
from outlay.store import open_store
from outlay.units import Money

MINUTE = 60 * 10**9


class Hook:
    """A webhook on loopback that keeps what it is sent, and answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.answer = 200
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.answer == 200:
                    hook.got.append(json.loads(body))
                self.send_response(hook.answer)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hush"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    made = Hook()
    monkeypatch.setenv("HOOK", made.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.close()


class Desk:
    """A home with rules, a clock, and the rounds of a watch."""

    def __init__(self, home: Path, clock: ManualClock, logs: tuple[Path, ...] = ()) -> None:
        self.home, self.clock = home, clock
        self.said: list[str] = []
        self.logs = logs
        self._watch = AlertWatch(self.said.append, log_paths=lambda: self.logs, clock=clock)

    def rules(self, *rules: str, to: str = "stderr = true") -> None:
        text = "".join(f"[[alerts.rule]]\n{rule}\n" for rule in rules)
        (self.home / "outlay.toml").write_text(f"[alerts.to.one]\n{to}\n{text}")

    def round(self) -> AlertRound:
        done = self._watch.round()
        assert done is not None
        return done


@pytest.fixture
def desk(private_home: Path, clock: ManualClock) -> Desk:
    private_home.mkdir(parents=True, exist_ok=True)
    return Desk(private_home, clock)


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock) -> Iterator[outlay.Run]:
    with outlay.run(
        "m", dir=tmp_path / "run", price="36 USD/h", gpus=1, clock=clock, budget="iso_time=100m"
    ) as run:
        yield run


def train(run: outlay.Run, clock: ManualClock, minutes: int) -> None:
    for _ in range(minutes):
        with run.step():
            clock.advance(MINUTE)


def test_a_threshold_is_told_once_and_the_next_one_again(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"')
    train(run, clock, 51)
    for _ in range(2):
        desk.round()
    assert desk.said == ["warning: m has used 51% of its budget (max_minutes)"]
    train(run, clock, 25)
    desk.round()
    assert desk.said[1:] == ["warning: m has used 76% of its budget (max_minutes)"]


def test_of_thresholds_passed_at_once_the_highest_is_told(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"')
    train(run, clock, 92)
    desk.round()
    assert [line.split()[4] for line in desk.said] == ["92%"]
    desk.round()
    assert len(desk.said) == 1


def test_what_cleared_and_comes_again_is_told_again(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "stall"\nfor = "5m"')
    train(run, clock, 1)
    clock.advance(6 * MINUTE)
    run.heartbeat()
    assert len(desk.round().told) == 1
    train(run, clock, 1)
    assert desk.round().alerts == ()
    clock.advance(6 * MINUTE)
    run.heartbeat()
    assert len(desk.round().told) == 1
    assert "alive and has not finished a step for" in desk.said[-1]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ('when = "burn"\nabove = "35 USD/h"', "live runs burn 36"),
        ('when = "silent"\nfor = "5m"', "gave no sign of life since"),
        ('when = "goodput"\nbelow = "60%"\nfor = "10m"', "productive for 50% of its time"),
    ],
)
def test_a_live_run_is_judged(
    desk: Desk, run: outlay.Run, clock: ManualClock, rule: str, text: str
) -> None:
    desk.rules(rule)
    assert not any(text in each.text for each in desk.round().alerts if each.when != "burn")
    train(run, clock, 10)
    with run.span("evaluation"):
        clock.advance(10 * MINUTE)
    clock.advance(6 * MINUTE)
    assert any(text in each.text for each in desk.round().alerts)


def test_a_run_that_died_is_told(desk: Desk, tmp_path: Path, clock: ManualClock) -> None:
    desk.rules('when = "silent"\nfor = "10m"')
    Segment(about={"model": "m", "name": "lost"}).step(60).write(tmp_path / "run")
    clock.advance(START_NS - clock.wall_ns() + 20 * MINUTE)
    collect(open_store(), [tmp_path / "run"], clock.wall_ns())
    (alert,) = desk.round().alerts
    assert alert.text.startswith("lost gave no sign of life since 2023-11-14")


def test_gpus_that_idle_while_the_process_lives_are_told(
    desk: Desk, tmp_path: Path, clock: ManualClock
) -> None:
    desk.rules('when = "gpus_idle"\nbelow = "5%"\nfor = "15m"')
    with outlay.run("m", dir=tmp_path / "run", clock=clock) as run:
        for busy in (MINUTE, 10 * MINUTE):
            run.recorder.append(Heartbeat(t_ns=clock.wall_ns(), gpu_busy_ns=busy))
            assert desk.round().alerts == ()
            clock.advance(16 * MINUTE)
        run.recorder.append(Heartbeat(t_ns=clock.wall_ns()))
        (alert,) = desk.round().alerts
        assert "GPUs of m were idle for 15m" in alert.text


def test_a_models_budget_and_its_forecast_are_told(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "forecast"', 'when = "budget"\nat = "50%"')
    train(run, clock, 30)
    CostBook(open_store()).set_budget("m", Money(31_000_000), clock.wall_ns())
    texts = [each.text for each in desk.round().alerts]
    assert any("m will have cost" in text and "its budget is 31" in text for text in texts)
    assert "18.00 USD of the 31.00 USD for m are spent" in texts


def test_a_ceiling_is_told_with_the_head_of_its_log(
    desk: Desk, hook: Hook, tmp_path: Path, clock: ManualClock
) -> None:
    guard = BudgetGuard("10", tmp_path / "spend.jsonl", clock=clock)
    guard.authorize("lab02-train", "8.50")
    desk.logs = (tmp_path / "spend.jsonl",)
    desk.rules('when = "ceiling"', to='webhook = "$HOOK"')
    desk.round()
    (message,) = hook.got
    assert (message["when"], message["value"], message["limit"]) == ("ceiling", 85, 80)
    assert message["heads"] == {str(tmp_path / "spend.jsonl"): guard.head}


def test_a_price_drop_is_told(desk: Desk, clock: ManualClock) -> None:
    book = PriceBook(open_store())
    for price in ("2.00", "1.50"):
        now_ns = clock.wall_ns()
        found = (offer(price, fetched_ns=now_ns),)
        book.record([Snapshot(source="test", fetched_ns=now_ns, offers=found)])
        clock.advance(MINUTE)
    desk.rules('when = "price_drop"\nby = "20%"')
    (alert,) = desk.round().alerts
    assert "fell from 2.00 USD/h to 1.50 USD/h" in alert.text


SQUEUE = """#!{python}
print("17|{start}|idle-shell")
"""


def test_an_allocation_without_a_run_is_told(
    desk: Desk, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = datetime.fromtimestamp(clock.wall_ns() / 1e9, UTC).astimezone().replace(tzinfo=None)
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(SQUEUE.format(python=sys.executable, start=start.isoformat()))
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    desk.rules('when = "no_run"\nfor = "30m"')
    clock.advance(29 * MINUTE)
    assert desk.round().alerts == ()
    clock.advance(2 * MINUTE)
    (alert,) = desk.round().alerts
    assert alert.text.startswith("Slurm job 17 (idle-shell) is paid for, and no run was seen")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with outlay.run("m", dir=tmp_path / "run", clock=clock):
        assert desk.round().alerts == ()


@pytest.mark.parametrize(
    ("shape", "key"), [("json", "text"), ("slack", "text"), ("discord", "content")]
)
def test_a_webhook_gets_the_shape_that_it_takes(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock, shape: str, key: str
) -> None:
    desk.rules('when = "budget"', to=f'webhook = "$HOOK"\nshape = "{shape}"')
    train(run, clock, 60)
    desk.round()
    assert "m has used 60% of its budget" in hook.got[0][key]


def test_what_is_refused_is_counted_and_tried_again(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"', to='webhook = "$HOOK"')
    hook.answer = 503
    train(run, clock, 60)
    done = desk.round()
    assert [each.tries for each in done.book.waiting] == [1]
    (finding,) = done.findings
    assert "1 could not be delivered in 1 tries: alert target one: it answered 503" in str(finding)
    assert "hush" not in book_path().read_text()
    hook.answer = 200
    assert desk.round().book.delivered == 1
    assert [each["when"] for each in hook.got] == ["budget"]


def test_what_nobody_takes_for_a_day_is_lost_and_counted(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"', to='webhook = "$NOT_SET"')
    train(run, clock, 60)
    assert "the variable NOT_SET is not set" in desk.round().book.trouble
    clock.advance(25 * 60 * MINUTE)
    run.heartbeat()
    assert (desk.round().book.lost, read_book().waiting) == (1, ())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # It loads imghdr.
def test_apprise_reaches_the_rest(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYWHERE", hook.url.replace("http://", "json://"))
    desk.rules('when = "budget"', to='apprise = "$ANYWHERE"')
    train(run, clock, 60)
    assert desk.round().book.trouble == ""
    assert "m has used 60% of its budget" in hook.got[0]["message"]


def test_a_file_gets_a_line_for_each(
    desk: Desk, run: outlay.Run, clock: ManualClock, tmp_path: Path
) -> None:
    desk.rules('when = "budget"', to=f'file = "{tmp_path}/below/alerts.jsonl"')
    train(run, clock, 60)
    for _ in range(2):
        desk.round()
    (line,) = (tmp_path / "below" / "alerts.jsonl").read_text().splitlines()
    assert json.loads(line)["key"].startswith("budget 50% ")


def test_check_shows_what_stands_and_tells_nobody(
    private_home: Path, tmp_path: Path, hook: Hook
) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text(
        '[alerts.to.one]\nwebhook = "$HOOK"\n[[alerts.rule]]\nwhen = "burn"\nabove = "1 USD/h"\n'
    )
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1):
        done = in_process("watch", "--check", "--json")
        assert [alert["when"] for alert in done.json["alerts"]] == ["burn"]
        assert (done.code, hook.got) == (0, [])
        for _ in range(2):
            in_process("watch", "--once")
    assert [message["when"] for message in hook.got] == ["burn"]


def test_rules_that_cannot_be_used_do_not_stop_the_watch(private_home: Path) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text('[[alerts.rule]]\nwhen = "weather"')
    done = in_process("watch", "--once")
    assert done.code == 0
    assert in_process("watch", "--check").code == 2
