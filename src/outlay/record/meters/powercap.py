"""CPU energy from Linux's powercap tree (RAPL): one wrapping counter per package."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from outlay.record.meters.quality import Quality

POWERCAP = Path("/sys/class/powercap")
# intel-rapl:0 is a package; intel-rapl:0:1 is a part of it, which would count twice.
_PACKAGE = re.compile(r"(?:intel|amd)-rapl:\d+")


class PowercapSource:
    """One package's energy counter; it wraps around, which is allowed for once between readings.

    Args:
        zone: Its directory, with ``energy_uj`` and ``max_energy_range_uj``.

    Raises:
        OSError: The counter cannot be read (it often needs root).
    """

    quality = Quality.MEASURED

    def __init__(self, zone: Path) -> None:
        self.name = zone.name
        self._counter = zone / "energy_uj"
        self._range_uj = _read_integer(zone / "max_energy_range_uj")
        self._last_uj = _read_integer(self._counter)

    @classmethod
    def detect(cls, root: Path = POWERCAP) -> list[PowercapSource]:
        """Return a source for every package that can be read."""
        sources = []
        for zone in sorted(root.glob("*-rapl:*")):
            if _PACKAGE.fullmatch(zone.name):
                with contextlib.suppress(OSError):
                    sources.append(cls(zone))
        return sources

    def take_uj(self) -> int:
        """Return microjoules since the last call."""
        now_uj = _read_integer(self._counter)
        used_uj = now_uj - self._last_uj
        self._last_uj = now_uj
        return used_uj if used_uj >= 0 else used_uj + self._range_uj + 1


def _read_integer(path: Path) -> int:
    text = path.read_text().strip()
    if not text.isdecimal():
        raise OSError(f"{path}: expected a number, got {text!r}")
    return int(text)
