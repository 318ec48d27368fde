"""The energy of a run is counted once, if several processes measured it."""

from __future__ import annotations

from pathlib import Path

from ledgers import START_NS, Segment, ns
from outlay.budget.history import read_history
from outlay.goodput.follower import read_view
from outlay.ledger import SUPERVISOR, Heartbeat
from outlay.runs.reading import read_figures
from outlay.sweep.aggregate.aggregator import read_ledger
from outlay.units.quantity import MILLIJOULES_PER_WH

NOW_NS = START_NS + ns(100)


def supervised(run_dir: Path, *, inside_mj: int) -> None:
    """A training of one step that a supervisor saw use 100 mJ."""
    watching = Segment(rank=SUPERVISOR).after(10)
    watching.add(Heartbeat(t_ns=watching.now_ns, energy_mj=100)).end().write(run_dir)
    Segment(start=1).step(1, energy_mj=inside_mj).end().write(run_dir)


def energies(run_dir: Path) -> list[int]:
    facts = read_ledger(run_dir, NOW_NS)
    assert facts is not None
    assert facts.energy_wh is not None
    return [
        read_figures(run_dir, NOW_NS).energy_mj,
        read_view(run_dir, NOW_NS).energy_mj(),
        round(facts.energy_wh * MILLIJOULES_PER_WH),
    ]


def test_energy_measured_by_training_and_supervisor_counts_once(tmp_path: Path) -> None:
    supervised(tmp_path, inside_mj=90)
    assert energies(tmp_path) == [90, 90, 90]
    assert read_history(tmp_path).spend(NOW_NS).executed.energy_mj == 90


def test_a_supervisors_figure_counts_if_the_training_measured_nothing(tmp_path: Path) -> None:
    supervised(tmp_path, inside_mj=0)
    assert energies(tmp_path) == [100, 100, 100]


def test_each_attempts_energy_is_decided_separately(tmp_path: Path) -> None:
    supervised(tmp_path, inside_mj=90)
    alone = Segment(start=50, rank=SUPERVISOR).after(1)
    alone.add(Heartbeat(t_ns=alone.now_ns, energy_mj=7)).end().write(tmp_path)
    assert energies(tmp_path) == [97, 97, 97]


def restarted(run_dir: Path, *, first_mj: int, second_mj: int) -> None:
    """Two starts of a training that one supervisor saw use 100 mJ in all."""
    watching = Segment(rank=SUPERVISOR).after(50)
    watching.add(Heartbeat(t_ns=watching.now_ns, energy_mj=100)).end().write(run_dir)
    Segment(start=1).step(1, energy_mj=first_mj).write(run_dir)
    Segment(start=20).step(1, energy_mj=second_mj).end().write(run_dir)


def test_supervisors_energy_of_several_starts_counts_once(tmp_path: Path) -> None:
    restarted(tmp_path, first_mj=0, second_mj=0)
    assert energies(tmp_path) == [100, 100, 100]


def test_supervisors_energy_is_ignored_if_any_of_its_starts_measured(tmp_path: Path) -> None:
    restarted(tmp_path, first_mj=30, second_mj=0)
    assert energies(tmp_path) == [30, 30, 30]
