"""``python -m outlay.sweep --enable-sweeps GRID``: the same as ``outlay sweep run``."""

from __future__ import annotations

import sys

from outlay.cli.app import main

if __name__ == "__main__":
    sys.argv[1:1] = ["sweep", "run"]
    main()
