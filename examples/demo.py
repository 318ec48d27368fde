"""The main job in small: a real training, killed half-way, resumed, and its books shown.

Run it with ``make demo``. It needs no torch, no account and no network.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from outlay.cli.goodput import render
from outlay.cli.output import console
from outlay.clock import SYSTEM
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.summary import summarise
from outlay.ledger import Metric, read_run

HERE = Path(__file__).parent
RUN = Path("demo-runs") / "spirals"
STEPS = 1500
PRICE = "2.50 USD/h"


def main() -> int:
    """Run the demo and return its exit code."""
    shutil.rmtree(RUN, ignore_errors=True)
    console.rule("1. A training, killed in its middle")
    killed = _train("--kill-at", str(STEPS // 2 + 30))
    console.print(f"It died of {signal.Signals(-killed).name}, without a word.")
    console.rule("2. The same command again: it goes on from its last checkpoint")
    if _train() != 0:
        console.print("[red]The second attempt failed.[/red]")
        return 1
    for metric in _last_metrics():
        console.print(f"step {metric.step}: {metric.name} {metric.number:.4f}")
    console.rule(f"3. What the run log says of it, at an invented price of {PRICE} per GPU")
    console.print(render(summarise(GoodputFollower(RUN).view(SYSTEM.wall_ns()))))
    console.rule("Try next")
    console.print(f"  .venv/bin/outlay ledger verify {RUN}")
    console.print(f"  .venv/bin/outlay ledger cat {RUN} | head")
    console.print('  .venv/bin/outlay exec --price "1.50 USD/h" -- python your_own_train.py')
    return 0


def _train(*more: str) -> int:
    arguments = ["--dir", str(RUN), "--steps", str(STEPS), "--price", PRICE, *more]
    console.print(f"$ python examples/mlp.py {' '.join(arguments)}", markup=False)
    return subprocess.run(
        [sys.executable, str(HERE / "mlp.py"), *arguments], check=False
    ).returncode


def _last_metrics() -> list[Metric]:
    metrics = [record for record in read_run(RUN).records if isinstance(record, Metric)]
    return metrics[-2:]


if __name__ == "__main__":
    sys.exit(main())
