"""Allocations and sums are exact to the micro-unit."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from outlay.compat.cost_module.training import TrainingMetrics
from outlay.cost.allocation import AllocationRow, Spread, allocate
from outlay.cost.compare import compare, pareto_front, total_of
from outlay.rates import share_out
from outlay.store import RunRow
from outlay.units import Money
from outlay.units.money import per

MICROS = st.integers(0, 10**15)
OWNERS = st.sampled_from("abcdefg")
USAGE = st.lists(
    st.builds(AllocationRow, owner=OWNERS, gpu_us=MICROS, direct=MICROS, assumed=MICROS),
    unique_by=lambda row: row.owner,
)


@given(USAGE, MICROS, st.lists(OWNERS, max_size=3), st.sampled_from(Spread))
def test_allocation_rows_sum_to_the_bill(
    usage: list[AllocationRow], idle: int, shared: list[str], spread: Spread
) -> None:
    found = allocate(usage, idle=idle, shared=shared, spread=spread)
    assert found.total == Money(sum(row.direct for row in usage) + idle)
    assert all(row.direct >= 0 and row.total >= 0 and row.idle >= 0 for row in found.rows)
    assert all(row.shared >= 0 or row.owner in shared for row in found.rows)
    assert sum(row.idle for row in found.rows) == idle
    assert found.assumed == Money(sum(row.assumed for row in usage))
    assert sum(row.gpu_us for row in found.rows) == sum(row.gpu_us for row in usage)


@given(MICROS, st.dictionaries(OWNERS, st.integers(0, 10**12), min_size=1))
def test_no_share_is_more_than_a_micro_unit_off(micros: int, weights: dict[str, int]) -> None:
    weights["z"] = 1
    shares, total = share_out(micros, weights), sum(weights.values())
    assert sum(shares.values()) == micros
    assert all(
        abs(shares[key] * total - micros * weight) < total for key, weight in weights.items()
    )


def row(
    cost_micros: int, accuracy: float | None, name: str = "r", wall_ns: int = 0, energy_mj: int = 0
) -> RunRow:
    return RunRow(
        run_id=name, dir="", model="m", name=name, status="completed", attempts=1, steps=0,
        tokens=0, started_ns=0, last_seen_ns=wall_ns, cost=Money(cost_micros), accuracy=accuracy,
        wall_ns=wall_ns, energy_mj=energy_mj,
    )  # fmt: skip


ROWS = st.lists(st.builds(row, MICROS, st.none() | st.floats(0, 1)), min_size=1, max_size=20)


@given(ROWS)
def test_a_model_costs_the_sum_of_its_runs(rows: list[RunRow]) -> None:
    assert total_of(rows).micros == sum(row.paid.micros for row in rows)
    assert compare(rows).total_cost == float(total_of(rows).amount)


@given(st.integers(0, 10**9), st.integers(1, 10**4), st.integers(1, 64), st.integers(0, 10**8))
def test_a_stated_training_costs_price_times_gpus_times_hours(
    price_micros: int, gpus: int, quarters: int, samples: int
) -> None:
    run = TrainingMetrics(
        "r", "m", samples, 1, 1, 0.1, quarters / 4, "gpu", price_micros / 1e6, gpu_count=gpus
    )
    exact = price_micros * gpus * quarters
    assert abs(run.cost().micros * 4 - exact) <= 2


CANDIDATES = st.lists(
    st.builds(
        row,
        name=st.text("abc", min_size=1, max_size=2),
        accuracy=st.integers(0, 4).map(float),
        cost_micros=st.integers(0, 4),
        wall_ns=st.integers(0, 4),
        energy_mj=st.integers(0, 2),
    ),
    max_size=12,
)


@given(CANDIDATES)
def test_the_pareto_front_equals_brute_force(candidates: list[RunRow]) -> None:
    with_energy = all(c.energy_mj for c in candidates)

    def losses(c: RunRow) -> tuple[float, ...]:
        assert c.accuracy is not None
        return (c.paid.micros, c.wall_ns, -c.accuracy, c.energy_mj if with_energy else 0.0)

    def beaten(c: RunRow) -> bool:
        return any(
            losses(o) != losses(c)
            and all(a <= b for a, b in zip(losses(o), losses(c), strict=True))
            for o in candidates
        )

    front = pareto_front(candidates)
    key = sorted(map(repr, (c for c in candidates if not beaten(c))))
    assert sorted(map(repr, front)) == key


@given(MICROS, st.integers(1, 10**15) | st.floats(1e-6, 1e12) | st.fractions(min_value="1/1000"))
def test_a_unit_costs_the_nearest_float_to_the_exact_quotient(
    micros: int, count: float | Fraction
) -> None:
    assert per(Money(micros), count) == float(Fraction(micros, 10**6) / Fraction(count))
