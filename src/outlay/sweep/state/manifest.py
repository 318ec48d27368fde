"""A sweep's files: ``sweep_journal.jsonl``, the source of truth, and ``sweep_manifest.json``.

The manifest describes the runs, and is written before any starts. It repeats the state of the
journal for people and other programs, at bounded cost (see ``SweepManifest.catch_up``). Manifests
of other programs have no journal: their own states count.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from outlay.clock import SYSTEM, Clock, utc_datetime, wall_ns_of
from outlay.decoding import BadDocument, Decoder, convert, read_document, read_file
from outlay.errors import OutlayError
from outlay.files import open_own, seal_of, write_whole
from outlay.ledger import GpuCount, exact_gpus
from outlay.rates import rate_of
from outlay.sweep.errors import NotASweep, SweepNotRecorded
from outlay.sweep.state.outcomes import Event, RunState, Status, fold
from outlay.units import Money, Rate, Unit
from outlay.units.money import Kind, sum_by_unit

JOURNAL: Final = "sweep_journal.jsonl"
NAME: Final = "sweep_manifest.json"
_LARGEST: Final = 1 << 30
_REWRITE_PAUSE: Final = 50
"""After a rewrite of the manifest, the pause before the next, in multiples of its duration."""

# The journal: one line per event, appended and never rewritten.
#
# A line is one write. A killed harness leaves at most one torn line, which readers skip and the
# next writer terminates.

_decoder = Decoder[Event](Event)


class Journal:
    """Appends to the journal in a sweep's directory."""

    def __init__(self, root: Path) -> None:
        self.path = root / JOURNAL
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._unwritten = seal_of(self._descriptor)

    def append(self, event: Event, *, keep: bool = True) -> None:
        """Append an event, after those that could not be written before.

        With ``keep``, an event that the disk refuses is retried by the next call.
        """
        line = msgspec.json.encode(event) + b"\n"
        self._unwritten += line
        try:
            while self._unwritten:
                written = os.write(self._descriptor, self._unwritten)
                self._unwritten = self._unwritten[written:]
        except OSError as error:
            if not keep:
                kept = len(self._unwritten) - len(line)
                # The rest of earlier lines; a newline where half of this line is written.
                self._unwritten = self._unwritten[:kept] if kept >= 0 else b"\n"
            raise SweepNotRecorded(str(self.path), error.strerror or str(error)) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_events(root: Path) -> list[Event]:
    """Return every event, in order; torn or damaged lines are skipped."""
    try:
        return _decoder.decode_lines(read_file(root / JOURNAL, largest=_LARGEST))
    except FileNotFoundError:
        return []


# The manifest.


