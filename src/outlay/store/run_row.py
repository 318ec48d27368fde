"""The row of a run: its figures at an instant. Loads no database library: training uses it, too."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from outlay.errors import Finding
from outlay.units import Money, Unit
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import Kind


class AttemptCharge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of an attempt, or of the time between it and the next, within one UTC month.

    Attributes:
        start_ns: Start of the charged time ``[start_ns, end_ns)``, on the attempt's own clock.
        booked_ns: Decides the month. Time between two attempts is booked when the next one begins:
            until then it is unknown whether it is charged, and past months must not change.
        micros: The charges of a run in one currency sum to its cost in it exactly.
        assumed_micros: The assumed part of ``micros``.
        gpu_us: GPUs times microseconds that the attempt ran.
        user: Who started the attempt.
        machine: The vendor's instance id.
        machines: If it ran on several: the weight of each in the cost, by instance id.
        hosts: The part of ``micros`` on each node, by host name; without nodes that were left.
        provider: From the price; "" if the price was typed.
        offer: The name of the price's offer, with GPU and region.
        terms: How the vendor bills the machine, and ``micros_per_hour`` the cost per hour at the
            end of the charged time; only if the price states such terms.
        between: Charges the time after the attempt, up to the next.
        currency: If it is not that of the run's cost; "" otherwise.
    """

    start_ns: int
    end_ns: int
    booked_ns: int
    micros: int
    assumed_micros: int = 0
    gpu_us: int = 0
    user: str = ""
    tags: dict[str, str] = {}
    machine: str = ""
    machines: dict[str, int] = {}
    hosts: dict[str, int] = {}
    provider: str = ""
    offer: str = ""
    terms: BillingTerms | None = None
    micros_per_hour: int = 0
    between: bool = False
    currency: str = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run at an instant, from its log or as the store kept them.

    Instants are UTC nanoseconds. What is not a column of the table is in its document ``figures``.
    A training that was stated to the cost books has no log, and only a part of the figures.

    Attributes:
        source: Of the figures: the run's log (``ledger``), or ``stated``.
        dir: The run's directory, absolute; "" of a stated training.
        status: ``running``, ``dead`` (no end, no sign of life), or how the last attempt ended.
        steps: The number of the last step plus one.
        tokens: Over all ranks and attempts, repeated work included; ``samples`` likewise.
        gpus: A whole number, or a fraction such as ``"1/7"``.
        instance_id: The vendor's id of the machine of the last attempt; ``slurm_job`` its job, and
            ``slurm_jobs`` those of all attempts.
        wall_ns: From the first start to the end, without idle time after a completed attempt.
        wait_ns: The part spent waiting for data: before steps and in ``data_loading`` spans.
        gpu_ns: GPUs times the duration of attempts.
        queue_ns: How long its jobs waited in a cluster's queue, which is never billed, and
            ``allocated_ns`` how long they had their nodes; None where a wait is unknown.
        cost: None without a price; ``assumed`` is the part for which no record says that it was
            billed, ``wasted`` the cost of everything but surviving steps.
        cost_beside: The cost in other currencies, if the run paid in several, and
            ``assumed_beside`` the assumed part of each.
        charges: The cost by attempt and month; None if not stated, or not queried.
        kind: Of all its money: encoded amounts have it beside them.
        burn_micros_per_hour: The present hourly cost; 0 unless running, None without a price.
        goodput: Productive share of wall time, 0 to 1; None if no step was recorded.
        metric: The metric to show: an accuracy, else a loss, else the first that was logged;
            ``metric_value`` is its last value.
        epochs: As reported, else steps divided by the length of an epoch; None if unknown.
        accuracy: The best reported, and ``loss`` likewise.
        loss_trend: A few values of the loss over the run, the last one included; () without any.
        parameters: Of the model, as reported, and ``sequence_length`` likewise.
        budget_used: The used share of the limit that is used most, and ``budget_limit`` its key.
        findings: Of a stored row the first 20.
        updated_ns: When the figures were derived from the log; of two rows the later one is kept.
        log_bytes: Size of the log at that time, and ``log_mtime_ns`` its modification time.
        figures_version: Version of the rules that derived them.
        log_host: The host that has the log, if it is not reachable from here: then ``dir`` begins
            with its name, and is none of this host's; "" otherwise.
        as_of_ns: When that host last reported the figures, by the store's clock; 0 otherwise.
    """

    run_id: str
    source: Literal["ledger", "stated"] = "ledger"
    dir: str
    model: str
    name: str
    status: str
    attempts: int
    steps: int
    tokens: int
    samples: int = 0
    started_ns: int
    last_seen_ns: int
    ended_ns: int | None = None
    wall_ns: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    gpu_ns: int = 0
    queue_ns: int | None = None
    allocated_ns: int | None = None
    energy_mj: int = 0
    gpu_busy_ns: int = 0
    user: str = ""
    host: str = ""
    gpu: str = ""
    gpus: int | str = 1
    instance_id: str = ""
    slurm_job: str = ""
    slurm_jobs: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    cost: Money | None = None
    assumed: Money | None = None
    wasted: Money | None = None
    cost_beside: tuple[Money, ...] = ()
    assumed_beside: tuple[Money, ...] = ()
    charges: tuple[AttemptCharge, ...] | None = None
    kind: Kind = "cash"
    burn_micros_per_hour: int | None = None
    goodput: float | None = None
    metric: str | None = None
    metric_value: float | None = None
    epochs: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    loss_trend: tuple[float, ...] = ()
    parameters: float | None = None
    sequence_length: float | None = None
    budget_used: float | None = None
    budget_limit: str | None = None
    budget_limit_text: str = ""
    assumptions: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    updated_ns: int = 0
    log_bytes: int | None = None
    log_mtime_ns: int | None = None
    figures_version: int | None = None
    log_host: str = ""
    as_of_ns: int = 0

    def __post_init__(self) -> None:
        if self.kind != "cash":
            for name in ("cost", "assumed", "wasted"):
                if (money := getattr(self, name)) is not None:
                    force_setattr(self, name, money.as_kind(self.kind))
            for name in ("cost_beside", "assumed_beside"):
                moneys = tuple(money.as_kind(self.kind) for money in getattr(self, name))
                force_setattr(self, name, moneys)

    @property
    def paid(self) -> Money:
        """The cost of a run that has a price."""
        assert self.cost is not None
        return self.cost

    @property
    def paid_assumed(self) -> Money:
        """The assumed part of the cost of a run that has a price."""
        return self.paid * 0 if self.assumed is None else self.assumed

    def unit_of(self, charge: AttemptCharge) -> Unit:
        """Return the unit of one of its charges."""
        return Unit(charge.currency or self.paid.currency, self.kind)

    @property
    def own_dir(self) -> str:
        """The directory as the host that has the log names it."""
        return self.dir.removeprefix(f"{self.log_host}:") if self.log_host else self.dir

    @property
    def at_ns(self) -> int:
        """When the run ended; of a running one in the store, when it was read."""
        return self.updated_ns if self.status == "running" else self.last_seen_ns

    @property
    def burn(self) -> Money | None:
        """The present hourly cost; None without a price."""
        if self.cost is None or self.burn_micros_per_hour is None:
            return None
        return self.cost.unit.money(self.burn_micros_per_hour)
