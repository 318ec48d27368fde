"""CostOptimizer: documented recommendations, stored without duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from outlay.advise import batch_size, dataset, stopping, tiers
from outlay.advise.advice_book import AdviceBook
from outlay.advise.batch_size import MemoryModel, unmeasured
from outlay.advise.overhead import Checkpointing, recommend_checkpoint_interval
from outlay.advise.recommendation import OptimizationRecommendation, merged, total_savings
from outlay.advise.run_advice import Circumstances
from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.compat.cost_module.data_directory import (
    RECOMMENDATIONS,
    CorruptCosts,
    data_directory,
    log_imported,
    read_json,
    read_own,
    update_files,
    with_own,
    write_rows,
)
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.goodput.follower import RunView, read_view
from outlay.rates import NS_PER_HOUR
from outlay.store import open_store

# Import and export of the cost module's file
#
# ``recommendations.json`` is ``[recommendation, ...]`` as written by
# ``OptimizationRecommendation.to_dict``. An unreadable file is neither imported nor overwritten.

_EVER_HOURS = 1_000_000.0
_OWN_KEYS = frozenset(each.name for each in fields(OptimizationRecommendation) if each.kw_only)


def _write(path: Path, advice: Iterable[OptimizationRecommendation]) -> None:
    write_rows(path, _named([each.to_dict() for each in advice]), _OWN_KEYS, as_list=True)


def _read(path: Path) -> list[Any]:
    own, rows = read_own(path), _named(read_json(path, list[Any]) or [])
    return [with_own(row, own[name]) if name in own else row for name, row in rows.items()]


def _named(rows: list[Any]) -> dict[str, Any]:
    """Return recommendations by their name in the file of outlay's own keys."""
    named: dict[str, Any] = {}
    for row in rows:
        said = row if isinstance(row, dict) else {}
        name = "|".join(str(said.get(key)) for key in ("category", "title", "timestamp"))
        while name in named:
            name += "'"
        named[name] = row
    return named


def import_recommendations(
    optimizer: CostOptimizer, directory: Path, *, only_new: bool = False
) -> tuple[int, tuple[Finding, ...]]:
    """Import the recommendations of a file; idempotent.

    Args:
        optimizer: Imports into its store.
        directory: Contains the file.
        only_new: Skip recommendations that are in the store already.

    Returns:
        The number imported, and findings about the others.

    Raises:
        CorruptCosts: The file exists and cannot be read; nothing was imported.
    """
    path = directory / RECOMMENDATIONS
    imported: list[OptimizationRecommendation] = []
    findings: list[Finding] = []
    known = {each.key for each in optimizer.recommendations} if only_new else set[str]()
    for line, row in enumerate(_read(path), 1):
        try:
            imported.append(convert(row, OptimizationRecommendation))
        except BadDocument as error:
            findings.append(Finding(source=str(path), message=f"recommendation {line}: {error}"))
    imported = [each for each in imported if each.key not in known]
    optimizer.keep(imported)
    return len(imported), tuple(findings)


def export_recommendations(optimizer: CostOptimizer, directory: Path) -> int:
    """Write all recommendations, and keep those in the file; return their total number.

    Raises:
        CorruptCosts: The file exists and cannot be read; nothing was written.
    """
    path = directory / RECOMMENDATIONS
    try:
        present = convert(_read(path), list[OptimizationRecommendation])
    except BadDocument as error:
        raise CorruptCosts(path, str(error)) from None
    everything = merged([*present, *optimizer.recommendations])
    _write(path, everything)
    return len(everything)


class DefaultThreshold(float):
    """The default threshold: learning curves decide instead of the threshold rule."""


class DefaultPatience(int):
    """The default patience, in epochs; likewise."""


Found = OptimizationRecommendation | None
_DAYS = 30
_LEAST_MONTHLY_SAVING = 10.0


class KeptAdvice(list[OptimizationRecommendation]):
    """An optimizer's recommendations as a list; appended ones are stored."""

    def __init__(self, optimizer: CostOptimizer) -> None:
        super().__init__(optimizer.get_all_recommendations(hours=_EVER_HOURS))
        self._optimizer = optimizer

    def append(self, item: OptimizationRecommendation) -> None:
        """Store a recommendation."""
        self.extend([item])

    def extend(self, items: Iterable[OptimizationRecommendation]) -> None:
        """Store several recommendations."""
        added = list(items)
        self._optimizer.keep(added)
        super().extend(added)


