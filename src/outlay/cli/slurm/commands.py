"""``outlay slurm``: hooks of a cluster's controller that hold money for jobs and settle it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from outlay.cli.guard.options import DEFAULT_LOG, Log, say
from outlay.cli.output import AsJson, console, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, OutlayError, Refused
from outlay.escaping import one_line
from outlay.files import write_whole
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Captured
from outlay.guard.errors import SpendLogAway
from outlay.guard.spend_log import name_for_others, named_log, open_book
from outlay.runs.accounting.job_gate import (
    AskedJob,
    asked_gpus,
    cost_of_job,
    guard_for,
    hold_for,
    keep_unheld,
    record_unheld_jobs,
    settle_ended_jobs,
)
from outlay.slurm import JobStartName, allocated_job, requeue_held, set_comment
from outlay.store import outlay_home
from outlay.units import Duration

app = typer.Typer(help="Hold money for a cluster's jobs, at its scheduler.", no_args_is_help=True)
hook_app = typer.Typer(help="What the scheduler calls.", no_args_is_help=True)
app.add_typer(hook_app, name="hook")

WhenDown = Literal["allow", "refuse"]
WhenDownOption = Annotated[
    WhenDown, typer.Option(help="What happens to a job while the book can't be reached.")
]
_MINE: Final = "Written by `outlay slurm files`"
_COMMENT: Final = "outlay: "
_LONGEST_COMMENT: Final = 1000
_LUA: Final = Path(__file__).with_name("job_submit.lua")
_LOOK_S: Final = 0.5


@app.callback()
def slurm() -> None:
    """Hold money for a cluster's jobs, at its scheduler."""


@hook_app.callback()
def hook() -> None:
    """What the scheduler calls."""


# The start of a job.


