"""Three months of made-up trainings, and what they cost by arithmetic of this file's own.

Nothing of outlay is used here: lines and their checksums are written by hand, and money is computed
in integers from the facts that were drawn, not from the logs. A fixed seed makes one history.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

SECOND, HOUR = 10**9, 3600 * 10**9
MONTHS = ("2026-08", "2026-09", "2026-10")
USERS = ("ada", "bob", "cleo", "dan", "eve")
TEAMS = ("nlp", "cv", "")
MODELS = ("bert", "gpt", "resnet")
BEAT_NS = 300 * SECOND


def month_ns(month: str) -> int:
    """Return when a month begins, UTC nanoseconds."""
    year, number = map(int, month.split("-"))
    return int(datetime(year, number, 1, tzinfo=UTC).timestamp()) * SECOND


BORDERS = [month_ns(month) for month in (*MONTHS, "2026-11")]


def month_of(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // SECOND, tz=UTC).strftime("%Y-%m")


def half_even(units: int) -> int:
    """Return micro-units per hour times nanoseconds as micro-units, half to even."""
    return round(Fraction(units, HOUR))


@dataclass(frozen=True, kw_only=True)
class Price:
    """From ``t_ns`` on, so much for each of so many GPUs."""

    t_ns: int
    micros: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run, from its first record to its last."""

    start_ns: int
    step_ns: int
    first_step: int
    steps: int
    tail_ns: int
    status: str | None
    user: str
    team: str
    machine: str
    stopped_micros: int | None
    prices: tuple[Price, ...]
    accuracy: float | None

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.steps * self.step_ns + self.tail_ns

    def rates(self) -> Iterator[tuple[int, int, int]]:
        """Yield begin, end and micro-units per hour of each stretch at one price."""
        ends = [*(price.t_ns for price in self.prices[1:]), self.end_ns]
        for price, end_ns in zip(self.prices, ends, strict=True):
            yield price.t_ns, end_ns, price.micros * price.gpus

    def units(self, begin_ns: int, end_ns: int) -> int:
        return sum(max(0, min(end_ns, b) - max(begin_ns, a)) * rate for a, b, rate in self.rates())

    def gpu_ns(self, begin_ns: int, end_ns: int) -> int:
        ends = [*(price.t_ns for price in self.prices[1:]), self.end_ns]
        return sum(
            max(0, min(end_ns, b) - max(begin_ns, price.t_ns)) * price.gpus
            for price, b in zip(self.prices, ends, strict=True)
        )

    def after(self, following: Attempt) -> tuple[int, bool]:
        """Return what an hour between this attempt and the next costs, and if it is assumed."""
        full = self.prices[-1].micros * self.prices[-1].gpus
        if self.status == "completed":
            return 0, False
        if self.stopped_micros is not None:
            return self.stopped_micros, False
        if self.status == "preempted":
            return 0, False
        if self.machine and following.machine:
            return (full if self.machine == following.machine else 0), False
        return full, True


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one attempt, or the time after it, is charged with in one month."""

    run_id: str
    model: str
    user: str
    team: str
    month: str
    unit: tuple[str, str]
    micros: int
    assumed: int
    gpu_us: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training, however often started."""

    run_id: str
    model: str
    currency: str
    kind: str
    is_priced: bool
    samples: int
    attempts: tuple[Attempt, ...] = ()

    # What it cost.

    @property
    def micros(self) -> int:
        return sum(charge.micros for charge in self.charges())

    @property
    def assumed(self) -> int:
        return sum(charge.assumed for charge in self.charges())

    @property
    def gpu_us(self) -> int:
        return sum(a.gpu_ns(a.start_ns, a.end_ns) for a in self.attempts) // 1000

    @property
    def end_ns(self) -> int:
        return self.attempts[-1].end_ns

    @property
    def wall_ns(self) -> int:
        rests = [
            later.start_ns - a.end_ns
            for a, later in zip(self.attempts, self.attempts[1:], strict=False)
            if a.status == "completed"
        ]
        return self.end_ns - self.attempts[0].start_ns - sum(rests)

    @property
    def accuracy(self) -> float | None:
        return max((a.accuracy for a in self.attempts if a.accuracy is not None), default=None)

    def charges(self) -> list[Charge]:
        """Return what is charged to whom, in which month; totals are rounded, parts differ."""
        if not self.is_priced:
            return []
        found: list[Charge] = []
        units = gpu_ns = 0

        def book(
            a: Attempt, t_ns: int, more_units: int, more_gpu_ns: int, *, assumed: bool
        ) -> None:
            nonlocal units, gpu_ns
            micros = half_even(units + more_units) - half_even(units)
            gpu_us = (gpu_ns + more_gpu_ns) // 1000 - gpu_ns // 1000
            units, gpu_ns = units + more_units, gpu_ns + more_gpu_ns
            found.append(
                Charge(
                    run_id=self.run_id, model=self.model, user=a.user, team=a.team,
                    month=month_of(t_ns), unit=(self.currency, self.kind), micros=micros,
                    assumed=micros if assumed else 0, gpu_us=gpu_us,
                )
            )  # fmt: skip

        for a, later in zip(self.attempts, (*self.attempts[1:], None), strict=True):
            inside = [t_ns for t_ns in BORDERS if a.start_ns < t_ns < a.end_ns]
            edges = [a.start_ns, *inside, a.end_ns]
            for begin_ns, end_ns in pairwise(edges):
                parts = a.units(begin_ns, end_ns), a.gpu_ns(begin_ns, end_ns)
                book(a, begin_ns, *parts, assumed=False)
            if later is not None:
                rate, is_assumed = a.after(later)
                rest = rate * (later.start_ns - a.end_ns)
                if rest:
                    book(a, later.start_ns, rest, 0, assumed=is_assumed)
        return found

    def by_phase(self) -> dict[str, int]:
        """Return micro-units by phase; the parts sum to the cost by largest remainder."""
        units: dict[str, int] = defaultdict(int)
        for place, a in enumerate(self.attempts):
            redone = min((b.first_step for b in self.attempts[place + 1 :]), default=10**9)
            for number in range(a.steps):
                begin_ns = a.start_ns + number * a.step_ns
                phase = "wasted_progress" if a.first_step + number >= redone else "step"
                units[phase] += a.units(begin_ns, begin_ns + a.step_ns)
            units["other"] += a.units(a.end_ns - a.tail_ns, a.end_ns)
            if place + 1 < len(self.attempts):
                later = self.attempts[place + 1]
                units["recovery"] += a.after(later)[0] * (later.start_ns - a.end_ns)
        order = [name for name in ("step", "wasted_progress", "recovery", "other") if units[name]]
        shares = {name: units[name] // HOUR for name in order}
        missing = half_even(sum(units.values())) - sum(shares.values())
        for name in sorted(order, key=lambda name: -(units[name] % HOUR))[:missing]:
            shares[name] += 1
        return {name: micros for name, micros in shares.items() if micros}

    # How it is written down.

    def write(self, root: Path, *, until_ns: int | None = None) -> Path | None:
        """Write the run's log; with an instant, what of it had been written by then."""
        ledger = root / self.run_id / "ledger"
        for place, a in enumerate(self.attempts):
            records = list(self._records(a))
            if until_ns is not None:
                records = [record for record in records if record["t_ns"] <= until_ns]
            if records:
                ledger.mkdir(parents=True, exist_ok=True)
                name = f"{a.start_ns:020d}-node-{place + 1}-r0.jsonl"
                (ledger / name).write_bytes(b"".join(_lines(records)))
        return ledger.parent if ledger.exists() else None

    def _records(self, a: Attempt) -> Iterator[dict[str, Any]]:
        """Yield an attempt's records in order of time, without their place in the segment."""
        records = [self._header(a)]
        records += (
            {
                "kind": "price_changed",
                "t_ns": p.t_ns,
                "price": self._price(p.micros),
                "gpus": p.gpus,
            }
            for p in a.prices[1:]
            if self.is_priced
        )
        for number in range(a.steps):
            records.append(
                {
                    "kind": "step", "t_ns": a.start_ns + (number + 1) * a.step_ns,
                    "step": a.first_step + number, "dur_ns": a.step_ns,
                    "samples": self.samples, "tokens": 1000,
                }
            )  # fmt: skip
        beats = range(a.start_ns + BEAT_NS, a.end_ns, BEAT_NS)
        near = (t for t in beats if any(abs(t - border) < 3 * HOUR for border in BORDERS))
        records += ({"kind": "heartbeat", "t_ns": t_ns} for t_ns in near)
        if a.accuracy is not None:
            accuracy = {"name": "accuracy", "value": a.accuracy}
            records.append({"kind": "metric", "t_ns": a.end_ns - a.tail_ns} | accuracy)
        last = {"kind": "heartbeat"} if a.status is None else {"kind": "attempt_ended"}
        status = {} if a.status is None else {"status": a.status}
        records.append(last | {"t_ns": a.end_ns} | status)
        yield from sorted(records, key=lambda record: record["t_ns"])

    def _header(self, a: Attempt) -> dict[str, Any]:
        first = a.prices[0]
        header: dict[str, Any] = {
            "kind": "attempt_started", "t_ns": a.start_ns, "run_id": self.run_id,
            "model": self.model, "name": self.run_id, "host": "node", "user": a.user,
            "tags": {"team": a.team} if a.team else {}, "gpus": first.gpus, "nodes": 1,
            "gpus_source": "stated", "instance_id": a.machine,
        }  # fmt: skip
        if self.is_priced:
            header["price"] = self._price(first.micros)
            if a.stopped_micros is not None:
                header["stopped_machine_price"] = self._price(a.stopped_micros)
        return header

    def _price(self, micros: int) -> dict[str, Any]:
        return {"micros_per_hour": micros, "currency": self.currency, "kind": self.kind}


def _lines(records: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for seq, record in enumerate(records):
        text = json.dumps({"v": 1, "seq": seq, **record}, separators=(",", ":"))[:-1].encode()
        yield text + b',"crc":"%08x"}\n' % crc32(text)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A training that somebody stated instead of recording it."""

    run_id: str
    model: str
    price_micros: int
    gpus: int
    minutes: int
    at_ns: int

    @property
    def micros(self) -> int:
        return half_even(self.price_micros * self.gpus * self.minutes * 60 * SECOND)

    @property
    def gpu_us(self) -> int:
        return self.gpus * self.minutes * 60 * 10**6

    def charge(self) -> Charge:
        return Charge(
            run_id=self.run_id, model=self.model, user="", team="", month=month_of(self.at_ns),
            unit=("USD", "cash"), micros=self.micros, assumed=0, gpu_us=self.gpu_us,
        )  # fmt: skip


@dataclass(frozen=True)
class History:
    """All that was spent."""

    runs: list[Run] = field(default_factory=list)
    stated: list[Stated] = field(default_factory=list)

    def charges(self) -> list[Charge]:
        inside = [charge for run in self.runs for charge in run.charges()]
        return [*inside, *(each.charge() for each in self.stated)]

    def sums(
        self, month: str, owner_of: Callable[[Charge], str], kind: str = "cash"
    ) -> dict[tuple[str, str], dict[str, int]]:
        """Return by owner and currency what was charged in a month."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        names: dict[tuple[str, str], set[str]] = defaultdict(set)
        for charge in self.charges():
            if charge.month != month or charge.unit[1] != kind:
                continue
            key = owner_of(charge) or "(untagged)", charge.unit[0]
            row = found.setdefault(key, {"micros": 0, "assumed": 0, "gpu_us": 0, "runs": 0})
            for name in ("micros", "assumed", "gpu_us"):
                row[name] += getattr(charge, name)
            names[key].add(charge.run_id)
            row["runs"] = len(names[key])
        return found


def make_history(seed: int, runs: int) -> History:
    """Return a history of so many runs, the same for the same seed."""
    dice = random.Random(seed)
    stated = [
        Stated(
            run_id=f"stated-{n}", model=dice.choice(MODELS),
            price_micros=dice.randrange(10**6, 5 * 10**6), gpus=dice.randrange(1, 5),
            minutes=dice.randrange(1, 3000),
            at_ns=dice.randrange(BORDERS[0], BORDERS[-1], SECOND),
        )
        for n in range(max(1, runs // 20))
    ]  # fmt: skip
    return History([_make_run(dice, f"run-{n:03d}") for n in range(runs)], stated)


def _make_run(dice: random.Random, run_id: str) -> Run:
    run = Run(
        run_id=run_id, model=dice.choice(MODELS), currency=dice.choice(["USD", "USD", "EUR"]),
        kind="showback" if dice.random() < 0.08 else "cash", is_priced=dice.random() > 0.06,
        samples=dice.randrange(1, 64),
    )  # fmt: skip
    start_ns = dice.randrange(BORDERS[0], BORDERS[-1] - 40 * 24 * HOUR, 1)
    if dice.random() < 0.2:  # Across the end of a month.
        start_ns = dice.choice(BORDERS[1:3]) - dice.randrange(2 * HOUR)
    step_ns = dice.randrange(20 * SECOND, 4000 * SECOND)
    attempts: list[Attempt] = []
    reached = 0
    while True:
        is_last = dice.random() < 0.55 or len(attempts) == 4
        a = _make_attempt(dice, start_ns, step_ns, reached, is_last=is_last)
        attempts.append(a)
        reached = max(0, a.first_step + a.steps - dice.randrange(3))
        # Most go on within hours; some weeks later, in another month.
        start_ns = a.end_ns + dice.choice([SECOND, 600 * SECOND, 9 * HOUR, 400 * HOUR])
        start_ns += dice.randrange(HOUR)
        if is_last or start_ns > BORDERS[-1] - 4 * 24 * HOUR:
            return replace(run, attempts=tuple(attempts))


def _make_attempt(
    dice: random.Random, start_ns: int, step_ns: int, reached: int, *, is_last: bool
) -> Attempt:
    steps = dice.randrange(1, 12)
    last_ns = start_ns + steps * step_ns
    micros = dice.randrange(100_000, 9_000_000)
    prices = [Price(t_ns=start_ns, micros=micros, gpus=dice.randrange(1, 9))]
    for t_ns in sorted(dice.randrange(start_ns + 1, last_ns) for _ in range(dice.randrange(3))):
        if t_ns > prices[-1].t_ns:
            changed = dice.randrange(100_000, 9_000_000)
            prices.append(Price(t_ns=t_ns, micros=changed, gpus=dice.randrange(1, 9)))
    ends = ["completed", "failed", None] if is_last else ["failed", "preempted", "terminated", None]
    status = dice.choice(ends)
    return Attempt(
        start_ns=start_ns, step_ns=step_ns, first_step=reached, steps=steps,
        tail_ns=dice.randrange(250 * SECOND) if status is None else 0, status=status,
        user=dice.choice(USERS), team=dice.choice(TEAMS), machine=dice.choice(["", "i-1", "i-2"]),
        stopped_micros=dice.randrange(10**6) if dice.random() < 0.1 else None,
        prices=tuple(prices), accuracy=dice.choice([None, round(dice.random(), 6)]),
    )  # fmt: skip
