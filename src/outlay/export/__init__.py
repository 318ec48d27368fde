"""Exports results: TensorBoard, trackers, Prometheus, files.

Nothing here computes a figure: a sink takes a finished reading.
"""

__all__ = [
    "background", "csv_files", "live_runs", "prometheus", "scalars", "sinks", "spend_logs",
    "tracker_sinks", "uploads",
]  # fmt: skip
