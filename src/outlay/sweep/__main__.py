"""``python -m outlay.sweep --enable-sweeps GRID``: the same as ``outlay sweep run``."""

from __future__ import annotations

from outlay.cli.app import main_of

if __name__ == "__main__":
    main_of("sweep", "run")
