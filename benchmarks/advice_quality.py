"""How often advice is right, in simulated trainings whose best change is known.

The worlds are in tests/support/advice_worlds.py, in four generations. Of each of the first three a
half on which nothing had been tuned was printed, and all of them is tuned on since. The fourth is
split by a hash of the names within each kind: whatever advice depends on is tuned on the earlier
generations and on one half of the fourth; this prints the other half as it comes, with worlds of
each kind. What it printed is in results/.

Run: python benchmarks/advice_quality.py [--seeds 20] [--faults FILE] [--tuning]

FILE, or the variable OUTLAY_FAULT_TRACE, names a trace of faults with a column ``node`` and a
column ``start_h``, such as that of a cluster which pretrains language models
(stepfun-ai/InfiniteHBD-Trace, Apache-2.0, arXiv:2502.03885). ``--tuning`` prints the other half,
and how often intervals held by cause, which is the table HELD of ``outlay.advise.recommendation``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from timing import FAULT_TRACE, leave_out, machine

from outlay.advise.run_advice import advise_run
from outlay.clock import SYSTEM, utc_text

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from advice_worlds import Outcome, judge, worlds

SEEDS = 20
LEAST_IN_BAND = 100


def share(of: Sequence[bool]) -> str:
    """Return how many of some are true, and their share."""
    return f"{sum(of)} of {len(of)} ({sum(of) / len(of):.1%})" if of else "none"


def verdict(what: str, of: Sequence[bool], low: float, high: float = 1.0) -> bool:
    """Print a share, and return whether it is where it must be."""
    is_met = bool(of) and low <= sum(of) / len(of) <= high
    bounds = f"{low:.0%} to {high:.0%}" if high < 1 else f"at least {low:.0%}"
    print(f"| {what} | {share(of)} | {bounds} | {'holds' if is_met else 'NOT REACHED'} |")
    return is_met


def show_bands(right: Iterable[Outcome]) -> None:
    """Print how often savings held, by stated confidence."""
    bands: dict[int, list[Outcome]] = defaultdict(list)
    for each in right:
        bands[int(each.confidence * 10)].append(each)
    print("\n| stated confidence | cases | stated, mean | held | |\n|---|---:|---:|---:|---|")
    for band, cases in sorted(bands.items()):
        stated = sum(each.confidence for each in cases) / len(cases)
        held = sum(each.held for each in cases) / len(cases)
        word = "within 10 points" if abs(stated - held) <= 0.1 else "NOT WITHIN 10 points"
        word = word if len(cases) >= LEAST_IN_BAND else f"{word}, of fewer than {LEAST_IN_BAND}"
        print(f"| {band / 10:.1f} to {(band + 1) / 10:.1f} | {len(cases)} | {stated:.0%} | "
              f"{held:.0%} | {word} |")  # fmt: skip


def show_causes(outcomes: Iterable[Outcome]) -> None:
    """Print how often the first saving held, by its cause; a wrong one did not."""
    causes: dict[str, list[bool]] = defaultdict(list)
    for each in outcomes:
        if each.cause:
            causes[each.cause].append(each.held)
    for cause, held in sorted(causes.items()):
        print(f"    {cause!r}: {sum(held) / len(held):.2f},  # {len(held)} cases")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--faults", default=os.environ.get(FAULT_TRACE))
    parser.add_argument("--tuning", action="store_true")
    asked = parser.parse_args()
    trace = Path(asked.faults) if asked.faults else None
    chosen = [each for each in worlds(trace) if each.is_tuned_on == asked.tuning]
    outcomes = [judge(world, seed, advise_run) for world in chosen for seed in range(asked.seeds)]
    problems = [each for each in outcomes if not each.is_healthy]
    right = [each for each in problems if each.is_right]
    half = "tuned on" if asked.tuning else "never tuned on"
    kinds = len({each.world for each in problems}), len({each.world for each in outcomes})
    print(f"{utc_text(SYSTEM.wall_ns())}, {machine()}; faults: {'a trace' if trace else 'drawn'}")
    print(f"{kinds[0]} worlds with a problem, {kinds[1] - kinds[0]} healthy, {asked.seeds} seeds; "
          f"{half}\n\n| what | cases | must be | |\n|---|---:|---:|---|")  # fmt: skip
    reached = [
        verdict("the right change first", [each.is_right for each in problems], 0.9),
        verdict("saving within a factor of 1.3", [each.is_close for each in problems], 0.75),
        verdict("truth in the 80 % interval", [each.held for each in right], 0.75, 0.92),
        verdict("healthy without a saving", [not e.title for e in outcomes if e.is_healthy], 0.97),
    ]
    show_bands(each for each in outcomes if each.title)
    print("\n| world | right | within 1.3 | in the interval |\n|---|---:|---:|---:|")
    for name in dict.fromkeys(each.world for each in problems):
        of = [each for each in problems if each.world == name]
        cells = (sum(e.is_right for e in of), sum(e.is_close for e in of), sum(e.held for e in of))
        print(f"| {name} | {' | '.join(f'{cell} of {len(of)}' for cell in cells)} |")
    for name in dict.fromkeys(e.world for e in outcomes if e.is_healthy and e.title):
        of = [each for each in outcomes if each.world == name]
        print(f"| healthy: {name} | {sum(bool(e.title) for e in of)} of {len(of)} false | | |")
    if asked.tuning:
        show_causes(outcomes)
    if trace is None:
        leave_out("advice where failures are those of a real trace", FAULT_TRACE)
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
