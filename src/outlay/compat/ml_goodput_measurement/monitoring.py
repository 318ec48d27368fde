"""``monitoring``: uploads metrics while a job runs."""

from __future__ import annotations

from outlay.export.gcp import GCPOptions
from outlay.export.monitor import GoodputMonitor

__all__ = ["GCPOptions", "GoodputMonitor"]
