"""``sweep_manifest.json``: what a sweep is and, by the journal, how it stands.

What runs are is written before anything starts. How they stand is the journal's to say; the
manifest repeats it for people and other programs, at a cost that does not grow with each update
(see ``SweepManifest.catch_up``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.decoding import BadDocument, convert, read_document
from outlay.errors import OutlayError
from outlay.files import write_whole
from outlay.ledger import GpuCount, exact_gpus
from outlay.ledger.price import Kind
from outlay.rates import rate_of
from outlay.sweep.errors import NotASweep, SweepNotRecorded
from outlay.sweep.state.journal import LARGEST, Event, Status, read_events
from outlay.sweep.state.outcomes import RunState, fold
from outlay.units import Money, Rate
from outlay.units.money import sum_by_currency

NAME: Final = "sweep_manifest.json"
_REST: Final = 50
"""A manifest is rewritten at most once in so many times of what rewriting took."""


class ManifestRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says of one run, except how it stands; it holds no secret.

    What is not stated, as in manifests of older versions, is None or empty.

    Attributes:
        document: All of it as the file has it, with keys that are not known here.
        run_dir: Its directory, relative to the sweep's.
        configuration: A hash of what it shares with the runs that differ from it in seed alone.
        stated: What the grid adds besides parameters: ``env``, ``overrides``, ``entrypoint``.
        budget: Its ``mode`` and its ``limits``.
        price: Per GPU-hour, as text.
        most_gpus: GPUs over as many nodes as there may be.
        charged_gpus: GPUs that are paid for.
        predicted_cost: As text.
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

    @classmethod
    def of(cls, document: dict[str, Any]) -> ManifestRun:
        """Return the run that a document states."""
        return convert({**document, "document": document}, cls)

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of its budget, by key."""
        return {} if self.budget is None else self.budget.get("limits", {})

    @property
    def gpus_at_most(self) -> int:
        """GPUs that it may have."""
        return self.most_gpus or self.gpus or 1

    @property
    def gpus_charged(self) -> GpuCount:
        """GPUs that it is charged for."""
        return self.charged_gpus or self.gpus_at_most

    @property
    def rate(self) -> Rate | None:
        """What it costs per hour, all its GPUs."""
        if not self.price:
            return None
        return rate_of(Rate.parse(self.price, name="price"), exact_gpus(self.gpus_charged))

    @property
    def planned_cost(self) -> Money | None:
        """What it was predicted to cost."""
        text = self.predicted_cost
        return Money.parse(text, name="predicted_cost") if text else None

    def kind_of_cost(self, state: RunState) -> Kind:
        """Return of which kind its cost is: as its log says, else as its price does."""
        return state.kind or self.price_kind or "cash"


@dataclass(slots=True)
class SweepManifest:
    """The manifest of one sweep, in memory.

    Attributes:
        about: Everything but the runs.
        runs: By id, in order.
    """

    root: Path
    about: dict[str, Any]
    runs: dict[str, ManifestRun]
    states: dict[str, RunState] = field(default_factory=dict)
    clock: Clock = SYSTEM
    _next_ns: int = 0
    _behind: bool = False

    def state(self, run: str) -> RunState:
        """Return how a run stands."""
        return self.states.setdefault(run, RunState())

    def elapsed_of(self, status: Status) -> list[int]:
        """Return how long each run that stands so ran, all its attempts, in nanoseconds."""
        return [state.elapsed_ns for state in self.states.values() if state.status == status]

    def write(self) -> None:
        """Put the file in place, whole and synced.

        Raises:
            SweepNotRecorded: The disk refuses; the file that was there still is.
        """
        began_ns = self.clock.monotonic_ns()
        path = self.root / NAME
        try:
            write_whole(path, self.document(), synced=True, private=True)
        except OSError as error:
            raise SweepNotRecorded(str(path), error.strerror or str(error)) from error
        now_ns = self.clock.monotonic_ns()
        self._next_ns = now_ns + _REST * (now_ns - began_ns)
        self._behind = False

    def apply(self, run: str, event: Event) -> None:
        """Take in what happened to a run; ``catch_up`` writes it."""
        self.state(run).apply(event)
        self._behind = True

    def catch_up(self) -> None:
        """Write what has happened since the file was written, if it is time.

        Rewriting takes longer the more runs there are, and is done the more seldom: its share of
        the harness's time is bounded, whatever the number of runs. The journal is never behind.
        """
        if self._behind and self.clock.monotonic_ns() >= self._next_ns:
            self.write()

    def document(self) -> bytes:
        """Return the file's content: indented JSON with sorted keys."""
        runs = [run.document | _shown(self.state(name)) for name, run in self.runs.items()]
        encoded = msgspec.json.encode(self.about | {"runs": runs}, enc_hook=str, order="sorted")
        return msgspec.json.format(encoded, indent=2) + b"\n"


