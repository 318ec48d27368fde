"""``outlay.run()``: one call that records a training, prices it, and stops it where it must."""

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
    """Start (or go on with) a run, to be used in a ``with`` statement.

    What is left out comes from the environment: ``OUTLAY_RUN_DIR``, ``OUTLAY_PRICE``,
    ``OUTLAY_GPUS``, ``OUTLAY_STOPPED_PRICE``, ``OUTLAY_BUDGET``, ``OUTLAY_HOLD``.
    ``OUTLAY_DISABLED=1`` makes all of it a no-op.

    The run begins with the process, where the process was started to train and this is its first
    run: imports and loading before this call are ``program_startup``.

    Args:
        model: What is trained.
        dir: Where the run log goes; reopening one is a new attempt of the same run.
        name: What to call the run; default: the model.
        gpu: The GPU model; default: what the driver says.
        gpus: How many GPUs the whole run uses, or which share of one: ``8``, ``0.5``, ``"1/7"``;
            default: those of Slurm's allocation, else the visible ones of all nodes, else the world
            size, as an assumption.
        price: Per GPU-hour, such as ``"1.50 USD/h"``, or by name: ``"lambda:8xH100"``, ``"auto"``;
            ``showback`` may follow it. Without one, money reads "no price".
        stopped_price: Per hour of the whole machine while it is stopped between attempts.
        tags: Whatever costs are to be allocated by, such as ``{"team": "nlp"}``.
        heartbeat: Records a sign of life this often in the background, such as ``"30s"``.
        budget: Where the run stops, such as ``outlay.iso_cost("5 USD")`` or ``"iso_time=2h"``.
        guard: Whose ceiling it may not pass: a ``BudgetGuard``, or the path of a spend log.
        config: What the training is configured with: a mapping, an OmegaConf node, a dataclass or
            an argparse namespace. Recorded without secrets, and shown with the run.
        rank: Of this process among those that train together; default: as torch.distributed says
            where it is initialised, else the environment (``RANK``, ``LOCAL_RANK`` with
            ``NODE_RANK``, Slurm). Where two of them differ, that is an error.
        world_size: How many they are; likewise.
        clock: The clocks to use.

    Raises:
        InvalidValue: An argument or a setting cannot be used.
        PriceFileUnusable: The price is a name, and the known prices cannot be read.
        Refused: The budget limits what nothing here can measure, or the guard has no room.
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
