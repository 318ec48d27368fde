"""What pages take: a list of 10,000 runs, a run of a million steps, runs that train; their delay.

The delay is that of a recorded step until the run's open page has it. The server is a process of
its own, asked over loopback. What a page of the long run takes is compared with `outlay goodput` of
it; the other bars are absolute.
Run: python benchmarks/web.py [list] [long] [live] [delay]
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from listing import fill
from timing import Figure, best_s, machine, row

import outlay
from outlay.ledger import AttemptEnded, AttemptStarted, Metric, Price, SegmentId, Step, encode_line
from outlay.ledger import ledger_dir as ledger_of

STEPS, LIVE, PAGES, SECONDS, ROUNDS = 1_000_000, 20, 8, 20, 5
DELAYS, TOKENS = 12, 1_000_003
START_NS, STEP_NS = 1_750_000_000_000_000_000, 10_000_000
OUTLAY = "import sys; sys.argv[0] = 'outlay'; from outlay.cli import main; main()"


@contextmanager
def serving(home: Path) -> Iterator[tuple[httpx2.Client, int]]:
    """Serve a home; yield a client that was let in, and the server's process."""
    command = [sys.executable, "-c", OUTLAY, "web", "--json", "--no-open"]
    environment = os.environ | {"OUTLAY_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=home) as server:
        assert server.stdout is not None
        said = b"".join(iter(server.stdout.readline, b"}\n"))
        url = json.loads(said + b"}")["url"]
        base = url.split("/?")[0]
        with httpx2.Client(base_url=base, follow_redirects=True, timeout=120) as client:
            client.get(url).raise_for_status()
            yield client, server.pid
        server.send_signal(signal.SIGINT)


def page(client: httpx2.Client, address: str) -> Callable[[], object]:
    return lambda: client.get(address).raise_for_status()


def write_long_run(run_dir: Path, *, logs_loss: bool) -> None:
    """Write a run of many steps; its loss is logged at each step, or never."""
    chance = random.Random(1)
    segment = SegmentId(START_NS, host="node", pid=1)
    ledger_of(run_dir).mkdir(parents=True)
    header = AttemptStarted(
        t_ns=START_NS, run_id=run_dir.name, model="m", name=run_dir.name,
        price=Price(micros_per_hour=1_500_000, currency="USD"),
    )  # fmt: skip
    with (ledger_of(run_dir) / segment.file_name).open("wb") as stream:
        stream.write(encode_line(header, 0))
        seq = itertools.count(1)
        for step in range(STEPS):
            t_ns = START_NS + (step + 1) * STEP_NS
            record = Step(t_ns=t_ns, step=step, dur_ns=STEP_NS - 1000, wait_ns=500)
            stream.write(encode_line(record, next(seq)))
            if logs_loss:
                loss = 2 + 3 * math.exp(-step / STEPS * 5) + chance.gauss(0, 0.1)
                logged = Metric(t_ns=t_ns, name="loss", value=loss, step=step)
                stream.write(encode_line(logged, next(seq)))
        end = AttemptEnded(t_ns=t_ns + 1, status="completed")
        stream.write(encode_line(end, next(seq)))


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if "VmRSS" in line)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_list(home: Path) -> None:
    with serving(home) as (client, _):
        begun = time.perf_counter()
        page(client, "/money")()
        first = time.perf_counter() - begun
        row("Money, 10,000 runs, first", first * 1e3, Figure("the bar", 1000), unit="ms", least=1)
        again = best_s(page(client, "/money"), rounds=ROUNDS)
        row("Money, 10,000 runs, again", again * 1e3, Figure("the bar", 250), unit="ms", least=1)
        page(client, "/runs")()
        opened = best_s(page(client, "/runs"), rounds=ROUNDS)
        row("Runs, 10,000 registered", opened * 1e3, Figure("the bar", 250), unit="ms", least=1)
        for query in ("q=run-042", "status=completed&sort=-cost_micros", "tag=team=nlp&page=50"):
            took = best_s(page(client, f"/runs?{query}"), rounds=ROUNDS)
            row(f"Runs?{query}", took * 1e3, Figure("the bar", 300), unit="ms", least=1)


