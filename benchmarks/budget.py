"""What a budget costs a training: one update, flat in the number of steps, and ranks' agreements.

    python benchmarks/budget.py

Prints microseconds of ``update`` + ``should_stop`` beside a tracker that does nothing but add
floats, what a budget adds to a recorded step, and the share of 20 ms steps that two gloo ranks
spend on agreeing, beside one all-reduce every step. Every figure is the best of many short repeats,
all of one run: a busy machine interrupts long ones.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timing
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import outlay
from outlay.budget.agreement import RankAgreement, TorchGroup
from outlay.budget.terms import Budget, iso_tokens
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.clock import SYSTEM
from outlay.sweep.engines.ports import Ports

CALLS = 200
REPEATS = 1_000
STEP_S = 0.020
STEPS = 150


class FloatTracker:
    """The least a tracker can do: add floats and compare one of them."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(("tokens", "time_ms", "comm_bytes", "energy_Wh"), 0.0)

    def update(self, tokens: int, wall_ms: float, comm_bytes: int, energy_wh: float) -> None:
        """Add."""
        self.totals["tokens"] += tokens
        self.totals["time_ms"] += wall_ms
        self.totals["comm_bytes"] += comm_bytes
        self.totals["energy_Wh"] += energy_wh

    def should_stop(self) -> bool:
        """Compare."""
        return self.totals["tokens"] >= 1e15


def best_us(update: Callable[..., None], should_stop: Callable[[], bool]) -> float:
    """Return microseconds of one update and one should_stop, best of the repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            update(4096, 20.5, 1000, 0.001)
            should_stop()
        best = min(best, time.perf_counter() - begun)
    return best / CALLS * 1e6


def show_updates() -> None:
    limits = {"max_tokens": 10**15, "max_minutes": 10**7, "max_cost_usd": 10**6}
    tracker = BudgetTracker("iso_tokens", limits, rate="1.5 USD/h")
    bare = FloatTracker()
    print(f"{'after steps':>12} {'outlay us':>10} {'floats us':>10} {'ratio':>6}")
    for target in (0, 1_000_000):
        while tracker.totals["steps"] < target:
            tracker.update(4096, 20.5, 1000, 0.001)
        ours, floats = (
            best_us(tracker.update, tracker.should_stop),
            best_us(bare.update, bare.should_stop),
        )
        print(f"{target:>12,} {ours:>10.2f} {floats:>10.2f} {ours / floats:>6.1f}")
        peer = timing.Figure("the promised 3 us", 3.0)
        timing.row(f"update + should_stop after {target:,} steps", ours, peer, unit="us", least=1)


def step_us(directory: Path, budget: Budget | None) -> float:
    """Return microseconds of an empty step inside run.steps, best of the repeats."""
    best = float("inf")
    with outlay.run("bench", dir=directory, budget=budget, price="1.5 USD/h") as run:
        for _ in range(REPEATS):
            begun = time.perf_counter()
            for _ in run.steps(range(CALLS), tokens=4096):
                pass
            best = min(best, time.perf_counter() - begun)
    return best / CALLS * 1e6


def show_steps() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"OUTLAY_PROGRESS": "0", "OUTLAY_HOME": directory}
        without = step_us(Path(directory) / "without", None)
        budgeted = step_us(Path(directory) / "with", iso_tokens(10**12, max_cost_usd=10**6))
    print(
        f"a step in run.steps(): {without:.1f} us without, {budgeted:.1f} us with a budget, ",
        end="",
    )
    print(f"which adds {(budgeted - without) / (STEP_S * 1e6):.3%} to a 20 ms step")


def train(rank: int, port: int, result: str) -> None:
    """Run 20 ms steps on one rank: with either kind of agreement, then with a bare all-reduce."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    lines = []
    for name in (
        "agreements",
        "tokens of the batch",
        "the same, at the end",
        "all-reduce every step",
    ):
        tracker = BudgetTracker.of(iso_tokens(4096 * 8 * STEPS if "end" in name else 10**12))
        agreement = RankAgreement(TorchGroup(), tracker, SYSTEM)
        agreement.steady = name == "agreements"
        ask = _all_reduce if name == "all-reduce every step" else agreement.before_step
        shares = [_share(ask, agreement, tracker) for _ in range(3)]
        met = agreement.gathers if ask == agreement.before_step else 3 * STEPS
        lines.append(f"{name:>22}: {min(shares):.3%} of a 20 ms step, {met} in {3 * STEPS} steps")
    if rank == 0:
        Path(result).write_text("\n".join(lines))
    dist.destroy_process_group()


def _all_reduce(step: Usage) -> None:
    dist.all_reduce(torch.tensor([float(step.tokens)]))


def _share(
    ask: Callable[[Usage], object], agreement: RankAgreement, tracker: BudgetTracker
) -> float:
    usage, asking_s = Usage(tokens=4096, steps=1, time_ns=round(STEP_S * 1e9)), 0.0
    for _ in range(STEPS):
        # The ranks set out together, so that waiting for the other is not taken for a cost.
        dist.barrier()
        begun = time.perf_counter()
        ask(usage)
        asking_s += time.perf_counter() - begun
        SYSTEM.sleep(STEP_S)  # stands for the step's work
        tracker.count(usage)
        agreement.record_step(usage)
    return asking_s / (STEPS * STEP_S)


def show_agreements() -> None:
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result"
        spawn(train, (Ports().reserve(), str(result)), nprocs=2)  # type: ignore[no-untyped-call]
        print(result.read_text())


if __name__ == "__main__":
    print(f"{timing.machine()}, torch {torch.__version__}")
    show_updates()
    show_steps()
    show_agreements()