class CostOptimizer:
    """Recommends changes from measurements.

    The documented arguments suffice for conservative recommendations; keyword arguments take more
    measurements for better ones. Every method returns None if there is nothing to recommend.

    Args:
        data_dir: Directory of the store; else ``$OUTLAY_STORE`` or ``$OUTLAY_HOME``. A file of the
            cost module in it, else in ``~/.context/training``, is imported and kept up to date.
        clock: Timestamps, and the end of "recent".

    Attributes:
        damage: Findings about unreadable recommendations.
    """

    def __init__(self, data_dir: Path | str | None = None, *, clock: Clock = SYSTEM) -> None:
        self.damage: list[Finding] = []
        self._book = AdviceBook(open_store(data_dir), self.damage)
        self._clock = clock
        self._directory: Path | None = None
        if (directory := data_directory(data_dir)) is not None:
            with update_files(directory):
                imported, findings = import_recommendations(self, directory, only_new=True)
                log_imported(imported, "recommendation", directory)
                if findings:
                    raise CorruptCosts(directory / RECOMMENDATIONS, findings[0].message)
                self._directory = directory
            self._write_file()

    def _write_file(self) -> None:
        if self._directory is not None:
            with update_files(self._directory):
                _write(self._directory / RECOMMENDATIONS, self.recommendations)

    def recommend_batch_size(
        self,
        current_batch_size: int,
        gpu_vram_gb: float,
        model_param_count: int,
        current_throughput: float,
        gpu_price_per_hour: float,
        epoch_hours: float,
        *,
        throughputs: Mapping[int, float] | None = None,
        noise_scale: float | None = None,
        memory: MemoryModel | None = None,
        subject: str = "",
    ) -> Found:
        """Return a batch size that fits into memory and is expected to be cheaper.

        Args:
            current_batch_size: Samples per step.
            gpu_vram_gb: Memory of the GPU.
            model_param_count: Parameters, all on that GPU.
            current_throughput: Samples per second.
            gpu_price_per_hour: Of the GPU.
            epoch_hours: Duration that the saving is computed for.
            throughputs: Samples per second measured at several batch sizes.
            noise_scale: The gradient noise scale (``outlay.advise.batch_size``).
            memory: Measured memory (``outlay.advise.batch_size.measured_memory``).
            subject: The run or model.
        """
        now = batch_size.BatchSituation(
            batch=current_batch_size,
            gpu_gb=gpu_vram_gb,
            parameters=model_param_count,
            throughput=current_throughput,
            price_per_hour=gpu_price_per_hour,
            hours=epoch_hours,
            throughputs=throughputs,
            critical=noise_scale,
            memory=memory,
        )
        return self._given(batch_size.recommend_batch_size(now), subject)

    def recommend_early_stopping(
        self,
        validation_loss_history: Sequence[float],
        gpu_price_per_hour: float,
        hours_per_epoch: float,
        improvement_threshold: float = DefaultThreshold(0.001),
        patience: int = DefaultPatience(3),
        *,
        total_epochs: int | None = None,
        probability: float = stopping.STATED_PROBABILITY,
        subject: str = "",
    ) -> Found:
        """Return a recommendation to stop this training.

        With an explicit threshold or patience: stop after ``patience`` epochs that did not improve
        the best by ``improvement_threshold``. Otherwise: stop if a new best is improbable. Only the
        remaining epochs count as saved.
        """
        stated = not (
            isinstance(improvement_threshold, DefaultThreshold)
            and isinstance(patience, DefaultPatience)
        )
        found = stopping.recommend_early_stopping(
            stopping.higher_is_better(validation_loss_history, "loss"),
            stopping.EpochPrice(hours=hours_per_epoch, price_per_hour=gpu_price_per_hour),
            threshold=improvement_threshold,
            patience=patience,
            total_epochs=total_epochs,
            probability=probability,
            ruled=stated,
        )
        return self._given(found, subject)

    def recommend_epoch_count(
        self,
        validation_scores: Sequence[float],
        gpu_price_per_hour: float,
        hours_per_epoch: float,
        score_type: str = "accuracy",
        *,
        subject: str = "",
    ) -> Found:
        """Return the epochs that the next training needs; None if the scores get worse."""
        epoch = stopping.EpochPrice(hours=hours_per_epoch, price_per_hour=gpu_price_per_hour)
        values = stopping.higher_is_better(validation_scores, score_type)
        return self._given(stopping.recommend_epoch_count(values, epoch), subject)

    def recommend_dataset_size(
        self,
        dataset_size: int,
        validation_accuracy_curve: Mapping[int, float],
        gpu_price_per_hour: float,
        hours_per_epoch: float,
        num_epochs: int,
        *,
        subject: str = "",
    ) -> Found:
        """Return a smaller dataset size with nearly the same accuracy."""
        epoch = stopping.EpochPrice(hours=hours_per_epoch, price_per_hour=gpu_price_per_hour)
        found = dataset.recommend_dataset_size(
            dataset_size,
            validation_accuracy_curve,
            full_cost=epoch.cost * num_epochs,
            full_hours=epoch.hours * num_epochs,
        )
        return self._given(found, subject)

    def recommend_compute_tier(
        self,
        current_gpu: str,
        current_price_per_hour: float,
        current_throughput: float,
        alternative_gpus: Mapping[str, tuple[float, float]],
        daily_training_hours: float = 8.0,
        *,
        subject: str = "",
    ) -> Found:
        """Return the GPU with the lowest cost for a month's work, given price and throughput.

        Args:
            current_gpu: The GPU in use.
            current_price_per_hour: Its price.
            current_throughput: Its throughput, in any unit.
            alternative_gpus: Price per hour and throughput of others, by name.
            daily_training_hours: Training hours per day on the current GPU.
            subject: The run or model.
        """
        if not 0 < daily_training_hours <= 24:
            raise InvalidValue("daily_training_hours", daily_training_hours, "up to 24 hours")
        current = tiers.Option(
            name=current_gpu, price_per_hour=current_price_per_hour, speed=current_throughput
        )
        others = [
            tiers.Option(name=name, price_per_hour=price, speed=speed)
            for name, (price, speed) in alternative_gpus.items()
        ]
        work = current_throughput * daily_training_hours * _DAYS
        found = tiers.recommend_compute_tier(
            current,
            others,
            # A slower GPU must still finish a month's work within a month.
            tiers.ComputeJob(work=work, deadline_hours=24.0 * _DAYS, per="a month"),
            least_saving=_LEAST_MONTHLY_SAVING,
        )
        return self._given(found, subject)

    def recommend_checkpoint_interval(self, measured: Checkpointing, *, subject: str = "") -> Found:
        """Return a better interval between checkpoints (Young 1974, Daly 2006, exact)."""
        return self._given(recommend_checkpoint_interval(measured), subject)

    def advise_run(
        self, run_dir: Path | str, around: Circumstances | None = None
    ) -> list[OptimizationRecommendation]:
        """Return all recommendations from a run's log.

        Raises:
            NotARun: There is no run log.
        """
        return self.advise_view(read_view(run_dir, self._clock.wall_ns()), around)

    def advise_view(
        self, view: RunView, around: Circumstances | None = None
    ) -> list[OptimizationRecommendation]:
        """Return all recommendations for a run view."""
        found = self._book.advise(view, around, self._clock.wall_ns())
        self._write_file()
        return found

    def what_to_measure(self, run_dir: Path | str) -> list[str]:
        """Return which recommendations lack measurements in a run's log, and how to log them.

        Raises:
            NotARun: There is no run log.
        """
        return unmeasured(read_view(run_dir, self._clock.wall_ns()))

    def keep(self, found: Sequence[OptimizationRecommendation]) -> None:
        """Store recommendations with their own timestamps."""
        self._book.record(merged(found))
        self._write_file()

    def get_all_recommendations(self, hours: float = 24) -> list[OptimizationRecommendation]:
        """Return the recommendations of the last hours without duplicates, largest saving first."""
        self._book.damage = self.damage = []
        return self._book.since(self._clock.wall_ns() - round(hours * NS_PER_HOUR))

    @property
    def recommendations(self) -> KeptAdvice:
        """All stored recommendations without duplicates, largest saving first.

        Appending to it stores a recommendation.
        """
        return KeptAdvice(self)

    def get_high_confidence_recommendations(
        self, confidence_threshold: float = 0.8
    ) -> list[OptimizationRecommendation]:
        """Return recent recommendations with at least this confidence."""
        recent = self.get_all_recommendations()
        return [each for each in recent if each.confidence >= confidence_threshold]

    def get_total_potential_savings(self, *, currency: str = "USD") -> float:
        """Return the total saving of recent recommendations at equal quality, without overlaps.

        Amounts of different currencies are never added: other currencies are ignored.
        """
        return total_savings(self.get_all_recommendations()).get(currency, 0.0)

    def _given(self, found: Found, subject: str) -> Found:
        """Store a recommendation with its subject and timestamp, and return it."""
        if found is None:
            return None
        at = utc_datetime(self._clock.wall_ns())
        stamped = replace(found, subject=subject, timestamp=at)
        self.keep([stamped])
        return stamped
