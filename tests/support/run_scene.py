"""A list of runs that is hard to show: long names, eight-digit amounts, two currencies, teams."""

from __future__ import annotations

import math
from pathlib import Path

from command_line import outlay
from ledgers import START_NS, Segment
from outlay.clock import SYSTEM
from outlay.ledger import EndStatus, Metric, Price

LONG = "llama-70b-pretrain-mixture-v3-lr3e-4-warmup2000-bs4096-seq8192-fsdp-seed"
"""A name of 72 characters."""
MODELS, USERS = ("llama-70b", "resnet", "policy-net"), ("ada", "grace", "alan")
TEAMS = ("language", "vision", "robotics")
STATUSES: tuple[EndStatus | None, ...] = ("completed", "failed", "preempted", "interrupted", None)
_DAY_S = 86_400


def write_runs(runs: Path, count: int = 14) -> None:
    """Write runs of the last two months, each a few hours or days long."""
    today = (SYSTEM.wall_ns() - START_NS) / 1e9
    for number in range(count):
        name = f"{LONG[: 70 if number % 3 else 72]}{'' if number % 3 == 0 else f'{number:02d}'}"
        euro = number % 7 == 3
        price = Price(
            micros_per_hour=(2_100_000 if number % 5 else 284_814_678_901),
            currency="EUR" if euro else "USD",
        )
        story = Segment(
            start=today - _DAY_S * (2 + number * 4),
            about={
                "model": MODELS[number % 3], "run_id": f"run{number:04d}", "name": name,
                "user": USERS[number % 3], "price": price, "gpus": 8,
                "gpu": "NVIDIA H100 80GB HBM3",
                "git_commit": f"{number:02x}" * 20,
                "host": f"gpu-node-{number:03d}.cluster.example.org",
                "command": ("python", "/projects/pretraining/train.py", "--lr", "3e-4"),
                "tags": {"team": TEAMS[number % 3], "project": f"project-{number % 2}"},
            },
        )  # fmt: skip
        for step in range(60):
            story.step(300 + 10 * (step % 4), wait=20 if step % 9 == 0 else 2, tokens=4_000_000)
            loss = 1.5 + 8 * math.exp(-step / 12) + 0.2 * math.sin(step * (number + 1))
            story.add(Metric(t_ns=story.now_ns, name="loss", value=loss, step=step))
            if step % 15 == 14:
                story.span("checkpoint_save", 90).checkpoint()
        if (status := STATUSES[number % len(STATUSES)]) is not None:
            story.end(status, "" if status == "completed" else "CUDA out of memory")
        story.write(runs / f"{number:03d}-{name}")


def collect_runs(runs: Path, home: Path) -> None:
    """Register the runs, as a user does."""
    assert outlay("collect", runs, OUTLAY_HOME=str(home)).code == 0
