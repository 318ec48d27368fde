"""The readings that a monitor passes to sinks; they are defined beside the monitor."""

from __future__ import annotations

from outlay import __getattr__ as __getattr__
