"""The command and the environment of a planned run. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from outlay.budget.config import as_text
from outlay.ledger.price import handed_on
from outlay.machine import CUDA_VISIBLE
from outlay.sweep.grid.parsing import budget_overrides, filled, in_style, literal, placeholders
from outlay.sweep.plan.plan import PlannedRun, SweepPlan

LOG_NAME: Final = "sweep.log"
SWEEP_MARK: Final = "{sweep}"
"""The placeholder for the sweep's directory in a plan, which is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and with which resources one attempt is started.

    Attributes:
        port: The rendezvous port; None where a cluster's job chooses one.
        devices: The GPUs that it may use; None leaves CUDA_VISIBLE_DEVICES alone.
        python: The interpreter for scripts and torchrun.
        inherited: The inherited environment; its MASTER_ADDR and MASTER_PORT take precedence.
    """

    directory: str
    port: int | None = None
    devices: tuple[str, ...] | None = None
    python: str = "python"
    inherited: Mapping[str, str] = field(default_factory=dict)


def program_of(plan: SweepPlan, run: PlannedRun, place: Place) -> list[str]:
    """Return the program and its arguments, without a launcher."""
    entry = run.entry
    values = {**run.params, "run_dir": place.directory, "run_id": run.id}
    words = filled(entry.entrypoint, values)
    if entry.arguments == "overrides":
        words += overrides_of(run, place.directory)
    elif entry.arguments != "none":
        shown = placeholders(entry.entrypoint) | {"world_size"}
        rest = {name: value for name, value in run.params.items() if name not in shown}
        words += entry.overrides if entry.arguments == "pairs" else ()
        words += in_style(entry.arguments, rest, plan.grid.aliases)
    return words


def overrides_of(run: PlannedRun, directory: str) -> list[str]:
    """Return all overrides of a run, its directory included."""
    added = len(run.entry.overrides)
    return [
        *run.overrides[:added],
        *budget_overrides(run.entry.budget),
        *run.overrides[added:],
        f"train.save_dir={literal(directory)}",
        f"hydra.run.dir={literal(directory)}",
        "hydra.output_subdir=null",
        "hydra.job.chdir=false",
    ]


def command_of(plan: SweepPlan, run: PlannedRun, place: Place) -> list[str]:
    """Return the whole command of a run."""
    program = program_of(plan, run, place)
    if run.by_torchrun:
        launcher = [place.python, "-m", "torch.distributed.run", *_rendezvous(run, place)]
        return [*launcher, f"--nproc_per_node={run.world_size}", *program]
    is_python = program[0].endswith(".py") or program[0] == "-m"
    return [place.python, *program] if is_python else program


def _rendezvous(run: PlannedRun, place: Place) -> list[str]:
    """Return torchrun's rendezvous flags.

    ``--standalone`` finds a free port by itself and cannot collide, but only works for one node.
    """
    entry = run.entry
    rendezvous = [f"--rdzv_{key}={value}" for key, value in entry.rendezvous.items()]
    if place.port is None:
        return rendezvous  # A job sets nodes, rank and address in the environment.
    node = {"nnodes": entry.nnodes, "node_rank": entry.node_rank}
    stated = [f"--{name}={value}" for name, value in node.items() if value is not None]
    if not stated and not rendezvous:
        return ["--standalone"]
    if not rendezvous:
        address = run.env.get("MASTER_ADDR", place.inherited.get("MASTER_ADDR", "127.0.0.1"))
        port = run.env.get("MASTER_PORT", place.inherited.get("MASTER_PORT", str(place.port)))
        stated += [f"--master_addr={address}", f"--master_port={port}"]
    return [*stated, *rendezvous]


def environment_of(run: PlannedRun, place: Place) -> dict[str, str]:
    """Return the variables that the sweep sets, on top of the inherited ones."""
    entry = run.entry
    variables = {
        "LOCAL_WORLD_SIZE": str(run.world_size),
        "NPROC_PER_NODE": str(run.world_size),
        "NNODES": str(entry.nnodes or 1),
        "MFCL_SWEEP_RUN_ID": run.id,
        "MFCL_SWEEP_RUN_DIR": place.directory,
        "MFCL_SWEEP_PARAMS": _json(run.params),
        "MFCL_SWEEP_METADATA": _json(run.metadata),
        "HYDRA_FULL_ERROR": "1",
        "OUTLAY_RUN_DIR": place.directory,
    }
    if place.port is not None:
        variables |= {
            "MASTER_ADDR": place.inherited.get("MASTER_ADDR", "127.0.0.1"),
            "MASTER_PORT": place.inherited.get("MASTER_PORT", str(place.port)),
            "NODE_RANK": str(entry.node_rank or 0),
        }
    if run.gpus is not None:
        # For a range of nodes the number is unknown; torchrun sets it for its workers.
        variables |= {"WORLD_SIZE": str(run.gpus), "OUTLAY_GPUS": str(run.charged_gpus)}
    if entry.gpus is not None:
        variables["OUTLAY_GPUS"] = str(entry.gpus)
    if entry.budget is not None:
        variables["OUTLAY_BUDGET"] = as_text(entry.budget)
    if entry.price is not None:
        variables["OUTLAY_PRICE"] = handed_on(entry.price)
    if place.devices is not None:
        variables[CUDA_VISIBLE] = ",".join(place.devices)
    return {**variables, **entry.ship, **run.env}


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
