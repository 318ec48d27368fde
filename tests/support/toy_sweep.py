"""One small sweep for every cluster: a run that trains, one that fails, one that no money is for.

Its harness is killed while two runs train; another one resumes it. Whatever the cluster, the
statuses, tokens and exit code are those of ``OUTCOME``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from command_line import outlay
from outlay.clock import SYSTEM
from outlay.errors import NotARun
from outlay.runs.reading import read_figures
from outlay.sweep.state.manifest import read_manifest
from sweep_process import killed_sweep
from waiting import until

_TRAINING = [sys.executable, str(Path(__file__).parents[1] / "programs" / "cluster_run.py")]
_BUDGET = {"mode": "iso_tokens", "limit": 1000}
OUTCOME = (
    1,
    {
        "001_trains_00": ("completed", 1000),
        "002_trains_01": ("completed", 1000),
        "003_fails": ("error", None),
        "004_dear": ("skipped", None),
    },
)
"""The exit code, and the status and tokens of every run."""


def toy_outcome(
    directory: Path,
    block: Mapping[str, Any],
    environ: Mapping[str, str],
    explain: Callable[[], str],
    *,
    pause_s: float = 0.3,
    kill_after_s: float = 0,
) -> tuple[int, dict[str, tuple[str, int | None]]]:
    """Run the sweep below a directory with the engine's block of the grid.

    A step takes ``pause_s``; the harness goes on for ``kill_after_s`` once both runs train.
    """
    root = directory / "sweep"
    training = {"entrypoint": [*_TRAINING, "{x}", str(pause_s)], "budget": _BUDGET}
    grid = {
        **block, "arguments": "none", "entrypoint": ["true"], "output_dir": str(root),
        "price": "36 USD/h", "ceiling": "12 USD", "timeout": "5m",
        "grid": [
            {"name": "trains", "params": {"x": [1, 2]}, **training},
            {"name": "fails", "entrypoint": ["sh", "-c", "exit 3"]},
            {"name": "dear", "timeout": "10h"},
        ],
    }  # fmt: skip
    path = directory / "grid.json"
    path.write_text(json.dumps(grid))
    with killed_sweep("run", "--yes", path, environ=environ):
        for run in ("001_trains_00", "002_trains_01"):
            until(partial(_tokens, root / run), explain)
        SYSTEM.sleep(kill_after_s)
    resumed = outlay("sweep", "resume", root, "--yes", "--json")
    manifest = read_manifest(root)
    found: dict[str, tuple[str, int | None]] = {
        run: (manifest.state(run).status, _tokens(root / run)) for run in manifest.runs
    }
    return resumed.code, found


def _tokens(run_dir: Path) -> int | None:
    """Return the tokens that a run recorded; None if it trained nothing."""
    with contextlib.suppress(NotARun):
        return read_figures(run_dir, SYSTEM.wall_ns()).tokens or None
    return None
