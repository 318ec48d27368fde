"""What energy emits and costs, from factors that ``outlay.toml`` states. Asks no network.

Emissions are energy times PUE times the grid's carbon intensity, as in CodeCarbon and Zeus; the
measured energy is that of GPUs, which PUE extends to the data centre.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_toml
from outlay.errors import InvalidValue
from outlay.store.home import settings_path
from outlay.units import Money
from outlay.units.quantity import MILLIJOULES_PER_WH

MJ_PER_KWH: Final = 1000 * MILLIJOULES_PER_WH
_CARBON: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(g|kg)/kWh")
_PRICE: Final = re.compile(r"(.+)/kWh")
_EXAMPLE: Final = (
    'a factor such as carbon = "350 g/kWh", pue = 1.2 or energy_price = "0.30 EUR/kWh"'
)


class _FactorsFile(msgspec.Struct, frozen=True):
    """The factors in ``outlay.toml``, as they are written."""

    carbon: str | None = None
    pue: float | None = None
    energy_price: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFactors:
    """Stated factors; None where nothing is stated.

    Attributes:
        carbon_g: Grams of CO₂-equivalent per kWh of the grid.
        pue: What the data centre uses for each unit that the hardware does; 1 or more.
        price: Of a kWh.
    """

    carbon_g: Fraction | None = None
    pue: Fraction = Fraction(1)
    price: Money | None = None

    def emitted_g(self, energy_mj: int) -> float | None:
        """Return the emissions of measured energy, in grams; None without a factor."""
        if self.carbon_g is None:
            return None
        return float(self.carbon_g * self.pue * energy_mj / MJ_PER_KWH)

    @property
    def emitted_mg_per_kwh(self) -> int | None:
        """Milligrams per kWh of measured energy; None without a factor."""
        return None if self.carbon_g is None else round(self.carbon_g * self.pue * 1000)

    def cost(self, energy_mj: int) -> Money | None:
        """Return what measured energy costs; None without a price."""
        if self.price is None:
            return None
        micros = round(self.price.micros * self.pue * energy_mj / MJ_PER_KWH)
        return self.price.unit.money(micros)


def read_factors() -> EnergyFactors:
    """Return the factors that ``outlay.toml`` states.

    Raises:
        InvalidValue: The file cannot be read, or a factor is none.
    """
    path = settings_path()
    try:
        stated = read_toml(path, _FactorsFile)
    except FileNotFoundError:
        return EnergyFactors()
    except (OSError, BadDocument) as error:
        raise InvalidValue(str(path), str(error), _EXAMPLE) from None
    return EnergyFactors(
        carbon_g=None if stated.carbon is None else _grams(stated.carbon),
        pue=Fraction(1) if stated.pue is None else _pue(stated.pue),
        price=None if stated.energy_price is None else _price(stated.energy_price),
    )


def _grams(text: str) -> Fraction:
    match = _CARBON.fullmatch(text.strip())
    if match is None:
        raise InvalidValue("carbon", text, _EXAMPLE)
    return Fraction(match[1]) * (1000 if match[2] == "kg" else 1)


def _pue(value: float) -> Fraction:
    if not 1 <= value < 10:
        raise InvalidValue("pue", value, "a number of 1 or more, such as 1.2")
    return Fraction(Decimal(str(value)))


def _price(text: str) -> Money:
    match = _PRICE.fullmatch(text.strip())
    if match is None:
        raise InvalidValue("energy_price", text, _EXAMPLE)
    return Money.parse(match[1], name="energy_price")
