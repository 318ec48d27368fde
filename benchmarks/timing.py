"""What every benchmark shares: the best of several rounds, ratios, and a table of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outlay.clock import SYSTEM, utc_text


@dataclass(frozen=True, slots=True)
class Timing:
    """The best time of one call, in seconds."""

    name: str
    seconds: float


def compare(works: Mapping[str, Callable[[], object]], *, calls: int, rounds: int) -> list[Timing]:
    """Time every work in every round and keep its best, so that a busy moment hits all alike.

    Args:
        works: What to time; each runs ``calls`` calls when called.
        calls: How many calls one work stands for.
        rounds: How often each work is run.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], (time.perf_counter() - begun) / calls)
    return [Timing(name, seconds) for name, seconds in best.items()]


def best_s(work: Callable[[], object], *, rounds: int) -> float:
    """Return the shortest of several times that some work took, in seconds."""
    return compare({"": work}, calls=1, rounds=rounds)[0].seconds


def machine() -> str:
    """Return what the figures were measured on."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} cores, {python}, load {load}"


def show(title: str, timings: list[Timing], *, unit: str, scale: float, base: int = 0) -> None:
    """Print each time and its ratio to the ``base``-th, as a table in Markdown."""
    print(f"\n### {title}\n")
    print(f"{utc_text(SYSTEM.wall_ns())}, {machine()}; best of several rounds.\n")
    print(f"| what | {unit} | times {timings[base].name} |\n|---|---:|---:|")
    for timing in timings:
        ratio = timing.seconds / timings[base].seconds
        print(f"| {timing.name} | {timing.seconds * scale:.3f} | {ratio:.2f} |")


ROW = "row: "
UNEXPLAINED = "NOT REACHED, and no reason is stated"
PRICE_HISTORY, FAULT_TRACE = "OUTLAY_PRICE_HISTORY", "OUTLAY_FAULT_TRACE"
"""Name files of real data, which are not in the repository."""
LEFT_OUT = "LEFT OUT: "


def leave_out(claim: str, variable: str) -> None:
    """Print that a claim was not measured for lack of a file; ``run_all`` says so at its end."""
    print(f"{LEFT_OUT}{claim}, since {variable} names no file", flush=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One side of a comparison: whose figure it is, and how much."""

    whose: str
    value: float


def row(
    what: str,
    ours: float,
    peer: Figure,
    *,
    unit: str,
    least: float | None = None,
    why: str = "",
) -> None:
    """Print a row for the table of all benchmarks; ``run_all`` gathers them.

    Args:
        what: What was measured.
        ours: outlay's figure; the smaller, the better.
        peer: What people use instead, and its figure.
        unit: Of both.
        least: How many times the peer's figure must be of ours, where something was promised.
        why: Why that stays the bar although it is not reached.
    """
    ratio = peer.value / ours
    asked = "" if least is None else f"{least:.3g}"
    word = "" if least is None else _word(why, holds=ratio >= least)
    figures = [f"{_digits(value)} {unit}" for value in (ours, peer.value)]
    cells = (what, figures[0], peer.whose, figures[1], _digits(ratio))
    print(f"{ROW}| {' | '.join([*cells, asked, word])} |")


def _digits(value: float) -> str:
    """Return three digits of a figure, or all that stand before its point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _word(why: str, *, holds: bool) -> str:
    return "holds" if holds else f"NOT REACHED: {why}" if why else UNEXPLAINED


def verdict(claim: str, value: float, limit: float, *, why: str = "") -> None:
    """Print whether a claim holds in this run; ``why`` as in ``row``."""
    print(f"\n{claim}: {value:.2f} (limit {limit:g}): {_word(why, holds=value <= limit)}")
