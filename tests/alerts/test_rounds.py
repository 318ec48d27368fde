"""Alerts: each is sent once until it clears, to a real webhook; failed deliveries are retried."""

from __future__ import annotations

import http.server
import json
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import leftovers
import outlay
from command_line import in_process
from ledgers import START_NS, Segment
from offer_builder import offer
from outlay.alerts.delivery import AlertMessage, deliver
from outlay.alerts.rounds import AlertRound, AlertWatch, read_state, state_path
from outlay.alerts.rules import AlertTarget, When
from outlay.clock import ManualClock, utc_text
from outlay.cost.cost_book import CostBook
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor, timestamp
from outlay.ledger import Heartbeat
from outlay.prices.offer import Snapshot
from outlay.prices.price_book import PriceBook
from outlay.runs.collect import collect
from outlay.store import open_store
from outlay.store.machine_lists import MachineClaim, SeenMachine, claim_machine, keep_answer
from outlay.units import Money
from slurm_cluster import squeue_line
from waiting import until
from web_server import serving

MINUTE = 60 * 10**9


class Hook:
    """A webhook on loopback that keeps its requests and answers with a set status."""

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
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

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
        self._watch = AlertWatch(self.said.append, logs=lambda: self.logs, clock=clock)

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


# Every rule: no alert, then one alert however often it is evaluated, then cleared. A scene is a
# generator with a yield for each of the three.


class Scene(NamedTuple):
    """Where a rule is tried."""

    desk: Desk
    dir: Path
    clock: ManualClock
    patch: pytest.MonkeyPatch

    def run(self, **terms: Any) -> outlay.Run:
        return outlay.run(
            "m", dir=self.dir / "run", gpus=1, clock=self.clock, price="36 USD/h", **terms
        )

    def guard(self) -> BudgetGuard:
        self.desk.logs = (self.dir / "spend.jsonl",)
        return BudgetGuard("10", self.dir / "spend.jsonl", clock=self.clock)

    def rent(self, guard: BudgetGuard, hours: int) -> Hold:
        now_ns = self.clock.wall_ns()
        rental = Rental(
            name="box", rate="2 USD/h", started=timestamp(now_ns),
            deadline=timestamp(now_ns + hours * 60 * MINUTE),
            vendor=Vendor(name="runpod", list=("true",), terminate=("true",)),
        )  # fmt: skip
        hold = guard.authorize("lab02-pod", "5", rental=rental)
        guard.note("created", hold=hold, detail={"resource": "pod-1"})
        return hold


def a_runs_budget(scene: Scene) -> Iterator[str]:
    with scene.run(budget="iso_time=100m") as run:
        train(run, scene.clock, 49)
        yield 'when = "budget"'
        train(run, scene.clock, 2)
        yield "warning: m has used 51% of its budget (max_minutes)"
    yield ""


def a_run_that_its_budget_ended_between_two_looks(scene: Scene) -> Iterator[str]:
    with scene.run(budget="iso_tokens=100tok") as run:
        yield 'when = "budget"'
        for _ in run.steps(range(9), tokens=30):
            scene.clock.advance(MINUTE)
    yield "error: m stopped at its budget: "
    scene.clock.advance(61 * MINUTE)
    yield ""


def a_models_budget(scene: Scene) -> Iterator[str]:
    book = CostBook(open_store())
    book.set_budget("m", Money(100_000_000), 1)
    with scene.run() as run:
        train(run, scene.clock, 30)
        yield 'when = "budget"\nat = "50%"'
        book.set_budget("m", Money(31_000_000), 2)
        yield "warning: 18.00 USD of the 31.00 USD for m are spent"
        book.set_budget("m", Money(100_000_000), 3)
        yield ""


def a_forecast(scene: Scene) -> Iterator[str]:
    book = CostBook(open_store())
    book.set_budget("m", Money(100_000_000), 1)
    with scene.run(budget="iso_time=100m") as run:
        train(run, scene.clock, 30)
        yield 'when = "forecast"'
        book.set_budget("m", Money(31_000_000), 2)
        yield "warning: m will have cost 60.00 USD when its runs stop (estimated); its budget is 31"
        book.set_budget("m", Money(100_000_000), 3)
        yield ""


