"""How often a job fails, by its own failures and those of others like it. Pure.

A few failures say little. So nodes are taken to fail at rates that are spread as those of all jobs
are (a gamma distribution, by its moments), and what a job has shown corrects that. The result is
the mean rate: time lost to failures grows with the rate, so that the interval that is best for an
uncertain rate is the one for its mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LEAST_FAILURES: Final = 3
"""Fewer failures of all jobs together show no spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """The failures of a job, in ``hours`` on so many nodes."""

    failures: int
    hours: float
    nodes: int = 1

    @property
    def node_hours(self) -> float:
        """Hours of all nodes together."""
        return self.hours * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRates:
    """How the rates of nodes are spread: a gamma distribution.

    Attributes:
        per_hour: Their mean.
        shape: Infinite if all are alike.
    """

    per_hour: float
    shape: float

    @classmethod
    def of(cls, jobs: Sequence[FailureCount]) -> NodeRates | None:
        """Return it by the moments of the counts of jobs; None if these say too little."""
        failures = sum(job.failures for job in jobs)
        if len(jobs) < 2 or failures < _LEAST_FAILURES:
            return None
        mean = failures / sum(job.node_hours for job in jobs)
        # Counts vary by chance as much as their mean, and beyond that as the rates do.
        spread = sum((job.failures - mean * job.node_hours) ** 2 for job in jobs) - failures
        weight = sum(job.node_hours * job.hours for job in jobs)
        shape = math.inf if spread <= 0 else mean**2 * weight / spread
        return cls(per_hour=mean, shape=shape)

    def mttf_hours(self, job: FailureCount) -> float:
        """Return the mean time to failure of a job, given what it has shown itself."""
        if math.isinf(self.shape):
            return 1 / (job.nodes * self.per_hour)
        seen_hours = self.shape / self.per_hour
        return (seen_hours + job.hours) / (job.nodes * self.shape + job.failures)


def mttf_hours(job: FailureCount, among: Sequence[FailureCount] = ()) -> float | None:
    """Return the mean time to failure of a job; None if nothing ever failed.

    ``among`` are all jobs like it, or all nodes: this job, or its nodes, included.
    """
    rates = NodeRates.of(among)
    if rates is not None:
        return rates.mttf_hours(job)
    return job.hours / job.failures if job.failures else None