class ManifestRun(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one run in a manifest, without its state; it holds no secret.

    Fields that are absent, as in manifests of older versions, are None or empty.

    Attributes:
        document: All of it as in the file, with unknown keys; paths as below.
        run_dir: Relative to the sweep's directory, which may have been moved; in the file absolute.
        configuration: A hash of what it shares with the runs that differ in seed alone.
        stated: What the grid states besides parameters: ``env``, ``overrides``, ``entrypoint``.
        budget: Its ``mode`` and its ``limits``.
        price: Per GPU-hour, as text.
        most_gpus: GPUs over the largest number of nodes.
        charged_gpus: GPUs that are paid for.
        predicted_cost: As text.
        point: Where it is in the space of its search; None for a grid.
        rungs: The ``limits`` up to each rung, and the ``predicted_cost`` of the rung alone; empty
            without halving.
        resumable: Whether it is paused at a rung.
        predicted_whole: The cost of all rungs in one attempt, as text.
    """

    document: dict[str, Any]
    id: str
    run_dir: str = ""
    fingerprint: str = ""
    configuration: str | None = None
    group: str | None = None
    engine: str = "process"
    params: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    stated: dict[str, Any] | None = None
    command: list[str] = []
    budget: dict[str, Any] | None = None
    world_size: int | None = None
    nnodes: int | str | None = None
    gpu: str | None = None
    gpus: int | None = None
    most_gpus: int | None = None
    charged_gpus: GpuCount | None = None
    price: str | None = None
    price_kind: Kind | None = None
    predicted_cost: str | None = None
    point: dict[str, int | float] | None = None
    rungs: list[dict[str, Any]] = []
    resumable: bool = True
    predicted_whole: str | None = None

    @classmethod
    def of(cls, document: dict[str, Any]) -> ManifestRun:
        """Return the run in a document."""
        return convert({**document, "document": document}, cls)

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of its budget, by key."""
        return {} if self.budget is None else self.budget.get("limits", {})

    @property
    def gpus_at_most(self) -> int:
        """The most GPUs that it may have."""
        return self.most_gpus or self.gpus or 1

    @property
    def gpus_charged(self) -> GpuCount:
        """GPUs that are paid for."""
        return self.charged_gpus or self.gpus_at_most

    @property
    def rate(self) -> Rate | None:
        """Its cost per hour over all GPUs."""
        if not self.price:
            return None
        return rate_of(Rate.parse(self.price, name="price"), exact_gpus(self.gpus_charged))

    @property
    def limits_by_rung(self) -> list[Mapping[str, Any]]:
        """The limits at each rung."""
        return [rung.get("limits", {}) for rung in self.rungs]

    @property
    def is_searched(self) -> bool:
        """Whether a search compares it with others while it runs."""
        return bool(self.rungs) or self.point is not None

    def planned_cost(self, state: RunState) -> Money | None:
        """Return its predicted cost, up to the rung that it was last started at."""
        texts = [self.predicted_cost]
        if self.rungs:
            reached = self.rungs[: state.rung + 1] if self.resumable else self.rungs
            texts = [rung.get("predicted_cost") for rung in reached]
        costs = [Money.parse(text, name="predicted_cost") for text in texts if text]
        return sum(costs[1:], start=costs[0]) if len(costs) == len(texts) else None

    @property
    def whole_cost(self) -> Money | None:
        """Its predicted cost up to the last rung in one attempt."""
        text = self.predicted_whole if self.rungs else self.predicted_cost
        return Money.parse(text, name="predicted_whole") if text else None

    def kind_of_cost(self, state: RunState) -> Kind:
        """Return the kind of its cost: as its log states, else as its price does."""
        return state.kind or self.price_kind or "cash"

    def cost(self, state: RunState) -> Money | None:
        """Return the cost of its ended attempts."""
        unit = Unit(state.currency, self.kind_of_cost(state))
        return None if state.cost_micros is None else unit.money(state.cost_micros)


@dataclass(slots=True)
class SweepManifest:
    """The manifest of one sweep, in memory: its runs by id, in order, and all else in ``about``."""

    root: Path
    about: dict[str, Any]
    runs: dict[str, ManifestRun]
    states: dict[str, RunState] = field(default_factory=dict)
    clock: Clock = SYSTEM
    _next_ns: int = 0
    _behind: bool = False
    _encoded: dict[str, tuple[ManifestRun, msgspec.Raw]] = field(default_factory=dict)

    def state(self, run: str) -> RunState:
        """Return the state of a run."""
        return self.states.setdefault(run, RunState())

    def elapsed_of(self, status: Status) -> list[int]:
        """Return the total run time of each run with a status, in nanoseconds."""
        return [state.elapsed_ns for state in self.states.values() if state.status == status]

    def write(self) -> None:
        """Replace the file atomically, with fsync.

        Raises:
            SweepNotRecorded: The disk refuses; the previous file is still there.
        """
        began_ns = self.clock.monotonic_ns()
        path = self.root / NAME
        try:
            write_whole(path, self.document(), synced=True, private=True)
        except OSError as error:
            raise SweepNotRecorded(str(path), error.strerror or str(error)) from error
        now_ns = self.clock.monotonic_ns()
        self._next_ns = now_ns + _REWRITE_PAUSE * (now_ns - began_ns)
        self._behind = False

    def apply(self, run: str, event: Event) -> None:
        """Apply an event to a run; ``catch_up`` writes it."""
        self.state(run).apply(event)
        self._encoded.pop(run, None)
        self._behind = True

    def catch_up(self) -> None:
        """Rewrite the file if it is behind and the pause since the last rewrite is over.

        The pause grows with the duration of a rewrite, so that its share of the harness's time is
        bounded, whatever the number of runs. The journal is never behind.
        """
        if self._behind and self.clock.monotonic_ns() >= self._next_ns:
            self.write()

    def document(self) -> bytes:
        """Return the file's content: indented JSON with sorted keys."""
        root = self.root.absolute()
        runs = [self._encoded_run(root, name) for name in self.runs]
        whole = self.about | {"output_dir": str(root), "runs": runs}
        return msgspec.json.format(_as_json(whole), indent=2) + b"\n"

    def _encoded_run(self, root: Path, name: str) -> msgspec.Raw:
        """Return a run of the file, encoded again only if an event or its plan changed it."""
        run, kept = self.runs[name], self._encoded.get(name)
        if kept is not None and kept[0] is run:
            return kept[1]
        static = run.document
        encoded = msgspec.Raw(_as_json(static | _in(root, static) | _shown(self.state(name))))
        self._encoded[name] = (run, encoded)
        return encoded


def _as_json(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=str, order="sorted")


def read_manifest(root: Path, clock: Clock = SYSTEM) -> SweepManifest:
    """Return a sweep: its manifest, with the state of each run from the journal.

    Without a journal, the states are those that the manifest states.

    Raises:
        NotASweep: There is no manifest, or it cannot be read.
    """
    try:
        document = read_document(root / NAME, dict[str, Any], largest=_LARGEST)
        listed = document.pop("runs")
        was = str(document.get("output_dir") or "")
        static = [_static(fields) for fields in listed]
        runs = {run.id: run for run in (ManifestRun.of(f | _below(root, was, f)) for f in static)}
        states = fold(read_events(root)) if (root / JOURNAL).exists() else _stated_states(listed)
    except FileNotFoundError:
        raise NotASweep(str(root), f"no {NAME} here") from None
    except (OSError, BadDocument, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotASweep(str(root), f"{NAME} cannot be read ({error})") from None
    return SweepManifest(root, document, runs, states, clock)


def is_sweep(directory: Path) -> bool:
    """Say whether a directory holds a sweep."""
    return (directory / NAME).is_file()


def main() -> None:
    """Rewrite a manifest from the journal after its harness was killed.

    If that fails, the next harness does it.
    """
    with suppress(OutlayError):
        read_manifest(Path(sys.argv[1])).write()


_SHOWN: Final = (
    "status", "returncode", "reason", "attempts", "started_at", "finished_at", "elapsed_s",
    "cost", "currency", "cost_kind", "command", "env", "hold",
)  # fmt: skip


def _static(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of the file without its state."""
    return {
        name: value
        for name, value in fields.items()
        if name not in _SHOWN or (name in ("command", "env") and value)
    }


def _shown(state: RunState) -> dict[str, Any]:
    """Return a run's state under the documented names."""
    shown: dict[str, Any] = {
        "status": state.status,
        "returncode": state.returncode,
        "reason": state.reason,
        "attempts": state.attempts,
        "started_at": None if state.started_ns is None else instant_text(state.started_ns),
        "finished_at": None if state.finished_ns is None else instant_text(state.finished_ns),
        "elapsed_s": state.elapsed_ns / 1e9,
        "cost": None if state.cost_micros is None else state.cost_micros / 1e6,
        "currency": state.currency,
        "cost_kind": state.kind or None,
        "hold": state.hold,
    }
    if state.command:
        shown |= {"command": state.command, "env": state.env}
    return shown


def instant_text(wall_ns: int) -> str:
    """Return an instant in the manifest's form, UTC."""
    return f"{utc_datetime(wall_ns):%Y-%m-%dT%H:%M:%SZ}"


# Paths of runs: absolute in the file, for other programs; relative in memory, so that a sweep can
# be moved.

_PATHS: Final = ("run_dir", "launcher_log")


def _in(root: Path, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's paths as in the file."""
    return {name: str(root / fields[name]) for name in _PATHS if isinstance(fields.get(name), str)}


def _below(root: Path, was: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's paths relative to the sweep's directory, which was at ``was`` when written."""
    if not isinstance(fields.get("run_dir"), str):
        return {}
    there = Path(fields["run_dir"])
    here = _moved(root, was, there)
    log = Path(str(fields.get("launcher_log") or ""))
    below = {"launcher_log": str(here / log.relative_to(there))} if there in log.parents else {}
    return {"run_dir": str(here), **below}


def _moved(root: Path, was: str, path: Path) -> Path:
    """Return where a run's directory is now; outside of the sweep's directory, where it was.

    A path that is relative to where the other program was started is looked for by its name.
    """
    if was not in ("", ".") and path.is_relative_to(was):
        return path.relative_to(was)
    is_named = not (root / path).exists() and (root / path.name).exists()
    return Path(path.name) if is_named else path


def _stated_states(listed: list[dict[str, Any]]) -> dict[str, RunState]:
    """Return the state of each run as a manifest without a journal has it."""
    return {str(fields["id"]): _stated_state(fields) for fields in listed}


def _stated_state(fields: Mapping[str, Any]) -> RunState:
    stated = fields.get("status") or "pending"
    status: Status | None = next((one for one in get_args(Status) if one == stated), None)
    started_ns, finished_ns = map(_instant, (fields.get("started_at"), fields.get("finished_at")))
    lasted_ns = 0 if started_ns is None or finished_ns is None else finished_ns - started_ns
    return RunState(
        status=status or "error",
        reason=str(fields.get("reason") or ("" if status else f"its status is {stated!r}")),
        returncode=fields.get("returncode"),
        attempts=fields.get("attempts", int(started_ns is not None)),
        started_ns=started_ns,
        finished_ns=finished_ns,
        elapsed_ns=round(fields["elapsed_s"] * 1e9) if "elapsed_s" in fields else lasted_ns,
        command=list(fields.get("command") or ()),
        env=dict(fields.get("env") or {}),
    )


def _instant(text: str | None) -> int | None:
    return None if text is None else wall_ns_of(datetime.fromisoformat(text))


def counts(manifest: SweepManifest) -> dict[str, int]:
    """Return the number of runs by status."""
    return dict(Counter(manifest.state(run).status for run in manifest.runs))


def captured(manifest: SweepManifest) -> list[Money]:
    """Return the total cost of ended attempts, by unit."""
    states = ((run, manifest.state(run.id)) for run in manifest.runs.values())
    costs = (run.cost(state) for run, state in states)
    return sum_by_unit(cost for cost in costs if cost is not None)


def planned(manifest: SweepManifest) -> list[Money]:
    """Return the total predicted cost, by unit; empty where unknown."""
    states = ((run, manifest.state(run.id)) for run in manifest.runs.values())
    return sum_by_unit(
        cost.as_kind(run.kind_of_cost(state))
        for run, state in states
        if (cost := run.planned_cost(state)) is not None
    )


if __name__ == "__main__":
    main()
