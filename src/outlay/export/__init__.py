"""Results pushed out of outlay: TensorBoard, Google Cloud, files; and the monitor that does it.

Nothing here computes a figure: a sink takes a finished reading.
"""
