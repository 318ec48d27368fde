"""Hydra configuration groups: add ``pkg://outlay.budget.conf`` to ``hydra.searchpath``."""
