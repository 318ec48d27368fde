"""Exports results: TensorBoard, Google Cloud, trackers, Prometheus, files; and the monitor.

Nothing here computes a figure: a sink takes a finished reading.
"""
