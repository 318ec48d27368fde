"""The recommendations file of the cost module that CostOptimizer comes from, read and written.

``recommendations.json`` holds ``[recommendation, ...]`` as ``OptimizationRecommendation.to_dict``
writes it. A file that cannot be read is neither imported nor written over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlay.advise.optimizer import CostOptimizer
from outlay.advise.recommendation import OptimizationRecommendation, merged
from outlay.cost.exchange import CorruptCosts, read_json, write_json
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding

RECOMMENDATIONS = "recommendations.json"
_EVER_HOURS = 1_000_000.0


def import_recommendations(
    optimizer: CostOptimizer, directory: Path
) -> tuple[int, tuple[Finding, ...]]:
    """Keep the advice of a file, any number of times with the same result.

    Returns:
        How many pieces were taken, and which could not be.

    Raises:
        CorruptCosts: The file is there and cannot be read; nothing was imported.
    """
    path = directory / RECOMMENDATIONS
    taken: list[OptimizationRecommendation] = []
    findings: list[Finding] = []
    for line, row in enumerate(read_json(path, list[Any]) or [], 1):
        try:
            taken.append(_parsed(row))
        except BadDocument as error:
            findings.append(Finding(source=str(path), message=f"recommendation {line}: {error}"))
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
    everything = merged([*present, *optimizer.get_all_recommendations(hours=_EVER_HOURS)])
    write_json(path, [each.to_dict() for each in everything])
    return len(everything)


def _parsed(row: object) -> OptimizationRecommendation:
    return convert(row, OptimizationRecommendation)
