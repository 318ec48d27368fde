"""Exports results: TensorBoard, trackers, Prometheus, files.

Nothing here computes a figure: a sink takes a finished reading.
"""
