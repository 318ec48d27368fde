"""``sweep_manifest.json``: what a sweep is and, by the journal, how it stands.

The static part is written whole before anything starts. How runs stand is the journal's to say;
the manifest repeats it for people and other programs, at a cost that does not grow with each
update (see ``Manifest.refresh``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.decoding import BadDocument, convert, read_document
from outlay.errors import OutlayError
from outlay.files import write_whole
from outlay.ledger.price import Kind
from outlay.sweep.engines.base import Ended
from outlay.sweep.errors import NotASweep, SweepNotRecorded
from outlay.sweep.run.money import AttemptCost
from outlay.sweep.state.journal import LARGEST, Event, Journal, Status, read_events
from outlay.sweep.state.outcomes import RunState, RunVerdict, fold
from outlay.units import Money

NAME: Final = "sweep_manifest.json"
_REST: Final = 50
"""A manifest is rewritten at most once in so many times of what rewriting took."""


@dataclass(slots=True)
class SweepManifest:
    """The manifest of one sweep, in memory.

    Attributes:
        about: Everything but the runs.
        runs: The static part of each run, by id, in order.
    """

    root: Path
    about: dict[str, Any]
    runs: dict[str, dict[str, Any]]
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
        runs = [static | _shown(self.state(run)) for run, static in self.runs.items()]
        encoded = msgspec.json.encode(self.about | {"runs": runs}, enc_hook=str, order="sorted")
        return msgspec.json.format(encoded, indent=2) + b"\n"


def read_manifest(root: Path, clock: Clock = SYSTEM) -> SweepManifest:
    """Return a sweep as it stands: its manifest, and the journal's last event of each run.

    Raises:
        NotASweep: There is no manifest, or it cannot be read.
    """
    try:
        document = read_document(root / NAME, dict[str, Any], largest=LARGEST)
        runs = {run["id"]: run for run in document.pop("runs")}
    except FileNotFoundError:
        raise NotASweep(str(root), f"no {NAME} here") from None
    except (OSError, BadDocument, KeyError, TypeError) as error:
        raise NotASweep(str(root), f"{NAME} cannot be read ({error})") from None
    static = {run: _static(fields) for run, fields in runs.items()}
    return SweepManifest(root, document, static, fold(read_events(root)), clock)


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


def counts(manifest: SweepManifest, runs: Iterable[str] | None = None) -> dict[str, int]:
    """Return how many runs stand how."""
    found: dict[str, int] = {}
    for run in manifest.runs if runs is None else runs:
        status = manifest.state(run).status
        found[status] = found.get(status, 0) + 1
    return found


def kind_of_run(manifest: SweepManifest, run: str) -> Kind:
    """Return of which kind a run's cost is: as its log says, else as the sweep's price does."""
    kind: Kind = manifest.state(run).kind or manifest.runs[run].get("price_kind") or "cash"
    return kind


def captured(manifest: SweepManifest, kind: Kind = "cash") -> list[Money]:
    """Return what the attempts of a sweep that have ended cost, by currency; of one kind."""
    states = {run: manifest.state(run) for run in _of_kind(manifest, kind)}
    return total(
        Money(s.cost_micros, s.currency) for s in states.values() if s.cost_micros is not None
    )


def planned(manifest: SweepManifest, kind: Kind = "cash") -> list[Money]:
    """Return what the runs of a sweep were planned to cost, by currency; empty where unknown."""
    stated = [manifest.runs[run].get("predicted_cost") for run in _of_kind(manifest, kind)]
    return total(Money.parse(text, name="predicted_cost") for text in stated if text)


def _of_kind(manifest: SweepManifest, kind: Kind) -> list[str]:
    return [run for run in manifest.runs if kind_of_run(manifest, run) == kind]


def total(amounts: Iterable[Money]) -> list[Money]:
    """Return the sum of amounts by currency."""
    micros: dict[str, int] = {}
    for amount in amounts:
        micros[amount.currency] = micros.get(amount.currency, 0) + amount.micros
    return [Money(amount, currency) for currency, amount in sorted(micros.items())]


@dataclass(frozen=True, slots=True)
class Recording:
    """Records what happens to runs: in the journal at once, in the manifest when it is written.

    Without a journal in this process alone: whoever runs the sweep writes it down.
    """

    manifest: SweepManifest
    journal: Journal | None

    def note(self, run: str, status: Status, **facts: object) -> None:
        """Write down what a run is from now on."""
        t_ns = self.manifest.clock.wall_ns()
        event = convert({"t_ns": t_ns, "run": run, "status": status, **facts}, Event)
        if self.journal is not None:
            # A start that cannot be written down does not happen; an end has happened anyway.
            self.journal.append(event, keep=status != "running")
        self.manifest.apply(run, event)

    def correct(self, run: str, more: AttemptCost) -> None:
        """Write down that a run that has ended cost more than was known then."""
        assert more.cost is not None
        status = self.manifest.state(run).status
        self.note(
            run, status, corrects=True, cost_micros=more.cost.micros,
            currency=more.cost.currency, kind=more.kind, logged_micros=more.logged_micros,
        )  # fmt: skip

    def end(self, run: str, verdict: RunVerdict, ended: Ended, priced: AttemptCost) -> None:
        """Write down how an attempt ended and what it cost."""
        cost = priced.cost
        self.note(
            run, verdict.status, reason=verdict.reason, returncode=ended.returncode,
            elapsed_ns=ended.elapsed_ns, cost_micros=None if cost is None else cost.micros,
            currency="" if cost is None else cost.currency, kind=priced.kind,
            logged_micros=priced.logged_micros,
        )  # fmt: skip


if __name__ == "__main__":
    main()