@hook_app.command("prolog")
def show_prolog(
    when_down: WhenDownOption = "refuse",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Hold what the job in the environment may cost; exit 3 if it does not fit.

    A refused job goes back into the queue, held, with the reason in its comment. Called as
    PrologSlurmctld.

    Example: outlay slurm hook prolog --when-down allow
    """
    number = _job_number()
    allocated = allocated_job(number)
    if allocated is None:
        raise InvalidValue("SLURM_JOB_ID", number, "a job that squeue describes")
    job, cluster = AskedJob.of(allocated), os.environ.get("SLURM_CLUSTER_NAME", "")
    start = JobStartName(cluster=cluster, job=allocated.job, start_ns=allocated.start_ns)
    if not job.gpus:
        _show_outcome({"job": job.name, "outcome": "has no GPUs"}, as_json=as_json)
        return
    try:
        guard = guard_for(job, log, os.environ)
        hold = hold_for(guard, cost_of_job(guard, job), start)
    except SpendLogAway as error:
        if when_down == "allow":
            keep_unheld(log, job, start)
        _show_away(number, job, str(error), is_allowed=when_down == "allow", as_json=as_json)
    except OutlayError as error:
        _comment(number, str(error))
        outcome = "is held in the queue" if requeue_held(number) else "is refused"
        _show_outcome({"job": job.name, "outcome": outcome, "why": str(error)}, as_json=as_json)
        raise typer.Exit(Refused.exit_code) from None
    else:
        about = {"job": job.name, "outcome": "is paid for", "hold": hold.id, "amount": hold.amount}
        _show_outcome(about, as_json=as_json)


def _show_away(number: str, job: AskedJob, why: str, *, is_allowed: bool, as_json: bool) -> None:
    """Say that a job starts without a hold; or exit, so that Slurm requeues it and asks again."""
    outcome = "starts without a hold" if is_allowed else "waits"
    _comment(number, f"it {outcome}, since the book can't be reached: {why}")
    _show_outcome({"job": job.name, "outcome": outcome, "why": why}, as_json=as_json)
    if not is_allowed:
        raise typer.Exit(Refused.exit_code)


def _comment(number: str, text: str) -> None:
    """Append a text to the job's own comment, in place of an earlier one of outlay."""
    own = os.environ.get("SLURM_JOB_COMMENT", "").partition(_COMMENT)[0].rstrip(" ;")
    said = one_line(f"{_COMMENT}{text}")[:_LONGEST_COMMENT]
    if not set_comment(number, f"{own}; {said}" if own else said):
        say(f"the comment of job {number} could not be set")


def _job_number() -> str:
    number = os.environ.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise InvalidValue("SLURM_JOB_ID", number, "the number of a job, as Slurm states it")
    return number


def _show_outcome(about: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(about)
        return
    what = ", ".join(str(about[name]) for name in ("hold", "amount", "why") if name in about)
    print_sentence(f"job {about['job']} {about['outcome']}{': ' + what if what else ''}")


# The end of a job.


@hook_app.command("epilog")
def show_epilog(
    wait: Annotated[
        str, typer.Option(help="How long to wait for the accounts of the job in the environment.")
    ] = "10s",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Settle the holds of all jobs that have ended, from the cluster's accounts.

    What is not in the accounts yet is settled by the next call, or by `outlay watch`. Called as
    EpilogSlurmctld.

    Example: outlay slurm hook epilog
    """
    found = list[Captured]()
    deadline_ns = SYSTEM.monotonic_ns() + Duration.parse(wait, name="--wait").ns
    guard = BudgetGuard.of_log(named_log(log))
    while True:
        found += settle_ended_jobs(guard)
        found += record_unheld_jobs(log, os.environ)
        if guard.job_here(os.environ) is None or SYSTEM.monotonic_ns() >= deadline_ns:
            break
        SYSTEM.sleep(_LOOK_S)
    if as_json:
        print_json(found)
        return
    for captured in found:
        print_sentence(f"{captured.actual} {captured.currency} for {captured.op_label}")
    if not found:
        console.print("no job to settle")


# The submission of a job.


@hook_app.command("submit")
def show_submit(
    user: Annotated[str, typer.Option(help="Whose job it is.")],
    account: Annotated[str, typer.Option(help="Slurm's account.")] = "",
    partition: Annotated[str, typer.Option(help="The partition.")] = "",
    minutes: Annotated[int | None, typer.Option(help="Its time limit.")] = None,
    nodes: Annotated[int, typer.Option(help="The least number of nodes.")] = 1,
    tasks: Annotated[int, typer.Option(help="The number of tasks.")] = 1,
    per_node: Annotated[str, typer.Option(metavar="TRES", help="Such as gres:gpu:2.")] = "",
    per_job: Annotated[str, typer.Option(metavar="TRES", help="Such as gres:gpu:2.")] = "",
    per_task: Annotated[str, typer.Option(metavar="TRES", help="Such as gres:gpu:2.")] = "",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Check whether a job could be paid for now; exit 3 and say why if not. Nothing is held.

    Called by job_submit.lua. While the book can't be reached, every job is queued.

    Example: outlay slurm hook submit --user ana --partition gpu --minutes 60 --per-node gpu:2
    """
    gpus = asked_gpus(
        per_node=per_node, per_job=per_job, per_task=per_task, nodes=nodes, tasks=tasks
    )
    job = AskedJob(
        name=user, user=user, account=account, partition=partition, gpus=gpus,
        lasts_ns=None if minutes is None else minutes * 60 * 10**9,
    )  # fmt: skip
    about: dict[str, object] = {"job": f"of {user}", "outcome": "may be queued"}
    try:
        if gpus:
            guard = guard_for(job, log, os.environ)
            cost = cost_of_job(guard, job)
            guard.check(cost.label, cost.most, lab=cost.project, rate=cost.rate)
            about |= {"amount": cost.most}
    except SpendLogAway as error:
        about |= {"why": str(error)}
    except OutlayError as error:
        say(str(error))
        raise typer.Exit(Refused.exit_code) from None
    _show_outcome(about, as_json=as_json)


# Installation.


@app.command("files")
def show_files(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where slurm.conf is.")],
    when_down: WhenDownOption = "refuse",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Write outlay-gate and job_submit.lua, and print the lines for slurm.conf.

    The gate uses this Python, this PATH, this outlay home and this spend log.

    Example: outlay slurm files /etc/slurm --log "postgresql://slurm@db.example/spend?book=lab"
    """
    if not directory.is_dir():
        raise InvalidValue("DIR", str(directory), "a directory")
    gate, lua = directory.absolute() / "outlay-gate", directory.absolute() / "job_submit.lua"
    if lua.exists() and _MINE not in lua.read_text():
        expected = f"no job_submit.lua of your own; copy the function of {_LUA} into it"
        raise InvalidValue("DIR", str(lua), expected)
    write_whole(gate, _gate_text(log, when_down).encode())
    gate.chmod(0o755)
    write_whole(lua, _LUA.read_text().replace("@GATE@", str(gate)).encode())
    lua.chmod(0o644)
    lines = [f"PrologSlurmctld={gate}", f"EpilogSlurmctld={gate}", "JobSubmitPlugins=lua"]
    if as_json:
        print_json({"files": [str(gate), str(lua)], "lines": lines})
        return
    print_sentence(f"wrote {gate} and {lua}; add to slurm.conf:")
    for line in lines:
        console.print(line, soft_wrap=True)


_KEPT: Final = ("SLURM_CONF", "PGPASSFILE", "PGSSLROOTCERT")


def _gate_text(log: str, when_down: WhenDown) -> str:
    """Return the script that the controller calls, for a start and an end, and job_submit.lua."""
    name = named_log(log)
    book = name_for_others(name if isinstance(name, Path) else open_book(name).name)
    variables = {
        "OUTLAY_SPEND_LOG": book,
        "OUTLAY_HOME": str(outlay_home().absolute()),
        "PATH": os.environ.get("PATH", os.defpath),
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
    }
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
    program = shlex.join([sys.executable, "-m", "outlay", "slurm", "hook"])
    return f"""#!/bin/sh
# The gate of outlay at Slurm's controller. {_MINE}.
{exports}
case "$SLURM_SCRIPT_CONTEXT" in
  prolog_slurmctld) set -- prolog --when-down {when_down} ;;
  epilog_slurmctld) set -- epilog ;;
  *) exec {program} "$@" ;;
esac
exec {program} "$@" >> "$OUTLAY_HOME/gate.log" 2>&1
"""
