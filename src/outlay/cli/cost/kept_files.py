"""The files of a cost report script in ``~/.context/training``, kept up to date by commands."""

from __future__ import annotations

from outlay.compat.cost_module.data_directory import data_directory


def keep_cost_files(*only: str) -> None:
    """Import the files of ``~/.context/training`` and update them, if the directory exists.

    Args:
        only: Some of ``costs``, ``advice`` and ``prices``; default: all.
    """
    if data_directory(None) is None:
        return
    from outlay.compat.cost_module.analyzer import CostAnalyzer  # Rarely needed.
    from outlay.compat.cost_module.optimizer import CostOptimizer
    from outlay.compat.cost_module.tracker import GPUPriceTracker

    faces = {"costs": CostAnalyzer, "advice": CostOptimizer, "prices": GPUPriceTracker}
    for name in only or faces:
        faces[name]()