def read_manifest(root: Path, clock: Clock = SYSTEM) -> SweepManifest:
    """Return a sweep as it stands: its manifest, and the journal's last event of each run.

    Raises:
        NotASweep: There is no manifest, or it cannot be read.
    """
    try:
        document = read_document(root / NAME, dict[str, Any], largest=LARGEST)
        listed = [ManifestRun.of(_static(fields)) for fields in document.pop("runs")]
    except FileNotFoundError:
        raise NotASweep(str(root), f"no {NAME} here") from None
    except (OSError, BadDocument, AttributeError, KeyError, TypeError) as error:
        raise NotASweep(str(root), f"{NAME} cannot be read ({error})") from None
    runs = {run.id: run for run in listed}
    return SweepManifest(root, document, runs, fold(read_events(root)), clock)


def is_sweep(directory: Path) -> bool:
    """Say whether a directory holds a sweep."""
    return (directory / NAME).is_file()


def main() -> None:
    """Rewrite a manifest from the journal, for a harness that was killed.

    The journal has it all; where the manifest cannot be written, the next harness will.
    """
    with suppress(OutlayError):
        read_manifest(Path(sys.argv[1])).write()


_SHOWN: Final = (
    "status", "returncode", "reason", "attempts", "started_at", "finished_at", "elapsed_s",
    "cost", "currency", "cost_kind", "command", "env", "hold",
)  # fmt: skip


def _static(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of the file without how it stood when that was written."""
    return {
        name: value
        for name, value in fields.items()
        if name not in _SHOWN or (name in ("command", "env") and value)
    }


def _shown(state: RunState) -> dict[str, Any]:
    """Return how a run stands under the documented names."""
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
    """Return an instant as the manifest has it, in UTC."""
    return f"{utc_datetime(wall_ns):%Y-%m-%dT%H:%M:%SZ}"


def counts(manifest: SweepManifest) -> dict[str, int]:
    """Return how many runs stand how."""
    return dict(Counter(manifest.state(run).status for run in manifest.runs))


def captured(manifest: SweepManifest, kind: Kind = "cash") -> list[Money]:
    """Return what the attempts of a sweep that have ended cost, by currency; of one kind."""
    states = [manifest.state(run.id) for run in runs_of_kind(manifest, kind)]
    return sum_by_currency(
        Money(s.cost_micros, s.currency) for s in states if s.cost_micros is not None
    )


def planned(manifest: SweepManifest, kind: Kind = "cash") -> list[Money]:
    """Return what the runs of a sweep were planned to cost, by currency; empty where unknown."""
    costs = [run.planned_cost for run in runs_of_kind(manifest, kind)]
    return sum_by_currency(cost for cost in costs if cost is not None)


def runs_of_kind(manifest: SweepManifest, kind: Kind) -> list[ManifestRun]:
    """Return the runs whose cost is of one kind."""
    runs = manifest.runs.values()
    return [run for run in runs if run.kind_of_cost(manifest.state(run.id)) == kind]


if __name__ == "__main__":
    main()
