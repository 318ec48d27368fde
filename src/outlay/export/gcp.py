"""The former place of ``outlay.GCPOptions``."""

from __future__ import annotations

from outlay import __getattr__ as __getattr__