def a_burn_rate(scene: Scene) -> Iterator[str]:
    yield 'when = "burn"\nabove = "35 USD/h"'
    with scene.run():
        yield "warning: 36.00 USD/h are burnt now, more than 35.00 USD/h (36.00 USD/h)"
    yield ""


def a_run_that_is_silent(scene: Scene) -> Iterator[str]:
    with scene.run() as run:
        yield 'when = "silent"\nfor = "5m"'
        scene.clock.advance(6 * MINUTE)
        yield "error: m gave no sign of life since"
        run.heartbeat()
        yield ""


def a_run_that_died(scene: Scene) -> Iterator[str]:
    yield 'when = "silent"\nfor = "10m"'
    Segment(about={"model": "m", "name": "lost"}).step(60).write(scene.dir / "run")
    scene.clock.advance(START_NS - scene.clock.wall_ns() + 20 * MINUTE)
    collect(open_store(), [scene.dir / "run"], scene.clock.wall_ns())
    yield "error: lost gave no sign of life since 2023-11-14"
    scene.clock.advance(25 * 60 * MINUTE)
    yield ""


def a_run_that_stalls(scene: Scene) -> Iterator[str]:
    with scene.run() as run:
        train(run, scene.clock, 1)
        yield from no_step_for_six_minutes(scene, run)


def a_resume_that_reaches_no_step(scene: Scene) -> Iterator[str]:
    with scene.run() as run:
        train(run, scene.clock, 1)
        scene.clock.advance(60 * MINUTE)
    with scene.run() as run:
        yield from no_step_for_six_minutes(scene, run)


def no_step_for_six_minutes(scene: Scene, run: outlay.Run) -> Iterator[str]:
    yield 'when = "stall"\nfor = "5m"'
    scene.clock.advance(6 * MINUTE)
    run.heartbeat()
    yield "warning: m is alive and has not finished a step for 6m"
    train(run, scene.clock, 1)
    yield ""


def a_low_goodput(scene: Scene) -> Iterator[str]:
    with scene.run() as run:
        train(run, scene.clock, 10)
        yield 'when = "goodput"\nbelow = "60%"\nfor = "10m"'
        with run.span("evaluation"):
            scene.clock.advance(10 * MINUTE)
        yield "warning: m was productive for 50% of its time, below 60 %"
        train(run, scene.clock, 10)
        yield ""


def gpus_that_idle(scene: Scene) -> Iterator[str]:
    with scene.run() as run:

        def beat(busy_ns: int) -> None:
            run.recorder.append(Heartbeat(t_ns=scene.clock.wall_ns(), gpu_busy_ns=busy_ns))

        beat(MINUTE)
        yield 'when = "gpus_idle"\nbelow = "5%"\nfor = "15m"'
        scene.clock.advance(16 * MINUTE)
        beat(0)
        yield "warning: the GPUs of m were idle for 15m"
        scene.clock.advance(16 * MINUTE)
        beat(10 * MINUTE)
        yield ""


