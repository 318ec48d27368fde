"""The small training of ``paused_training``, on a machine that is rented for each attempt."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from command_line import outlay
from outlay.clock import wall_ns_of
from outlay.guard.entries import parse_timestamp
from paused_training import LABEL, PausedTraining
from rented import PROGRAM, StandIn
from waiting import until


@dataclass
class RentedTraining(PausedTraining):
    """One, and the vendor's stand-in."""

    vendor: StandIn = field(init=False)

    def __post_init__(self) -> None:
        directory = self.root / "vendor"
        directory.mkdir(parents=True)
        self.vendor = StandIn(directory)

    def renting(self) -> list[str]:
        base = (*PROGRAM, str(self.vendor.directory))
        return [
            "guard", "rent", "--label", LABEL, "--log", str(self.log), "--ceiling", self.ceiling,
            "--create", shlex.join((*base, "create", "{name}")), "--list-is-complete",
            "--list", shlex.join((*base, "list")),
            "--terminate", shlex.join((*base, "terminate", "{id}")),
            "--settle", "1s", "--poll", "200ms",
        ]  # fmt: skip

    def arguments(self, *more: str) -> list[str]:
        return [
            *self.renting(), "--dir", str(self.run_dir), *self.policy_options(),
            "--price-poll", "100ms", "--notice", "20s", *more, "--", *self.command(),
        ]  # fmt: skip

    def rent_by_hand(self) -> str:
        """Rent one more under the same label, as somebody does; return its id."""
        ran = outlay(*self.renting(), "--rate", "1 USD/h", "--max-hours", "1", "--json")
        assert ran.code == 0, ran.err
        return str(ran.json["resource"])

    def own_rentals(self) -> list[dict[str, Any]]:
        """The holds of rentals that the policy ordered."""
        held = self.of_kind("hold")
        return [line for line in held if line.get("rental", {}).get("run")]

    def watchers(self) -> list[tuple[str, int]]:
        """The hold and the process of each watcher that was noted."""
        noted = [line for line in self.of_kind("note") if line["event"] == "watched"]
        return [(each["hold"], int(each["detail"]["watcher"].split(":")[1])) for each in noted]

    def kill_watcher(self) -> None:
        """Kill that of the latest rental."""
        os.kill(self.watchers()[-1][1], signal.SIGKILL)

    def overlaps(self) -> bool:
        """Whether one was ever ordered while another of the policy's was not verified gone."""
        open_now, own = set[str](), {line["hold"] for line in self.own_rentals()}
        for line in self.lines():
            if line.get("hold") in own and line["kind"] == "hold":
                if open_now:
                    return True
                open_now.add(line["hold"])
            elif line["kind"] in ("capture", "void"):
                open_now.discard(line["hold"])
        return False

    def check_money(self) -> None:
        """Every rental is captured once, for its time from the order until it was gone."""
        captures = {line["hold"]: line for line in self.of_kind("capture")}
        assert len(captures) == len(self.of_kind("capture"))
        notes = [line for line in self.of_kind("note") if line.get("hold")]
        for hold in self.own_rentals():
            tried = [n for n in notes if (n["hold"], n["event"]) == (hold["hold"], "terminating")]
            if not tried:  # It was never created.
                assert captures.get(hold["hold"], {"actual": 0})["actual"] == 0
                continue
            captured = captures[hold["hold"]]
            per_s = float(hold["rental"]["rate"].split()[0]) / 3600
            begun = _seconds(hold["rental"]["started"])
            least = (_seconds(tried[0]["ts"]) - begun) * per_s
            most = (_seconds(captured["ts"]) - begun) * per_s
            assert least <= captured["actual"] <= most + 1e-6


def _seconds(text: str) -> float:
    return wall_ns_of(parse_timestamp(text)) / 1e9


@contextmanager
def all_ended(training: RentedTraining) -> Iterator[None]:
    """Leave no process and no watcher, whatever the vendor was made to do."""
    try:
        yield
    finally:
        if training.process is not None:
            training.kill()
        until(lambda: not training.runs_still(), "its processes to end")
        for _, pid in training.watchers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
