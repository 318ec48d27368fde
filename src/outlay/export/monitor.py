"""The former place of ``outlay.GoodputMonitor``."""

from __future__ import annotations

from outlay import __getattr__ as __getattr__