def an_allocation_without_a_run(scene: Scene) -> Iterator[str]:
    start = str(scene.clock.wall_ns() // 10**9)
    line = squeue_line("40", "4", start=start, name="idle-shell")
    program = scene.dir / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(stat.S_IRWXU)
    scene.patch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    scene.clock.advance(29 * MINUTE)
    yield 'when = "no_run"\nfor = "30m"'
    scene.clock.advance(2 * MINUTE)
    yield "error: Slurm job 40_4 (idle-shell) is paid for, and had no run for 31m"
    for name, number in {"JOB_ID": "41", "ARRAY_JOB_ID": "40", "ARRAY_TASK_ID": "4"}.items():
        scene.patch.setenv(f"SLURM_{name}", number)
    with scene.run():
        yield ""


def a_rental_without_a_run(scene: Scene) -> Iterator[str]:
    scene.rent(scene.guard(), hours=24)
    scene.clock.advance(29 * MINUTE)
    yield 'when = "no_run"'
    scene.clock.advance(2 * MINUTE)
    yield "error: rental pod-1 is paid for at 2 USD/h, and had no run for 31m"
    scene.patch.setenv("RUNPOD_POD_ID", "pod-1")
    with scene.run():
        yield ""


def a_machine_that_nobody_claims(scene: Scene) -> Iterator[str]:
    store, since_ns = open_store(), scene.clock.wall_ns()
    pod = SeenMachine(kind="machine", id="x9f", since_ns=since_ns, rate="2 USD/h")
    keep_answer(store, "runpod", [pod])
    yield 'when = "unclaimed"\nfor = "10m"'
    scene.clock.advance(11 * MINUTE)
    yield f"error: runpod x9f since {utc_text(since_ns)[:16]}Z at 2.00 USD/h is claimed by nobody"
    claim_machine(store, MachineClaim(source="runpod", machine="x9f", user="ana"))
    yield ""


def a_price_drop(scene: Scene) -> Iterator[str]:
    def fetch(price: str) -> None:
        scene.clock.advance(MINUTE)
        now_ns = scene.clock.wall_ns()
        found = (offer(price, fetched_ns=now_ns),)
        PriceBook(open_store()).record([Snapshot(source="test", fetched_ns=now_ns, offers=found)])

    fetch("2.00")
    fetch("1.90")
    yield 'when = "price_drop"\nby = "20%"'
    fetch("1.50")
    yield "warning: H100 at acme fell from 1.90 USD/h to 1.50 USD/h"
    scene.clock.advance(25 * 60 * MINUTE)
    yield ""


def an_overdue_rental(scene: Scene) -> Iterator[str]:
    guard = scene.guard()
    hold = scene.rent(guard, hours=1)
    yield 'when = "overdue"'
    scene.clock.advance(61 * MINUTE)
    yield "error: pod-1 (lab02-pod) should have ended at"
    guard.settle_rental(hold, Money(2_000_000), "the vendor lists it no more")
    yield ""


def a_ceiling(scene: Scene) -> Iterator[str]:
    guard = scene.guard()
    guard.authorize("lab02-train", "7.50")
    yield 'when = "ceiling"'
    more = guard.authorize("lab03-train", "1.00")
    yield "warning: 8.50 USD of the 10.00 USD for whole are spent or held"
    guard.void(more, "not needed")
    yield ""


SCENES: list[Callable[[Scene], Iterator[str]]] = [
    a_runs_budget, a_run_that_its_budget_ended_between_two_looks, a_models_budget, a_forecast,
    a_burn_rate, a_run_that_is_silent, a_run_that_died, a_run_that_stalls,
    a_resume_that_reaches_no_step, a_low_goodput, gpus_that_idle, an_allocation_without_a_run,
    a_rental_without_a_run, a_machine_that_nobody_claims, a_price_drop, an_overdue_rental,
    a_ceiling,
]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_every_rule_is_quiet_then_sent_once_then_clears(
    desk: Desk,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    scene: Callable[[Scene], Iterator[str]],
) -> None:
    story = scene(Scene(desk, tmp_path, clock, monkeypatch))
    desk.rules(next(story))
    assert desk.round().sent == ()
    expected = next(story)
    told = [desk.round().sent for _ in range(3)]
    assert [len(each) for each in told] == [1, 0, 0]
    next(story)
    assert desk.round().alerts == ()
    (line,) = (line for line in desk.said if line.startswith(("warning: ", "error: ")))
    assert line.startswith(expected)


def test_every_rule_has_a_scene() -> None:
    source = Path(__file__).read_text()
    assert [when for when in get_args(When) if f'yield \'when = "{when}"' not in source] == [
        "digest"
    ]


def test_each_next_threshold_is_sent_and_of_several_only_the_highest(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"')
    for minutes in (51, 41):
        train(run, clock, minutes)
        desk.round()
    assert [line.split()[4] for line in desk.said] == ["51%", "92%"]


def test_an_alert_that_cleared_is_sent_again_when_it_returns(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "stall"\nfor = "5m"')
    for _ in range(2):
        train(run, clock, 1)
        assert desk.round().alerts == ()
        clock.advance(6 * MINUTE)
        run.heartbeat()
        assert len(desk.round().sent) == 1


def test_two_rules_of_one_kind_go_to_their_own_targets(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock
) -> None:
    (desk.home / "outlay.toml").write_text(
        """
        [alerts.to.log]
        stderr = true
        [alerts.to.boss]
        webhook = "$HOOK"
        [[alerts.rule]]
        when = "stall"
        for = "5m"
        to = ["log"]
        [[alerts.rule]]
        when = "stall"
        for = "1h"
        to = ["boss"]
        """
    )
    train(run, clock, 1)
    clock.advance(6 * MINUTE)
    run.heartbeat()
    desk.round()
    assert (len(desk.said), hook.got) == (1, [])
    clock.advance(60 * MINUTE)
    run.heartbeat()
    desk.round()
    assert (len(desk.said), len(hook.got)) == (1, 1)


def test_an_alert_has_the_head_of_every_spend_log(
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


# Delivery


@pytest.mark.parametrize(
    ("shape", "key"), [("json", "text"), ("slack", "text"), ("discord", "content")]
)
def test_a_webhook_gets_its_shape_of_json(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock, shape: str, key: str
) -> None:
    desk.rules('when = "budget"', to=f'webhook = "$HOOK"\nshape = "{shape}"')
    train(run, clock, 60)
    desk.round()
    assert "m has used 60% of its budget" in hook.got[0][key]


def test_a_name_in_an_alert_pings_nobody(
    desk: Desk, hook: Hook, tmp_path: Path, clock: ManualClock
) -> None:
    for shape, quiet in (("slack", "&lt;!channel&gt; @everyone"), ("discord", "<!channel>")):
        with outlay.run(
            "m", name="<!channel> @everyone", dir=tmp_path / shape, price="36 USD/h", gpus=1,
            budget="iso_tokens=100tok", clock=clock,
        ) as run:  # fmt: skip
            for _ in run.steps(range(2), tokens=90):
                clock.advance(MINUTE)
            desk.rules('when = "budget"', to=f'webhook = "$HOOK"\nshape = "{shape}"')
            desk.round()
        assert quiet in str(hook.got[-1])
    assert hook.got[-1]["allowed_mentions"] == {"parse": []}


def test_a_failed_delivery_is_counted_and_retried(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"', to='webhook = "$HOOK"')
    hook.answer = 503
    train(run, clock, 60)
    done = desk.round()
    assert [each.tries for each in done.state.waiting] == [1]
    trouble = "1 not delivered yet, retried every round: alert target one: it answered 503"
    assert [trouble in line for line in desk.said] == [True]
    assert "hush" not in state_path().read_text()
    hook.answer = 200
    assert desk.round().state.delivered == 1
    assert [each["when"] for each in hook.got] == ["budget"]


def test_a_target_that_never_answers_times_out(
    desk: Desk, run: outlay.Run, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("DEAF", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setattr("outlay.alerts.delivery._LONGEST_S", 0.2)
        desk.rules('when = "budget"', to='webhook = "$DEAF"')
        train(run, clock, 60)
        assert "it did not answer within" in desk.round().state.trouble


def test_a_killed_round_repeats_only_the_message_it_was_sending(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"', 'when = "burn"\nabove = "1 USD/h"', to='webhook = "$HOOK"')
    train(run, clock, 60)
    with pytest.MonkeyPatch.context() as patch:
        sent: list[str] = []

        def killed(target: AlertTarget, message: AlertMessage, **how: Any) -> None:
            sent.append(message.when)
            if len(sent) == 2:
                raise KeyboardInterrupt
            deliver(target, message, **how)

        patch.setattr("outlay.alerts.rounds.deliver", killed)
        with pytest.raises(KeyboardInterrupt):
            desk.round()
    desk.round()
    assert [each["when"] for each in hook.got] == ["budget", "burn"]


def test_a_failing_digest_does_not_block_alerts(
    desk: Desk, run: outlay.Run, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("outlay.report.digest.read_digest", broken)
    desk.rules('when = "budget"', 'when = "digest"')
    train(run, clock, 60)
    for _ in range(2):
        desk.round()
    assert [line.partition(":")[0] for line in desk.said] == ["warning", "digest"]


def test_the_web_server_evaluates_the_rules_too(
    tmp_path: Path, private_home: Path, hook: Hook
) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text(
        '[alerts.to.one]\nwebhook = "$HOOK"\n[[alerts.rule]]\nwhen = "burn"\nabove = "1 USD/h"\n'
    )
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1), serving(private_home):
        until(lambda: hook.got, "the web server sent nothing")
    assert [message["when"] for message in hook.got] == ["burn"]


def test_a_message_undelivered_for_a_day_is_dropped_and_counted(
    desk: Desk, run: outlay.Run, clock: ManualClock
) -> None:
    desk.rules('when = "budget"', to='webhook = "$NOT_SET"')
    train(run, clock, 60)
    assert "the variable NOT_SET is not set" in desk.round().state.trouble
    clock.advance(25 * 60 * MINUTE)
    run.heartbeat()
    assert (desk.round().state.lost, read_state().waiting) == (1, ())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # It loads imghdr.
def test_apprise_delivers(
    desk: Desk, hook: Hook, run: outlay.Run, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYWHERE", hook.url.replace("http://", "json://"))
    desk.rules('when = "budget"', to='apprise = "$ANYWHERE"')
    train(run, clock, 60)
    with leftovers.wider():  # Apprise keeps its pool of threads.
        assert desk.round().state.trouble == ""
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


def test_check_shows_active_alerts_and_sends_nothing(
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
        assert "`outlay watch --install` sends alerts" in done.json["findings"][-1]["message"]
        for _ in range(2):
            in_process("watch", "--once")
    assert [message["when"] for message in hook.got] == ["burn"]


CRONTAB = """#!/bin/sh
[ "$1" = -l ] && exec /bin/cat {table}
exec /bin/cat > {table}
"""


def test_a_watch_under_cron_finds_rules_and_addresses(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, table = tmp_path / "a home", tmp_path / "table"
    home.mkdir()
    (tmp_path / "rules.toml").write_text(
        '[alerts.to.one]\nwebhook = "$HOOK"\n[[alerts.rule]]\nwhen = "burn"\nabove = "1 USD/h"\n'
    )
    (home / "watch.env").write_text(f'HOOK="{hook.url}"\n')
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB.format(table=table))
    program.chmod(stat.S_IRWXU)
    table.write_text("")
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("OUTLAY_HOME", str(home))
    monkeypatch.setenv("OUTLAY_CONFIG", str(tmp_path / "rules.toml"))
    said = in_process("watch", "--install")
    assert (said.code, "HOOK" in said.out, hook.url in said.out) == (0, True, False)
    (line,) = table.read_text().splitlines()
    assert hook.url not in line
    command = line.removeprefix("*/5 * * * * ").replace("\\%", "%")
    with outlay.run("m", dir=tmp_path / "run", price="36 USD/h", gpus=1):
        subprocess.run(["/bin/sh", "-c", command], env={}, check=True)
    assert [message["when"] for message in hook.got] == ["burn"]


def test_invalid_rules_do_not_stop_the_watch(private_home: Path) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text('[[alerts.rule]]\nwhen = "weather"')
    done = in_process("watch", "--once")
    assert done.code == 0
    assert in_process("watch", "--check").code == 2
