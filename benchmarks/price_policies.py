"""What policies for moving prices cost, against always-on, greedy, and the best in hindsight.

Prices: jobs of 24, 72 and 168 hours with 2 and 3 times their time, on hourly prices drawn here and,
if a file is given, on a real history: a CSV with the columns cloud, gpu, ts, min_price_per_gpu.
The policy is the one that ``outlay guard run --offers`` builds from the 30 days before. Spot: three
families of availability drawn here. Checkpoints: if a file of faults is given (a CSV with the
columns node, start_h; made for the public trace stepfun-ai/InfiniteHBD-Trace, Apache-2.0,
arXiv:2502.03885), the interval that is advised from its first half, on its second: from the job's
own failures and, for how the rates of nodes are spread, those of all nodes.

Run: python benchmarks/price_policies.py [--prices FILE] [--faults FILE] [--scale SHARE]
The files may also be named by OUTLAY_PRICE_HISTORY and OUTLAY_FAULT_TRACE.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

from timing import FAULT_TRACE, PRICE_HISTORY, leave_out, machine

from outlay.clock import SYSTEM, utc_text
from outlay.policy.price_history import HISTORY_DAYS
from outlay.policy.simulation import PriceChange

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from price_worlds import (
    FAMILIES,
    HOUR,
    PriceTrial,
    faults_by_node,
    goodput_loss,
    histories,
    marketplace,
    pooled,
    price_trial,
    spot_result,
    starts_of,
)

WORK_H, SLACKS = (24, 72, 168), (2, 3)
SERVERS = 200  # The faults of the trace are those of this many servers.


def price_trials(found: dict[str, list[PriceChange]], starts: int) -> Iterator[PriceTrial]:
    """Yield jobs of all lengths on all series."""
    for (name, series), work_h, slack in product(found.items(), WORK_H, SLACKS):
        time_ns = work_h * slack * HOUR
        for start_ns in starts_of(series, time_ns, starts, f"{name} {work_h} {slack}"):
            yield price_trial(name, series, start_ns, work_h=work_h, slack=slack)


def show(what: str, figures: str, *, ok: bool) -> bool:
    """Print a line, and return whether its bar was reached."""
    print(f"{'ok    ' if ok else 'MISSED'} {what}: {figures}", flush=True)
    return ok


def report_prices(name: str, trials: Iterator[PriceTrial]) -> bool:
    """Print what the double threshold does on series whose prices move."""
    of = pooled(trials)
    figures = (
        f"{of.trials} starts on {of.series} series; always on {of.always_on:.1%} above the best in "
        f"hindsight, double threshold {of.policy:.1%}: {of.removed:.0%} of that removed (40 %); "
        f"above 1.10 x always on in {of.dearer:.1%} (10 %); above its ratio in {of.broken} of "
        f"{of.within} starts within the bounds (0); always on, since no price had moved in the "
        f"{HISTORY_DAYS} days before, in {of.without}"
    )
    return show(name, figures, ok=of.removed >= 0.4 and of.dearer <= 0.1 and of.broken == 0)


def report_spot(family: str, seeds: int) -> bool:
    """Print what uniform progress saves, and what greedy does."""
    every = [
        (share, spot_result(family, range(seeds), work_h=48, share=share)) for share in (0.9, 0.75)
    ]
    figures = "; ".join(
        f"C/R {share}: greedy saves {of.greedy:.1%}, uniform progress {of.uniform:.1%}, "
        f"{of.late} late"
        for share, of in every
    )
    good = all(of.uniform >= of.greedy and of.late == 0 for _, of in every)
    return show(f"spot, {family}", f"{seeds} traces; {figures}", ok=good)


def report_faults(path: Path, samples: int) -> bool:
    """Print what the advised checkpoint interval loses on the second half of a trace."""
    faults = faults_by_node(path)
    end_h = max(max(each) for each in faults.values())
    servers = [*faults.values(), *[[] for _ in range(SERVERS - len(faults))]]
    every, worst = list[bool](), 1.0
    for nodes, save_min, restart_min in product((8, 32, 64), (1, 5), (5, 30)):
        rng = random.Random(f"{nodes} {save_min} {restart_min}")
        losses = [
            goodput_loss(
                rng.sample(servers, nodes), servers, end_h,
                save_h=save_min / 60, restart_h=restart_min / 60,
            )
            for _ in range(samples)
        ]  # fmt: skip
        kept = [loss.advised <= 0.01 for loss in losses]
        informed = fmean(loss.informed <= 0.01 for loss in losses)
        alone = fmean(loss.alone <= 0.01 for loss in losses)
        every += kept
        worst = min(worst, fmean(kept))
        print(
            f"       {nodes} nodes, save {save_min} min, restart {restart_min} min: mean loss "
            f"{fmean(loss.advised for loss in losses):.2%}, at most 1 % in {fmean(kept):.0%}; with "
            f"the second half's own mean time to failure in {informed:.0%}, without the other "
            f"nodes in {alone:.0%}"
        )
    figures = (
        f"at most 1 % of goodput lost in {fmean(every):.1%} of {len(every)} samples, in the worst "
        f"case in {worst:.0%} (95 %)"
    )
    return show("checkpoint interval on a real fault trace", figures, ok=worst >= 0.95)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prices", default=os.environ.get(PRICE_HISTORY), type=Path)
    parser.add_argument("--faults", default=os.environ.get(FAULT_TRACE), type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual trials")
    options = parser.parse_args()
    scale: float = options.scale

    def some(count: int) -> int:
        return max(1, round(count * scale))

    load = os.getloadavg()[0]
    print(f"\n{utc_text(SYSTEM.wall_ns())}, {machine()}, load {load:.1f}.\n", flush=True)
    drawn = {f"drawn {seed}": marketplace(seed, 24 * 60) for seed in range(some(12))}
    good = [report_prices("hourly prices, drawn", price_trials(drawn, some(4)))]
    if options.prices:
        real = price_trials(histories(options.prices), some(8))
        good.append(report_prices("prices of a real history", real))
    good += [report_spot(family, some(300)) for family in FAMILIES]
    if options.faults:
        good.append(report_faults(options.faults, some(100)))
    if options.prices is None:
        leave_out("prices of a real history", PRICE_HISTORY)
    if options.faults is None:
        leave_out("checkpoint interval on a real fault trace", FAULT_TRACE)
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
