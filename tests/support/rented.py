"""Rentals of the vendor's stand-in: what its tests share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import vendor_stand_in
from outlay.clock import ManualClock
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.rental.rental import ControlledRental, RentalOrder, Reply, expand, rent
from outlay.guard.rental.watch import poll_once
from outlay.units import Duration, Money, Rate

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
ENVIRON = dict(os.environ)
PROGRAM = (sys.executable, "-S", "-E", vendor_stand_in.__file__)


class StandIn:
    """The vendor, seen from the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def behave(self, command: str, mode: str) -> None:
        (self.directory / f"{command}.mode").write_text(mode)

    def vendor(self, *list_words: str, show: bool = False, **changes: Any) -> Vendor:
        base = (*PROGRAM, str(self.directory))
        return Vendor(
            name="stand-in", list=(*base, "list", *list_words),
            terminate=(*base, "terminate", "{id}"),
            show=(*base, "show", "{id}") if show else (), **changes,
        )  # fmt: skip

    def add(self, *names: str, created: str = "") -> list[str]:
        """Rent something that outlay did not; return the ids."""
        arguments = [(name, created) if created else (name,) for name in names]
        replies = [vendor_stand_in.answer(self.directory, "create", *each) for each in arguments]
        return [json.loads(output)["id"] for _, output in replies]

    def reclaim(self) -> str:
        """End everything, as the vendor does; return what it was, for ``restore``."""
        before = (self.directory / "pods.json").read_text()
        (self.directory / "pods.json").write_text("[]")
        return before

    def restore(self, before: str) -> None:
        """Let everything come back."""
        (self.directory / "pods.json").write_text(before)

    def rename(self, pod_id: str, **changes: object) -> None:
        """Change an id, a name or a creation time."""
        pods = json.loads((self.directory / "pods.json").read_text())
        pods = [pod | changes if pod["id"] == pod_id else pod for pod in pods]
        (self.directory / "pods.json").write_text(json.dumps(pods))

    def create_command(self) -> tuple[str, ...]:
        return (*PROGRAM, str(self.directory), "create", "{name}")

    def running(self) -> list[str]:
        file = self.directory / "pods.json"
        pods = json.loads(file.read_text()) if file.exists() else []
        return [pod["id"] for pod in pods if pod["dying"] is None]

    def calls(self, command: str) -> int:
        return len(self.arguments(command))

    def arguments(self, command: str) -> list[str]:
        """Return what followed the command in each of its calls."""
        lines = (self.directory / "calls").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.split()[0] == command]


def run_in_process(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: str = "",
    places: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """Call the vendor's program in this process, with the replies of ``run_command``."""
    assert stdin == ""
    program, *words = (expand(word, environ, places or {}) for word in command)
    try:
        directory, *arguments = words[len(PROGRAM) - 1 :]
        code, output = vendor_stand_in.answer(Path(directory), *arguments)
    except vendor_stand_in.Hanging:
        return Reply("", f"{program} did not answer within {timeout_s:g} s", finished=False)
    return Reply(output, f"{program} exited with {code}" if code else "")


def order(vendor: StandIn, /, **changes: object) -> RentalOrder:
    wanted: dict[str, object] = {
        "label": "lab02-tp", "limit": Money.parse("20 USD"), "rate": Rate.parse("2 USD/h"),
        "vendor": vendor.vendor(), "create": vendor.create_command(),
        "settle": Duration.parse("1s"),
    }  # fmt: skip
    return RentalOrder(**(wanted | changes))  # type: ignore[arg-type]


def no_watcher(_: Hold) -> None:
    """For tests that are the watcher themselves."""


def rented(guard: BudgetGuard, vendor: StandIn, clock: ManualClock, /, **changes: object) -> Hold:
    wanted = order(vendor, **changes)
    return rent(guard, wanted, ENVIRON, start_watcher=no_watcher, clock=clock)


def watching(guard: BudgetGuard, hold: Hold, clock: ManualClock) -> ControlledRental:
    return ControlledRental(guard=guard, hold=hold, environ=ENVIRON, clock=clock)


def finish(watch: ControlledRental) -> None:
    """Poll until there is nothing left to watch, which must be soon."""
    assert any(not poll_once(watch) for _ in range(10))


def events(guard: BudgetGuard) -> list[str]:
    lines = [json.loads(line) for line in guard.log_path.read_text().splitlines()]
    return [line.get("event") or line["kind"] for line in lines]
