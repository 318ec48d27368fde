"""How many runs a sum of spends is of."""

from __future__ import annotations

import pytest

from outlay.cost.spending import SpendItem, subtotal
from outlay.units import Money


@pytest.mark.parametrize(
    ("sources", "runs"), [(("ledger", "stated"), 2), (("ledger", "owned", "rental", "bill"), 1)]
)
def test_machines_and_bills_are_no_runs(sources: tuple[str, ...], runs: int) -> None:
    nothing = Money.parse("0 USD")
    spends = [
        SpendItem(
            source=source,  # type: ignore[arg-type]
            run_id=source, model="m", name="n", start_ns=0, end_ns=1, booked_ns=0,
            cost=Money.parse("1 USD"), assumed=nothing,
        )
        for source in sources
    ]  # fmt: skip
    found = subtotal(spends)
    assert (found.runs, found.cost) == (runs, Money.parse(f"{len(sources)} USD"))
