"""``goodput_cache``: entries of a remote log cached in files."""

from __future__ import annotations

from outlay.goodput.importing import GoodputCache, GoodputInfo, StepInfo

__all__ = ["GoodputCache", "GoodputInfo", "StepInfo"]
