"""The row of a run: its figures at an instant. Loads no database library: training uses it, too."""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from outlay.errors import Finding
from outlay.units import Money
from outlay.units.money import Kind


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run at an instant, from its log or as the store kept them.

    Instants are UTC nanoseconds. What is not a column of the table is in its document ``figures``.

    Attributes:
        dir: The run's directory, absolute.
        status: ``running``, ``dead`` (no end, no sign of life), or how the last attempt ended.
        steps: The number of the last step plus one.
        tokens: Over all ranks and attempts, repeated work included; ``samples`` likewise.
        gpus: A whole number, or a fraction such as ``"1/7"``.
        instance_id: The vendor's id of the machine of the last attempt; ``slurm_job`` its job.
        wall_ns: From the first start to the end, without idle time after a completed attempt.
        wait_ns: The part spent waiting for data: before steps and in ``data_loading`` spans.
        gpu_ns: GPUs times the duration of attempts.
        cost: None without a price; ``assumed`` is the part for which no record says that it was
            billed, ``wasted`` the cost of everything but surviving steps.
        cost_beside: The cost in other currencies, if the run paid in several.
        kind: Of all its money: encoded amounts have it beside them.
        burn_micros_per_hour: The present hourly cost; 0 unless running, None without a price.
        goodput: Productive share of wall time, 0 to 1; None if no step was recorded.
        metric: The metric to show: an accuracy, else a loss, else the first that was logged;
            ``metric_value`` is its last value.
        budget_used: The used share of the limit that is used most, and ``budget_limit`` its key.
        findings: Of a stored row the first 20.
        updated_ns: When the figures were derived from the log; of two rows the later one is kept.
        log_bytes: Size of the log at that time, and ``log_mtime_ns`` its modification time.
        figures_version: Version of the rules that derived them.
    """

    run_id: str
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
    energy_mj: int = 0
    gpu_busy_ns: int = 0
    user: str = ""
    host: str = ""
    gpu: str = ""
    gpus: int | str = 1
    instance_id: str = ""
    slurm_job: str = ""
    tags: dict[str, str] = {}
    cost: Money | None = None
    assumed: Money | None = None
    wasted: Money | None = None
    cost_beside: tuple[Money, ...] = ()
    kind: Kind = "cash"
    burn_micros_per_hour: int | None = None
    goodput: float | None = None
    metric: str | None = None
    metric_value: float | None = None
    budget_used: float | None = None
    budget_limit: str | None = None
    budget_limit_text: str = ""
    assumptions: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    updated_ns: int = 0
    log_bytes: int | None = None
    log_mtime_ns: int | None = None
    figures_version: int | None = None

    def __post_init__(self) -> None:
        if self.kind != "cash":
            for name in ("cost", "assumed", "wasted"):
                if (money := getattr(self, name)) is not None:
                    force_setattr(self, name, money.as_kind(self.kind))
            beside = tuple(money.as_kind(self.kind) for money in self.cost_beside)
            force_setattr(self, "cost_beside", beside)

    @property
    def burn(self) -> Money | None:
        """The present hourly cost; None without a price."""
        if self.cost is None or self.burn_micros_per_hour is None:
            return None
        return self.cost.unit.money(self.burn_micros_per_hour)
