"""``python -m outlay.compat.cost_module --summary``: the flags of the ``cost_report.py`` script."""

from __future__ import annotations

from outlay.cli.app import main_of

if __name__ == "__main__":
    main_of("cost-report")
