"""Ray Tune and Ray Train: trials and workers as runs, and a stopper for their cost.

``tune.Tuner(train, run_config=tune.RunConfig(stop=BudgetStopper(total="20 USD")))``

A trial opens its run with ``trial_run`` and reports ``figures(run)`` beside its own metrics; a
worker of Ray Train opens it with ``worker_run``. Launches nothing: sweeps that outlay itself runs
on a cluster of Ray are those of ``outlay.sweep``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from outlay.budget.limits import total_key
from outlay.budget.measurements import BudgetRefused
from outlay.clock import utc_text
from outlay.errors import InvalidValue, MissingExtra, OutlayError
from outlay.runs.figures import PREFIX
from outlay.runs.live import Run
from outlay.runs.live import run as start_run
from outlay.runs.reading import read_run
from outlay.units import Money

try:
    import ray.train
    from ray import tune
    from ray.tune import Stopper
except ImportError:
    raise MissingExtra("outlay.integrations.ray", "ray") from None

_log = logging.getLogger("outlay")
MUST_STOP = f"{PREFIX}must_stop"
"""Reported as 1 once no further step of a run may be trained, else as 0."""


# Opening runs


def trial_run(model: str, *, runs: Path | str, **options: Any) -> Run:
    """Open the run of a Tune trial, in a directory with the trial's id.

    A trial that Tune starts again continues its run as a new attempt: with what it has spent, and
    with the rest of its budget.

    Args:
        model: The name of the model.
        runs: A directory for the runs of all trials, on a file system that all nodes share.
        **options: Arguments of ``outlay.run``, such as ``price``, ``budget`` and ``config``.

    Raises:
        InvalidValue: It was not called in a trial, or an option is not valid.
        Refused: The guard refuses, or something that the budget limits cannot be measured here.
    """
    context = tune.get_context()
    trial = context.get_trial_id()
    if trial is None:
        raise InvalidValue("trial_run", "no trial", "a call in a function that tune.Tuner runs")
    named = {"name": context.get_trial_name(), "dir": Path(runs) / trial}
    return start_run(model, **named | options)


def worker_run(model: str, *, dir: Path | str, **options: Any) -> Run:
    """Open the run of a Ray Train worker; rank and world size are those of Ray.

    Args:
        model: The name of the model.
        dir: The run's directory, the same on all workers, on a file system that they share.
        **options: Arguments of ``outlay.run``.

    Raises:
        InvalidValue: It was not called in a worker, or an option is not valid.
        Refused: The guard refuses, or something that the budget limits cannot be measured here.
    """
    expected = "a call in the training function of a Ray Train trainer"
    try:
        context = ray.train.get_context()
        place = {"rank": context.get_world_rank(), "world_size": context.get_world_size()}
    except RuntimeError as error:
        raise InvalidValue("worker_run", str(error), expected) from None
    if place["rank"] is None:
        raise InvalidValue("worker_run", "no worker", expected)
    return start_run(model, dir=dir, **place | options)


# Reporting and stopping


def figures(run: Run) -> dict[str, float]:
    """Return a run's numbers for ``tune.report``: ``outlay/cost_usd``, ``outlay/steps`` and others.

    They are of all attempts up to now. There are none if the log cannot be read, which is logged.
    """
    state = {MUST_STOP: float(run.stop_reason is not None)}
    try:
        return run.summary(numbers=True) | state
    except (OutlayError, OSError) as error:
        _log.warning("outlay: no figures of the run for Ray, training continues: %s", error)
        return state


class BudgetStopper(Stopper):
    """Stops trials whose budget is used up, and all trials once they cost a total.

    The budget of a trial is that of its run, ``trial_run(budget=...)``, which measures it. The
    stopper acts on what trials report with ``figures``, and sees nothing between two reports.

    Args:
        total: What all trials together may cost, such as ``"20 USD"``; default: no limit.
        runs: The directory given to ``trial_run``. With it, trials count that never reported, and
            those that ended before the experiment was restored.

    Raises:
        InvalidValue: The total is not an amount above zero, or there are ``runs`` and no total.
    """

    def __init__(self, *, total: object = None, runs: Path | str | None = None) -> None:
        self._total = None if total is None else Money.parse(total, name="total")
        if self._total is not None and not self._total.micros:
            raise InvalidValue("total", total, 'an amount above zero, such as "20 USD"')
        if self._total is None and runs is not None:
            raise InvalidValue("runs", str(runs), "a total beside it")
        self._runs = None if runs is None else Path(runs).absolute()
        self._reported: dict[str, Money] = {}
        self._read: dict[str, Money] = {}
        self._ended: set[str] = set()

    @property
    def spent(self) -> Money | None:
        """What all trials cost, as of their last reports; None without a total."""
        if self._total is None:
            return None
        known = (self._read | self._reported).values()
        return sum(known, Money(0, self._total.currency))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether a trial that reports must stop.

        Raises:
            BudgetRefused: There is a total, and the trial does not report its cost.
        """
        if self._total is not None:
            self._reported[trial_id] = _cost(result, self._total.currency, f"trial {trial_id}")
            self._read_unreported(self._total.currency)
        return bool(result.get(MUST_STOP))

    def stop_all(self) -> bool:
        """Return whether the total is reached."""
        spent = self.spent
        return spent is not None and self._total is not None and spent >= self._total

    def _read_unreported(self, currency: str) -> None:
        for ledger in () if self._runs is None else self._runs.glob("*/ledger"):
            trial = ledger.parent.name
            if trial in self._reported or trial in self._ended:
                continue
            reading = read_run(ledger.parent)
            self._read[trial] = _cost(reading.values, currency, f"the run {ledger.parent}")
            if reading.status != "running":
                self._ended.add(trial)


def _cost(values: dict[str, Any], currency: str, whose: str) -> Money:
    name = PREFIX + total_key(currency)
    if name not in values:
        why = f"{whose} has no {name}: give its run a price in {currency}, and report figures(run)"
        raise BudgetRefused("total", why)
    return Money.parse(values[name], name=name, currency=currency)


# Preemption


class PreemptionWatch:
    """Asks Ray Train whether a node of this training is being taken back.

    Args:
        run: Ends ``preempted`` when it is closed after a notice.

    Attributes:
        notice: What Ray announced; "" before.
    """

    def __init__(self, run: Run) -> None:
        self.notice = ""
        self._run = run

    def ask(self) -> bool:
        """Return whether there is a notice; all workers must call it after the same steps.

        Ray answers all of them together. There is never one where Ray has no such notices: they are
        an alpha feature.
        """
        if not self.notice and (info := _announced()) is not None:
            nodes = ", ".join(info.preempted_node_ids)
            by = "" if info.deadline_ms is None else f" by {utc_text(info.deadline_ms * 10**6)}"
            self.notice = f"Ray takes nodes back{by}: {nodes}"
            self._run.note(self.notice)
            self._run.preempted(self.notice)
        return bool(self.notice)


def _announced() -> Any:
    ask = getattr(ray.train, "get_preemption_info", None)
    try:
        return None if ask is None else ask()
    except Exception as error:  # noqa: BLE001 - an alpha feature must not end a training
        _log.warning("outlay: Ray does not say whether nodes are taken back: %r", error)
        return None
