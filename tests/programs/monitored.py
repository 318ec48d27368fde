"""A monitored training that is killed, or exits without stopping its monitor.

Usage: monitored.py RUN_DIR OUTPUT STEPS [stop|leave|wait|cloud stop]
"""

from __future__ import annotations

import sys
from pathlib import Path

import outlay
from outlay.clock import SYSTEM
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.compat.ml_goodput_measurement.monitoring import GoodputMonitor
from outlay.export.sinks import JsonLinesFile

run_dir, output, steps, end = sys.argv[1:]
monitor = GoodputMonitor(
    "job",
    "log",
    None,
    0.05,
    True,
    gcp_options=GCPOptions("p", "l", enable_gcp_goodput_metrics="cloud" in end),
    final_flush_timeout_seconds=0.3 if "cloud" in end else 5,
    run_dir=run_dir,
    sinks=[JsonLinesFile(output)],
)
with outlay.run("model", dir=Path(run_dir)) as run:
    monitor.start_goodput_uploader()
    for _ in range(int(steps)):
        with run.step():
            SYSTEM.sleep(0.01)
    sys.stdout.write("trained\n")
    sys.stdout.flush()
    if "wait" in end:
        sys.stdin.read()
    while "stop" in end and not Path(output).exists():
        SYSTEM.sleep(0.05)  # The test has a deadline.
if "stop" in end:
    monitor.stop_goodput_uploader()
    tally = monitor.tally
    sys.stdout.write(f"{tally.uploaded} {tally.lost} {tally.trouble}\n")
