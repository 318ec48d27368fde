"""A thousand callers race for five dollars, ten cents each: who is answered, and what is spent.

Run: python benchmarks/guard_race.py

outlay holds before the call; LiteLLM's BudgetManager and shekel are asked as their own pages show:
the budget is looked at, the call is made, its cost is added. Their calls are LiteLLM's mocked ones,
which reach no network and cost ten cents by the price that is registered. Processes and threads are
started before the clock is.
"""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing it asks the network for prices

import timing

from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded

CALLERS, PROCESSES = 1_000, 32
CEILING, EACH = "5.00", "0.10"
MODEL = "gpt-race"
SHARES = [CALLERS // PROCESSES + (n < CALLERS % PROCESSES) for n in range(PROCESSES)]

Caller = Callable[[], bool]
"""Asks for ten cents; returns whether they were granted, or None in whatever it raises."""


@dataclass(frozen=True)
class Race:
    """How long it took, how many were granted, and how many were never answered."""

    seconds: float
    won: int
    unanswered: int

    def text(self, name: str, spent: float) -> str:
        """Return it as a line."""
        return (
            f"{name:44} {self.seconds:7.2f} s  {self.won:5d} granted  "
            f"{self.unanswered:4d} unanswered  {spent:8.2f} USD spent of {CEILING}"
        )


def ask(caller: Caller) -> bool | None:
    try:
        return caller()
    except Exception as error:  # noqa: BLE001 - whatever it is, this caller has no answer
        print(f"unanswered: {type(error).__name__}: {error}")
        return None


def in_threads(callers: list[Caller]) -> Race:
    start, answers = threading.Event(), list[bool | None]()

    def run(caller: Caller) -> None:
        start.wait()
        answers.append(ask(caller))

    contexts = [contextvars.copy_context() for _ in callers]  # shekel's budget is a context's
    threads = [
        threading.Thread(target=context.run, args=(run, caller))
        for context, caller in zip(contexts, callers, strict=True)
    ]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    start.set()
    for thread in threads:
        thread.join()
    return Race(time.perf_counter() - begun, answers.count(True), answers.count(None))


def in_processes(make: Callable[[], Caller]) -> Race:
    context = multiprocessing.get_context("fork")
    ready, start, answers = context.Semaphore(0), context.Event(), context.SimpleQueue()

    def run(share: int) -> None:
        caller = make()
        ready.release()
        start.wait()
        answers.put([ask(caller) for _ in range(share)])
        os._exit(0)  # without the clean-up of what was forked

    workers = [context.Process(target=run, args=(share,)) for share in SHARES]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    begun = time.perf_counter()
    start.set()
    everything = [answer for _ in workers for answer in answers.get()]
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    return Race(seconds, everything.count(True), everything.count(None))


def holder(guard: BudgetGuard) -> Caller:
    def hold() -> bool:
        try:
            guard.authorize("race", EACH)
        except BudgetGuardExceeded:
            return False
        return True

    return hold


def outlay_races(directory: Path) -> dict[str, float]:
    def open_guard(name: str) -> BudgetGuard:
        return BudgetGuard(CEILING, directory / name / "spend.jsonl", environ={})

    races: dict[str, tuple[str, Callable[[], Race], float]] = {
        f"outlay: {CALLERS:,} threads, one guard": (
            "a", lambda: in_threads([holder(open_guard("a"))] * CALLERS), 2.0
        ),
        f"outlay: {PROCESSES} processes": (
            "b", lambda: in_processes(lambda: holder(open_guard("b"))), 2.0
        ),
        f"outlay: {CALLERS:,} guards in threads": (
            "c", lambda: in_threads([holder(open_guard("c")) for _ in range(CALLERS)]), 5.0
        ),
    }  # fmt: skip
    seconds = {}
    for name, (place, run, bar) in races.items():
        race, spent = run(), open_guard(place).committed
        print(race.text(name, spent))
        assert (race.won, race.unanswered, spent) == (50, 0, 5.0), race
        assert open_guard(place).verify().findings == ()
        timing.verdict(name, race.seconds, bar)
        seconds[name] = race.seconds
    return seconds


def call_model() -> object:
    import litellm

    message = [{"role": "user", "content": "hi"}]
    return litellm.completion(model=MODEL, messages=message, mock_response="ok", api_key="none")


def litellm_caller() -> Caller:
    from litellm import BudgetManager

    manager = BudgetManager(project_name="race")
    if not manager.is_valid_user("race"):
        manager.create_budget(total_budget=float(CEILING), user="race")

    def call() -> bool:
        if manager.get_current_cost("race") + float(EACH) > manager.get_total_budget("race"):
            return False
        manager.update_cost(user="race", completion_obj=call_model())
        return True

    return call


def shekel_caller() -> Caller:
    import shekel

    budget = shekel.budget(
        max_usd=float(CEILING), price_per_1k_tokens={"input": 10.0, "output": 0.0}
    )
    budget.__enter__()

    def call() -> bool:
        with contextlib.suppress(shekel.BudgetExceededError):
            call_model()  # it raises once the call was made: its ten cents are spent
        return True

    return call


def peer_races() -> dict[str, float]:
    if missing := [name for name in ("litellm", "shekel") if not find_spec(name)]:
        print(f"\nnot compared: no {' and no '.join(missing)}; pip install 'outlay[bench]'")
        return {}
    import litellm

    litellm.suppress_debug_info = True
    price = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.0}
    litellm.register_model({MODEL: {**price, "litellm_provider": "openai", "mode": "chat"}})
    call_model()  # it loads much at its first call
    seconds = {}
    for name, make in {"LiteLLM BudgetManager": litellm_caller, "shekel": shekel_caller}.items():
        for way, run in {
            f"{CALLERS:,} threads": lambda make=make: in_threads([make()] * CALLERS),
            f"{PROCESSES} processes": lambda make=make: in_processes(make),
        }.items():
            with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
                race = contextvars.Context().run(run)  # BudgetManager's file, shekel's context
            print(race.text(f"{name}: {way}", race.won * float(EACH)))
            seconds[f"{name}: {way}"] = race.seconds
    return seconds


def main() -> None:
    print(timing.machine())
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        ours = outlay_races(Path(directory))
    peers = peer_races()
    for name, taken in peers.items():
        way = "threads" if "threads" in name else "processes"
        mine = next(key for key in ours if way in key)
        timing.row(f"race for 5 USD ({way})", ours[mine], timing.Figure(name, taken), unit="s")


if __name__ == "__main__":
    main()
