"""``python -m outlay.sweep.aggregate --enable-aggregator --root DIR``.

The same as ``outlay sweep report DIR``, which needs no flag, as it only reads runs.
"""

from __future__ import annotations

import os
import sys

from outlay.cli.app import main_of

REFUSAL = "error: acknowledge the aggregator with --enable-aggregator or MFCL_SWEEP_AGGREGATOR=1\n"
ALLOWED = {"--enable-aggregator", "-h", "--help", "-V", "--version"}

if __name__ == "__main__":
    acknowledged = os.environ.get("MFCL_SWEEP_AGGREGATOR") == "1"
    if not acknowledged and not ALLOWED & set(sys.argv):
        sys.stderr.write(REFUSAL)
        sys.exit(3)
    main_of("sweep", "aggregate")
