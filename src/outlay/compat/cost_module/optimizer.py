"""CostOptimizer: documented recommendations, kept in the store, each piece of advice once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from outlay.advise import batch_size, dataset, stopping, tiers
from outlay.advise.batch_size import MemoryModel, unmeasured
from outlay.advise.overhead import Checkpointing, recommend_checkpoint_interval
from outlay.advise.recommendation import OptimizationRecommendation, merged, total_savings
from outlay.advise.run_advice import Circumstances, advise_run
from outlay.clock import SYSTEM, Clock, as_utc, utc_datetime, wall_ns_of
from outlay.compat.cost_module.data_directory import (
    RECOMMENDATIONS,
    CorruptCosts,
    beside_the_store,
    data_directory,
    read_json,
    report_taken,
    write_json,
)
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.goodput.follower import RunView, read_view
from outlay.rates import NS_PER_HOUR
from outlay.store import open_store
from outlay.store.engine import upsert, writing
from outlay.store.schema import recommendations

# The recommendations file of the cost module that CostOptimizer comes from, read and written.
#
# ``recommendations.json`` holds ``[recommendation, ...]`` as
# ``OptimizationRecommendation.to_dict`` writes it. A file that cannot be read is neither imported
# nor written over.

_EVER_HOURS = 1_000_000.0


def import_recommendations(
    optimizer: CostOptimizer, directory: Path, *, only_new: bool = False
) -> tuple[int, tuple[Finding, ...]]:
    """Keep the advice of a file, any number of times with the same result.

    Args:
        optimizer: Whose store it goes into.
        directory: Where the file is.
        only_new: Whether to leave out the advice that the store has already.

    Returns:
        How many pieces were taken, and which could not be.

    Raises:
        CorruptCosts: The file is there and cannot be read; nothing was imported.
    """
    path = directory / RECOMMENDATIONS
    taken: list[OptimizationRecommendation] = []
    findings: list[Finding] = []
    known = {each.key for each in optimizer.recommendations} if only_new else set[str]()
    for line, row in enumerate(read_json(path, list[Any]) or [], 1):
        try:
            taken.append(_parsed(row))
        except BadDocument as error:
            findings.append(Finding(source=str(path), message=f"recommendation {line}: {error}"))
    taken = [each for each in taken if each.key not in known]
    optimizer.keep(taken)
    return len(taken), tuple(findings)


def export_recommendations(optimizer: CostOptimizer, directory: Path) -> int:
    """Write all advice, with what stands in the file already; return how many pieces that is.

    Raises:
        CorruptCosts: The file is there and cannot be read; nothing was written.
    """
    path = directory / RECOMMENDATIONS
    try:
        present = [_parsed(row) for row in read_json(path, list[Any]) or []]
    except BadDocument as error:
        raise CorruptCosts(path, str(error)) from None
    everything = merged([*present, *optimizer.recommendations])
    write_json(path, [each.to_dict() for each in everything])
    return len(everything)


def _parsed(row: object) -> OptimizationRecommendation:
    return convert(row, OptimizationRecommendation)


class DefaultThreshold(float):
    """A default that nobody stated: curves decide, and not the rule that it would be."""


class DefaultPatience(int):
    """Likewise, a number of epochs."""


Found = OptimizationRecommendation | None
_DAYS = 30
_LEAST_MONTHLY_SAVING = 10.0


class KeptAdvice(list[OptimizationRecommendation]):
    """The advice of an optimizer as a list; what is appended goes into its store."""

    def __init__(self, optimizer: CostOptimizer) -> None:
        super().__init__(optimizer.get_all_recommendations(hours=_EVER_HOURS))
        self._optimizer = optimizer

    def append(self, item: OptimizationRecommendation) -> None:
        """Keep a piece of advice."""
        self.extend([item])

    def extend(self, items: Iterable[OptimizationRecommendation]) -> None:
        """Keep several pieces of advice."""
        added = list(items)
        self._optimizer.keep(added)
        super().extend(added)


class CostOptimizer:
    """Recommends what to change, from what was measured.

    The documented arguments are enough for cautious advice; keyword arguments take measurements
    that sharpen it. Every method returns None where nothing worth saying is known.

    Args:
        data_dir: Where to keep recommendations; else ``$OUTLAY_STORE`` or ``$OUTLAY_HOME``. A file
            of the cost module in it, else in ``~/.context/training``, is taken over and kept up to
            date.
        clock: When advice is given, and what "recent" ends at.

    Attributes:
        damage: Advice that was to be read and could not be.
    """

    def __init__(self, data_dir: Path | str | None = None, *, clock: Clock = SYSTEM) -> None:
        self._store = open_store(data_dir)
        self._clock = clock
        self.damage: list[Finding] = []
        self._directory: Path | None = None
        if (directory := data_directory(data_dir)) is not None:
            with beside_the_store(directory):
                taken, findings = import_recommendations(self, directory, only_new=True)
                report_taken(taken, "recommendation", directory)
                if findings:
                    raise CorruptCosts(directory / RECOMMENDATIONS, findings[0].message)
                self._directory = directory
            self._write_file()

    def _write_file(self) -> None:
        """Write all advice to the cost module's file, where it has a directory."""
        if self._directory is not None:
            with beside_the_store(self._directory):
                advice = [each.to_dict() for each in self.recommendations]
                write_json(self._directory / RECOMMENDATIONS, advice)

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
        """Return a batch size that fits and is expected to be cheaper.

        Args:
            current_batch_size: Samples a step.
            gpu_vram_gb: Memory of the GPU.
            model_param_count: Parameters, all on that GPU.
            current_throughput: Samples per second.
            gpu_price_per_hour: Of the GPU.
            epoch_hours: What the saving is of.
            throughputs: Samples per second measured at several batch sizes.
            noise_scale: The gradient noise scale (``outlay.advise.batch_size``).
            memory: Measured memory (``outlay.advise.batch_size.measured_memory``).
            subject: The run or model it is about.
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
        """Return the advice to stop this training.

        A threshold or a patience that is stated is a rule: stop after so many epochs that did not
        beat the best by so much. Else stop where beating it by the end is improbable. Only epochs
        that are still ahead count as saved.
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
        """Return how many epochs the next training needs; None for a training that gets worse."""
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
        """Return a smaller dataset that keeps nearly all of the accuracy."""
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
        """Return the GPU on which a month's work costs least, speed counted both ways.

        Args:
            current_gpu: What is used now.
            current_price_per_hour: Its price.
            current_throughput: Its throughput, in any unit.
            alternative_gpus: Price per hour and throughput of others, by name.
            daily_training_hours: How long the present GPU trains a day.
            subject: The run or model it is about.
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
            # A day has 24 hours: a slower GPU must still get a month's work done in a month.
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
        """Return everything that a run's log says should be changed.

        Raises:
            NotARun: There is no run log.
        """
        return self.advise_view(read_view(run_dir, self._clock.wall_ns()), around)

    def advise_view(
        self, view: RunView, around: Circumstances | None = None
    ) -> list[OptimizationRecommendation]:
        """Return everything that should be changed about a run that has been read."""
        found = [self._stamped(each) for each in advise_run(view, around)]
        self._record(found, instead_of=view.identity.run_id)
        return found

    def what_to_measure(self, run_dir: Path | str) -> list[str]:
        """Return which advice a run's log says too little for, and how to log what is missing.

        Raises:
            NotARun: There is no run log.
        """
        return unmeasured(read_view(run_dir, self._clock.wall_ns()))

    def keep(self, found: Sequence[OptimizationRecommendation]) -> None:
        """Keep advice that was given elsewhere, as of when it was given."""
        self._record(merged(found))

    def get_all_recommendations(self, hours: float = 24) -> list[OptimizationRecommendation]:
        """Return the advice of the last hours, each piece once, the largest saving first."""
        since_ns = self._clock.wall_ns() - round(hours * NS_PER_HOUR)
        column = recommendations.c
        query = select(column.key, column.body).where(column.at_ns > since_ns)
        with self._store.begin() as connection:
            rows = connection.execute(query).all()
        found = []
        self.damage = []
        for key, body in rows:
            try:
                convert(body, OptimizationRecommendation)
                found.append(OptimizationRecommendation.from_dict(body))
            except BadDocument as error:
                message = f"its row in the store is damaged ({error}) and was left out"
                self.damage.append(Finding(source=f"advice {key!s}", message=message))
        return merged(found)

    @property
    def recommendations(self) -> KeptAdvice:
        """All advice that was ever given and kept, each piece once, the largest saving first.

        What is appended to it is kept.
        """
        return KeptAdvice(self)

    def get_high_confidence_recommendations(
        self, confidence_threshold: float = 0.8
    ) -> list[OptimizationRecommendation]:
        """Return recent advice that is at least so sure."""
        recent = self.get_all_recommendations()
        return [each for each in recent if each.confidence >= confidence_threshold]

    def get_total_potential_savings(self, *, currency: str = "USD") -> float:
        """Return what recent advice saves in all at equal quality; the same money counts once.

        Money of two currencies is never added: advice in another one is left out.
        """
        return total_savings(self.get_all_recommendations()).get(currency, 0.0)

    def _given(self, found: Found, subject: str) -> Found:
        """Keep a piece of advice, stamped and about a subject, and return it."""
        if found is None:
            return None
        stamped = self._stamped(replace(found, subject=subject))
        self._record([stamped])
        return stamped

    def _stamped(self, found: OptimizationRecommendation) -> OptimizationRecommendation:
        return replace(found, timestamp=utc_datetime(self._clock.wall_ns()))

    def _record(
        self, found: Sequence[OptimizationRecommendation], *, instead_of: str | None = None
    ) -> None:
        """Keep advice; where a subject is named, instead of all that was said about it before."""
        rows = [
            {
                "key": each.key,
                "category": each.category,
                "subject": each.subject,
                "body": each.to_dict(),
                "at_ns": wall_ns_of(as_utc(each.timestamp)),
            }
            for each in found
        ]
        with writing(self._store) as connection:
            if instead_of is not None:
                mine = recommendations.c.subject == instead_of
                connection.execute(recommendations.delete().where(mine))
            upsert(connection, recommendations, rows, newer="at_ns")
        self._write_file()
