"""What vendors, clusters and hosts answered when they were asked what they have, and claims.

A list that fails keeps its last answer: what it had then is unknown since, and never nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Engine, delete, select, true

from outlay.clock import utc_text
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.machine import host_key
from outlay.store.connection import database_ns, database_user, upsert, writing
from outlay.store.schema import claims, machine_lists
from outlay.units import Rate
from outlay.units.money import recorded_rate

MachineKind = Literal["machine", "rental", "job", "node"]
STALE_NS = 900 * 10**9
"""A list that nobody has asked for so long is unknown since."""


class SeenMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine in a list.

    Attributes:
        kind: ``machine`` of a vendor's list, ``rental`` of a spend log, ``job`` of Slurm, or owned
            ``node``.
        id: The vendor's id, the job's number or the node's host name.
        name: Its name there.
        user: Who started it, if the list says that.
        nodes: Of a job, in Slurm's syntax; ``gpus`` is how many it has, without which none is paid.
        since_ns: When it was created, or first listed; 0 until it is kept.
        until: When it ends, as text; empty for never.
        rate: Per hour, of the whole; empty if it is not known.
    """

    kind: MachineKind
    id: str
    name: str = ""
    user: str = ""
    nodes: str = ""
    gpus: int = 0
    since_ns: int = 0
    until: str = ""
    rate: str = ""

    @property
    def hourly(self) -> Rate | None:
        """What it costs per hour; None if that is not known."""
        return recorded_rate(self.rate) if self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineList:
    """The last answer of one source.

    Attributes:
        source: ``runpod``, ``runpod/ACCOUNT``, ``slurm`` or ``owned/HOST``.
        asked_from: The host that asked last.
        answered_ns: When it last answered, by the store's clock, as all times here; 0 for never.
        failed_ns: When it last failed; 0 for never.
        unknown: Since when it is not known what it has, as text; empty if it is.
    """

    source: str
    machines: tuple[SeenMachine, ...]
    asked_from: str
    answered_ns: int
    failed_ns: int
    problem: str
    unknown: str

    @property
    def findings(self) -> list[Finding]:
        """Why it is not known what it has."""
        if not self.unknown:
            return []
        problem = f": {self.problem}" if self.problem else ": nobody has asked it since"
        return [Finding(source=self.source, message=f"{self.unknown}{problem}", severity="warning")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineClaim:
    """Whose a listed machine is, as a person stated."""

    source: str
    machine: str
    user: str = ""
    team: str = ""
    project: str = ""
    reason: str = ""
    claimed_by: str = ""
    claimed_ns: int = 0

    def __str__(self) -> str:
        return " / ".join(filter(None, (self.project, self.team, self.user)))


# Lists


def keep_answer(
    engine: Engine, source: str, machines: Iterable[SeenMachine], *, problem: str = ""
) -> None:
    """Keep what a source has; with a ``problem`` also what it had, since the answer is a part."""
    with writing(engine) as connection:
        now_ns = database_ns(connection)
        before = {each.id: each for each in _kept(connection, source)}
        after = {each.id: _since(each, before.get(each.id), now_ns) for each in machines}
        _keep(
            connection, source, before | after if problem else after, problem=problem,
            times={"failed_ns" if problem else "answered_ns": now_ns},
        )  # fmt: skip


def keep_failure(engine: Engine, source: str, problem: str) -> None:
    """Keep that a source did not answer, unless it lately answered another host."""
    with writing(engine) as connection:
        now_ns, cells = database_ns(connection), _cells(connection, source)
        is_others = cells is not None and cells["asked_from"] != host_key()
        if cells and is_others and now_ns - (cells["answered_ns"] or 0) < STALE_NS:
            return
        before = {each.id: each for each in _kept(connection, source)}
        _keep(connection, source, before, problem=problem, times={"failed_ns": now_ns})


def _since(machine: SeenMachine, before: SeenMachine | None, now_ns: int) -> SeenMachine:
    since_ns = machine.since_ns or (before.since_ns if before else now_ns)
    return msgspec.structs.replace(machine, since_ns=since_ns)


def _cells(connection: Connection, source: str) -> Mapping[str, Any] | None:
    query = select(machine_lists).where(machine_lists.c.source == source)
    found = connection.execute(query).mappings().first()
    return None if found is None else dict(found)


def _kept(connection: Connection, source: str) -> tuple[SeenMachine, ...]:
    cells = _cells(connection, source)
    return () if cells is None else _machines(cells["machines"])


def _machines(cell: object) -> tuple[SeenMachine, ...]:
    try:
        return convert(cell or (), tuple[SeenMachine, ...])
    except BadDocument:
        return ()  # The next answer replaces it.


def _keep(
    connection: Connection,
    source: str,
    machines: Mapping[str, SeenMachine],
    *,
    problem: str,
    times: Mapping[str, int],
) -> None:
    before = _cells(connection, source) or {}
    row = {
        "source": source, "asked_from": host_key(), "problem": problem,
        "answered_ns": before.get("answered_ns"), "failed_ns": before.get("failed_ns"),
        "machines": msgspec.to_builtins(list(machines.values())), **times,
    }  # fmt: skip
    upsert(connection, machine_lists, [row], wins=lambda _: true())


def forget_lists(engine: Engine, asked: Collection[str]) -> None:
    """Remove the lists that this host asked for and is no longer to ask for."""
    mine = machine_lists.c.asked_from == host_key()
    with writing(engine) as connection:
        connection.execute(
            delete(machine_lists).where(mine, machine_lists.c.source.not_in(list(asked)))
        )


def read_lists(engine: Engine) -> list[MachineList]:
    """Return every list, and since when it is not known what it has."""
    with engine.begin() as connection:
        now_ns = database_ns(connection)
        rows = connection.execute(select(machine_lists).order_by(machine_lists.c.source))
        return [_list(dict(cells), now_ns) for cells in rows.mappings()]


def _list(cells: dict[str, Any], now_ns: int) -> MachineList:
    answered_ns, failed_ns = cells.pop("answered_ns") or 0, cells.pop("failed_ns") or 0
    unknown = ""
    if failed_ns > answered_ns or now_ns - answered_ns > STALE_NS:
        since = f"since {utc_text(answered_ns)[:16]}Z" if answered_ns else "ever: it never answered"
        unknown = f"unknown {since}"
    machines = _machines(cells.pop("machines"))
    return MachineList(
        **cells, machines=machines, answered_ns=answered_ns, failed_ns=failed_ns, unknown=unknown
    )


# Claims


def claim_machine(engine: Engine, claim: MachineClaim) -> MachineClaim:
    """Keep whose a machine is; return the claim as it was kept."""
    with writing(engine) as connection:
        at = {"claimed_ns": database_ns(connection), "claimed_by": database_user(connection)}
        names = ("source", "machine", "user", "team", "project", "reason")
        row = {name: getattr(claim, name) for name in names} | at
        upsert(connection, claims, [row], newer="claimed_ns")
    return MachineClaim(**row)


def release_machine(engine: Engine, source: str, machine: str) -> None:
    """Remove a claim.

    Raises:
        InvalidValue: There is none.
    """
    named = (claims.c.source == source, claims.c.machine == machine)
    with writing(engine) as connection:
        if not connection.execute(delete(claims).where(*named)).rowcount:
            raise InvalidValue("MACHINE", machine, "a machine that somebody has claimed")


def read_claims(engine: Engine) -> dict[tuple[str, str], MachineClaim]:
    """Return all claims, by source and id of the machine."""
    with engine.begin() as connection:
        rows = connection.execute(select(claims)).mappings()
        found = [MachineClaim(**dict(cells)) for cells in rows]
    return {(each.source, each.machine): each for each in found}
