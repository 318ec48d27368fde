"""The guard only keeps books: it works with every socket taken away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_SOCKETS = """
import sys

def forbid(event, args):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")):
        raise AssertionError(f"the guard reached for the network: {event} {args}")

sys.addaudithook(forbid)
import importlib, pkgutil
import outlay.guard
for module in pkgutil.iter_modules(outlay.guard.__path__):
    importlib.import_module(f"outlay.guard.{module.name}")
networks = {"socket", "ssl", "httpx2", "http.client", "urllib.request", "sqlalchemy"}
assert not networks & set(sys.modules), networks & set(sys.modules)
assert not any(name.startswith("outlay.prices") for name in sys.modules)

from outlay.guard.budget_guard import BudgetGuard
guard = BudgetGuard(5, sys.argv[1])
hold = guard.extend(guard.authorize("lab02-a", 2), 1)
guard.record_actual("lab02-a", 1.5)
guard.correct("lab02-a", -0.5, "invoice")
guard.void(guard.authorize("b", 1), "not needed")
assert guard.verify().findings == ()
print(guard.total_spent, guard.remaining)
"""


def test_the_guard_works_with_every_socket_taken_away(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SOCKETS, str(tmp_path / "spend.jsonl")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["1.0", "4.0"], done.stderr