def measure_long_run(home: Path, run_dir: Path, *, logs_loss: bool) -> None:
    write_long_run(run_dir, logs_loss=logs_loss)
    environment = os.environ | {"OUTLAY_HOME": str(home)}

    def command(*words: str) -> Callable[[], object]:
        called = [sys.executable, "-c", OUTLAY, *words]
        quiet = subprocess.DEVNULL
        return lambda: subprocess.run(called, env=environment, check=True, stdout=quiet)

    command("collect", str(run_dir))()
    cold = best_s(command("goodput", str(run_dir)), rounds=3)
    with serving(home) as (client, pid):
        begun = time.perf_counter()
        page(client, f"/run/{run_dir.name}")()
        first = time.perf_counter() - begun
        again = best_s(page(client, f"/run/{run_dir.name}"), rounds=ROUNDS)
        what = "Run of 1M steps and losses" if logs_loss else "Run of 1M steps"
        row(f"{what}, first", first * 1e3, Figure("the bar", 2000), unit="ms", least=1)
        peer = Figure("outlay goodput, cold", cold * 1e3)
        row(f"{what}, first", first * 1e3, peer, unit="ms", least=0.5)
        row(f"{what}, again", again * 1e3, Figure("the bar", 100), unit="ms", least=1)
        row("memory with it open", resident_mb(pid), Figure("the bar", 300), unit="MB", least=1)


def train(run_dir: Path, until: float) -> None:
    with outlay.run(dir=run_dir, model="live", name=run_dir.name, price="1.50 USD/h") as run:
        for _ in run.steps(range(10**9)):
            run.metric("loss", 1.0)
            time.sleep(0.1)  # noqa: TID251 - a benchmark, which takes its time
            if time.perf_counter() > until:
                break


def measure_live(home: Path, runs: Path) -> None:
    """Measure what twenty runs that train, and many open pages of them, take of a core."""
    os.environ["OUTLAY_HOME"] = str(home)
    home.mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); import time; from pathlib import Path; "
        "from web import train; train(Path(sys.argv[1]), time.perf_counter() + float(sys.argv[2]))"
    )
    here = str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(runs / f"{n:02d}"), str(SECONDS + 25), here]
        )
        for n in range(LIVE)
    ]
    with serving(home) as (client, pid):
        for _ in range(60):
            if len(client.get("/now.json").json()["running"]) == LIVE:
                break
            time.sleep(0.5)  # noqa: TID251 - see above
        for _ in range(PAGES):
            threading.Thread(target=_read_events, args=(client,), daemon=True).start()
        time.sleep(3)  # noqa: TID251 - see above
        before = cpu_s(pid)
        time.sleep(SECONDS)  # noqa: TID251 - see above
        share = (cpu_s(pid) - before) / SECONDS * 100
        name = f"{LIVE} live runs, {PAGES} pages of Now"
        row(name, share, Figure("the bar", 5), unit="% of a core", least=1)
    for process in started:
        process.wait()


def _read_events(client: httpx2.Client) -> None:
    try:
        with (
            httpx2.Client(base_url=client.base_url, cookies=client.cookies, timeout=None) as own,
            own.stream("GET", "/events/") as stream,
        ):
            for _ in stream.iter_lines():
                pass
    except httpx2.HTTPError:
        return


def measure_delay(home: Path, run_dir: Path) -> None:
    """Measure how long a recorded step takes to be in an event of its run's open page.

    Steps are recorded at different moments of the server's period, so that the slowest of them is
    what a reader waits at worst.
    """
    home.mkdir()
    os.environ["OUTLAY_HOME"] = str(home)
    delays = []
    with (
        outlay.run(dir=run_dir, model="live", price="1.50 USD/h") as run,
        serving(home) as (client, _),
        client.stream("GET", f"/events/run/{run.run_id}") as stream,
    ):
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        for number in range(1, DELAYS + 1):
            time.sleep((number - 1) * 1.5 / DELAYS)  # noqa: TID251 - see above
            run.begin_step()
            run.end_step(tokens=TOKENS)
            recorded = time.perf_counter()
            shown = f"{number * TOKENS:,}"
            next(line for line in lines if shown in line)
            delays.append(time.perf_counter() - recorded)
    for which, delay in (("best", min(delays)), ("slowest", max(delays))):
        name = f"a step to an open page, {which} of {DELAYS}"
        row(name, delay, Figure("the bar", 2), unit="s", least=1)


def main() -> None:
    print(machine())
    asked = sys.argv[1:] or ["list", "long", "live", "delay"]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if "list" in asked:
            fill(root / "many", root / "runs")
            measure_list(root / "many")
        if "long" in asked:
            measure_long_run(root / "one", root / "long", logs_loss=False)
            measure_long_run(root / "two", root / "logged", logs_loss=True)
        if "live" in asked:
            measure_live(root / "live", root / "trained")
        if "delay" in asked:
            measure_delay(root / "watched", root / "one-run")


if __name__ == "__main__":
    main()
