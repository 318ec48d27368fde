"""What the records of a running attempt charge to its tracker: use, time on other clocks, money."""

from __future__ import annotations

from msgspec.structs import replace

from outlay.budget.charges import Charges, ClockCharge, EnergyCharge, StepCharge
from outlay.budget.clocks import CLOCKS, TRAINING
from outlay.budget.cost_parts import CostParts
from outlay.budget.history import LivePrice
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.ledger import AttemptStarted, KnownRecord, PriceChanged, SlicesChanged, Step


class Charging:
    """Charges one process's records as they are written.

    Args:
        tracker: What is charged.
        header: Says at what price the attempt begins.
    """

    def __init__(self, tracker: BudgetTracker, header: AttemptStarted) -> None:
        self._tracker = tracker
        self._charges = Charges()
        self._price = LivePrice(header)
        self._charges_all = tracker.budget.charge_cost == "all"
        self._paid = 0
        self._clock_units = dict.fromkeys(CLOCKS, 0)
        self._start_up: int | None = None

    @property
    def priced(self) -> bool:
        """Whether money is counted."""
        return self._price.known

    @property
    def parts(self) -> CostParts:
        """What this attempt has cost so far, since it began to record."""
        rest = self._paid - sum(self._clock_units.values())
        start_up = rest if self._start_up is None else self._start_up
        return CostParts(start_up=start_up, other=rest - start_up, **self._clock_units)

    def usage(self, step: Step) -> Usage:
        """Return what a step used, its cost aside."""
        return self._charges.step(step)

    def step(self, step: Step, usage: Usage) -> Usage:
        """Charge a step, and what was paid since the last charge; return both."""
        paid = self._take_units(step.t_ns)
        trained = self._price.units_before(step.t_ns, usage.time_ns)
        if self._start_up is None:
            self._start_up = self._paid - trained - sum(self._clock_units.values())
        self._clock_units[TRAINING] += trained
        priced = replace(usage, cost_units=paid if self._charges_all else trained)
        self._tracker.count(priced, step=step.step)
        return priced

    def other(self, record: KnownRecord, seq: int) -> None:
        """Charge what a record that is no step says was used."""
        if isinstance(record, PriceChanged):
            self._settle_money(record.t_ns)
            self._price.change(record.t_ns, record.price, record.gpus)
        if isinstance(record, SlicesChanged):
            self._settle_money(record.t_ns)
            self._price.give_back(record)
        was_inside = self._charges.inside
        match self._charges.of(record, seq):
            case ClockCharge() as charge:
                self._clock(charge, record.t_ns)
            case EnergyCharge(energy_mj):
                self._tracker.add(Usage(energy_mj=energy_mj))
            case StepCharge() | None:
                if self._charges.inside and not was_inside:
                    self._settle_money(record.t_ns)  # So that the span's own can be told apart.

    def finish(self, t_ns: int) -> None:
        """Charge what is going on, and all money up to ``t_ns``."""
        if open_span := self._charges.end():
            self._clock(open_span, t_ns)
        self._settle_money(t_ns)

    def _take_units(self, t_ns: int) -> int:
        units = self._price.take_units(t_ns)
        self._paid += units
        return units

    def _settle_money(self, t_ns: int) -> None:
        units = self._take_units(t_ns)
        if self._charges_all:
            self._tracker.add(Usage(cost_units=units))

    def _clock(self, charge: ClockCharge, t_ns: int) -> None:
        units = self._take_units(t_ns)
        self._clock_units[charge.clock] += units
        self._tracker.charge_usage(charge.clock, Usage(time_ns=charge.time_ns, cost_units=units))
