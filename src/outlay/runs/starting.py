"""``outlay.run()``: starts recording a training run, with its price and limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.runs.live import Run
from outlay.runs.options import Arguments, resolve


def run(
    model: str,
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    gpus: object = None,
    price: object = None,
    stopped_price: object = None,
    tags: Mapping[str, str] | None = None,
    heartbeat: object = None,
    budget: object = None,
    guard: object = None,
    config: object = None,
    rank: int | None = None,
    world_size: int | None = None,
    clock: Clock = SYSTEM,
) -> Run:
    """Start or resume a run; use it in a ``with`` statement.

    Defaults come from the environment: ``OUTLAY_RUN_DIR``, ``OUTLAY_PRICE``,
    ``OUTLAY_GPUS``, ``OUTLAY_STOPPED_PRICE``, ``OUTLAY_BUDGET``, ``OUTLAY_HOLD``.
    ``OUTLAY_DISABLED=1`` makes the run a no-op.

    If the process was started to train and this is its first run, the run begins with the process:
    imports and loading before this call are ``program_startup``.

    Args:
        model: The name of the model that is trained.
        dir: The run's directory; an existing one gets a new attempt of the same run.
        name: The run's name; default: the model.
        gpu: The GPU model; default: as the driver reports it.
        gpus: The number of GPUs of the whole run, or a share of one: ``8``, ``0.5``, ``"1/7"``;
            default: those of Slurm's allocation, else the visible ones of all nodes, else the world
            size, as an assumption.
        price: Per GPU-hour, such as ``"1.50 USD/h"``, or by name: ``"lambda:8xH100"``, ``"auto"``;
            ``showback`` may follow it. Without one, money reads "no price".
        stopped_price: Per hour of the whole machine while it is stopped between attempts.
        tags: Labels for cost allocation, such as ``{"team": "nlp"}``.
        heartbeat: The interval of background heartbeats, such as ``"30s"``; default: none.
        budget: The limits that stop the run, such as ``outlay.iso_cost("5 USD")`` or
            ``"iso_time=2h"``.
        guard: The guard whose ceiling applies: a ``BudgetGuard``, or the path of a spend log.
        config: The training's configuration: a mapping, an OmegaConf node, a dataclass or an
            argparse namespace. Recorded without secrets, and shown with the run.
        rank: The rank of this process; default: from torch.distributed if initialised, else the
            environment (``RANK``, ``LOCAL_RANK`` with ``NODE_RANK``, Slurm). If two of these
            differ, that is an error.
        world_size: The number of processes that train together; default: likewise.
        clock: The clocks to use.

    Raises:
        InvalidValue: An argument or an environment variable is not valid.
        PriceFileUnusable: The price is a name, and the price file cannot be read.
        Refused: Something that the budget limits cannot be measured here, or the guard refuses.
        RunInUse: A live process records this rank of this run already.
    """
    if model is None:
        raise InvalidValue("model", model, "a non-empty name")
    arguments = Arguments(
        model=model, dir=dir, name=name, gpu=gpu, gpus=gpus, price=price,
        stopped_price=stopped_price, tags=tags, heartbeat=heartbeat, budget=budget, guard=guard,
        config=config, rank=rank, world_size=world_size,
    )  # fmt: skip
    return Run(resolve(arguments, os.environ, clock.wall_ns()), clock)
