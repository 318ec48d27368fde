"""The demo's grid: three sizes of network, two seeds each, for the same money. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outlay.units import Money

PRICE: Final = "3600 USD/h"
JOBS: Final = 2
LEAST: Final = Money(2_000_000)
"""What a run needs: a second or two of it goes by before its first step."""
TARGET: Final = "target_metric: accuracy, target_value: 0.9"


@dataclass(frozen=True, slots=True)
class Stakes:
    """What the demo plays for.

    Attributes:
        limit: What each of the six runs may spend.
    """

    limit: Money

    @property
    def ceiling(self) -> Money:
        """What all of it may cost: room for the six, for what goes wrong, and for no seventh."""
        return self.limit * 20

    @property
    def too_much(self) -> Money:
        """What the seventh run asks for; what the six spend leaves less."""
        return self.limit * 18

    @property
    def mishap_at(self) -> Money:
        """After what a run is killed, or loses its machine: early, as a new start costs too."""
        return Money(self.limit.micros // 5, self.limit.currency)


def grid_text(stakes: Stakes) -> str:
    """Return the grid as YAML."""
    return f"""\
# Written by `outlay demo`. Which size of network is best for the same money?
name: demo
engine: process
arguments: flags                    # parameters become --hidden 16 and so on
entrypoint: -m outlay.demo.mlp --dir {{run_dir}} --steps 1000000 --turns 5 --learning-rate 0.1
price: {PRICE}                   # invented: as if 1,440 GPUs at 2.50 USD/h, a dollar a second
ceiling: {stakes.ceiling}
retries: 1                          # a run that is killed goes on from its last checkpoint
env: {{OMP_NUM_THREADS: 1, OPENBLAS_NUM_THREADS: 1}}   # two runs at once share the cores
# Starting up is paid for and not charged, so that all sizes train for the same money.
budget: {{mode: iso_cost, limit: {stakes.limit}, charge: training, {TARGET}}}
grid:
  - name: size
    params: {{hidden: [16, 64, 192]}}
    seeds: [1, 2]
  - name: greedy                    # a seventh run, which the ceiling has no room for
    params: {{hidden: 512}}
    budget: {{mode: iso_cost, limit: {stakes.too_much}, charge: training, {TARGET}}}
"""
