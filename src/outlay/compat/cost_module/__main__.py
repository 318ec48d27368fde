"""``python -m outlay.compat.cost_module --summary``: the flags of the ``cost_report.py`` script."""

from __future__ import annotations

import sys

from outlay.cli.app import main

if __name__ == "__main__":
    sys.argv[1:1] = ["cost-report"]
    main()
