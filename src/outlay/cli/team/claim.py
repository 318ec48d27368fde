"""``outlay team claim``: whose a machine is that no run, rental or job of outlay knows."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.output import (
    AsJson,
    console,
    new_table,
    print_findings,
    print_json,
    print_sentence,
)
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.store import open_store
from outlay.store.machine_lists import (
    MachineClaim,
    claim_machine,
    read_claims,
    read_lists,
    release_machine,
)
from outlay.store.runs import RunFilter, list_runs

if TYPE_CHECKING:
    from sqlalchemy import Engine


_CLAIMABLE = ("machine", "job")


def show_claim(
    machine: Annotated[
        str, typer.Argument(metavar="[MACHINE]", help="Its id; none: list what costs money now.")
    ] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Whose it is; default: you.")] = "",
    team: Annotated[str, typer.Option(metavar="NAME", help="The team that pays.")] = "",
    project: Annotated[str, typer.Option(metavar="NAME", help="What it is for.")] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept with the claim.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Remove the claim.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whose a machine is that only a vendor's list or Slurm knows; nothing is ended.

    Example: outlay team claim runpod/x9f --project vision --reason "the demo of Friday"
    """
    store = open_store()
    try:
        if not machine:
            _show_places(store, as_json=as_json)
            return
        source, number = _listed_machine(store, machine)
        if release:
            release_machine(store, source, number)
            claim = MachineClaim(source=source, machine=number)
        else:
            if not (user or team or project):
                user = getpass.getuser()
            stated = MachineClaim(
                source=source, machine=number, user=user, team=team, project=project, reason=reason
            )
            claim = claim_machine(store, stated)
    finally:
        store.dispose()
    if as_json:
        print_json(claim)
    else:
        said = "is claimed by nobody again" if release else f"is claimed for {claim}"
        print_sentence(f"{source} {number} {said}.")


def _listed_machine(store: Engine, named: str) -> tuple[str, str]:
    """Return the list and the id of a machine that is listed, or claimed."""
    listed = [(each.source, one) for each in read_lists(store) for one in each.machines]
    known = [(source, one.id, one.name) for source, one in listed if one.kind in _CLAIMABLE]
    known += ((source, number, "") for source, number in read_claims(store))
    found = {each[:2] for each in known if named in (*each[1:], "/".join(each[:2]))}
    if len(found) != 1:
        choices = sorted({"/".join(each) for each in found or (each[:2] for each in known)})
        expected = f"one of {', '.join(choices)}" if choices else "a machine that a list has"
        raise InvalidValue("MACHINE", named, expected)
    return found.pop()


def _show_places(store: Engine, *, as_json: bool) -> None:
    from outlay.guard.rental.watch import known_books, known_logs, living_rentals
    from outlay.runs.collect import refresh_registered
    from outlay.runs.inventory.machines_now import read_machines_now

    rented, errors = living_rentals((*known_logs(), *known_books()))
    now_ns = SYSTEM.wall_ns()
    refresh_registered(store, now_ns)
    running = list_runs(store, RunFilter(status="running"))
    now = read_machines_now(store, rented, running, now_ns)
    findings = [*errors, *now.findings]
    if as_json:
        print_json({"burn": now.document(), "machines": now.places, "findings": findings})
        return
    table = new_table("machine", "owner", "claimed for", "part", ">per hour")
    for each in now.places:
        part = "in runs" if each.runs else each.part
        burn = ", ".join(map(str, each.burn)) or "no price"
        table.add_row(each.shown, each.owner, each.claim, part, burn)
    console.print(table)
    print_sentence(f"Burning now: {now.text}.")
    print_findings(findings)
