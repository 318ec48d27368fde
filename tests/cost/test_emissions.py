"""Energy of runs, and by stated factors what it emits and costs."""

from __future__ import annotations

from csv import DictReader
from pathlib import Path

import pytest

from command_line import in_process
from ledgers import Segment, dollars
from outlay.cost.spending import energy_in, spending_of
from outlay.errors import InvalidValue
from outlay.ledger import Heartbeat
from outlay.prices.energy_factors import EnergyFactors, read_factors
from outlay.runs.reading import read_run, stored_row
from outlay.units import Money
from outlay.units.quantity import NS_PER_HOUR
from outlay.web.book_reader import BookReader
from outlay.web.money import money_page
from outlay.web.page import PageQuery

KWH_MJ = 3_600_000_000
FACTORS = 'carbon = "350 g/kWh"\npue = 1.2\nenergy_price = "0.30 EUR/kWh"\n'


@pytest.fixture
def run(tmp_path: Path, private_home: Path) -> Path:
    """A run of two hours that used 2 kWh in steps and 0.5 kWh in a heartbeat."""
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text(FACTORS)
    about = {"price": dollars(3), "run_id": "a", "name": "a", "model": "m"}
    story = Segment(about=about).step(3600, energy_mj=KWH_MJ)
    story.add(Heartbeat(t_ns=story.now_ns + 1, energy_mj=KWH_MJ // 2))
    story.step(3600, energy_mj=KWH_MJ).end().write(tmp_path / "a")
    assert in_process("collect", tmp_path / "a").code == 0
    return tmp_path / "a"


def test_every_screen_shows_energy_emissions_and_their_cost(run: Path, tmp_path: Path) -> None:
    energy = in_process("cost", run, "--json").json["energy"]
    assert (energy["kwh"], energy["emitted_g"]) == (2.5, pytest.approx(1050))
    assert energy["cost"] == {"micros": 900_000, "currency": "EUR"}
    assert in_process("report", run, "--output", tmp_path / "page").code == 0
    month = PageQuery(path="/money", query=[("month", "2023-11")])
    shown = {
        "cost": in_process("cost", run, columns=120).out,
        "report": (tmp_path / "page" / "report.html").read_text(),
        "digest": in_process("digest", "--since", "2023-11-01T00:00Z", columns=120).out,
        "money": "".join(money_page(month, BookReader()).parts),
    }
    for name, text in shown.items():
        for figure in ("2.5 kWh", "1,050 gCO₂e", "0.90 EUR"):
            assert figure in text, (name, figure)


def test_energy_of_heartbeats_is_in_the_csv_file(run: Path, tmp_path: Path) -> None:
    assert in_process("export", "csv", run, "--output", tmp_path / "csv").code == 0
    rows = list(DictReader((tmp_path / "csv" / "energy.csv").read_text().splitlines()))
    found = [(row["step"], float(row["energy_Wh_cum"])) for row in rows]
    assert found == [("0", 1000), ("0", 1500), ("1", 2500)]


def test_a_part_of_a_run_has_the_part_of_its_energy(run: Path) -> None:
    row = stored_row(read_run(run))
    spends = spending_of([row], [row]).spends
    half_ns = row.started_ns + NS_PER_HOUR
    first = energy_in(spends, {"a": row}, row.started_ns, half_ns)
    second = energy_in(spends, {"a": row}, half_ns, half_ns + 2 * NS_PER_HOUR)
    assert first == second == row.energy_mj // 2


def test_without_factors_only_the_energy_is_known() -> None:
    nothing = EnergyFactors()
    assert (nothing.emitted_g(KWH_MJ), nothing.cost(KWH_MJ)) == (None, None)
    assert read_factors() == nothing


@pytest.mark.parametrize(
    "text", ['carbon = "350"', "pue = 0.9", 'energy_price = "0.30 EUR"', "pue = {}", "carbon = 1"]
)
def test_a_factor_that_is_none_is_refused(private_home: Path, text: str) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text(text)
    with pytest.raises(InvalidValue):
        read_factors()


def test_kilograms_and_a_price_are_read(private_home: Path) -> None:
    private_home.mkdir(parents=True, exist_ok=True)
    (private_home / "outlay.toml").write_text('carbon = "0.4 kg/kWh"\nenergy_price = "0.2 USD/kWh"')
    factors = read_factors()
    assert factors.emitted_g(KWH_MJ) == pytest.approx(400)
    assert factors.cost(3 * KWH_MJ) == Money(600_000)
