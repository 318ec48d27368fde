"""Recording inside the training process, and the gates that decide whether a step may run.

Imports the standard library and msgspec only, to keep the start of a training fast.
"""

from outlay.record.recorder import Gate, Recorder, Span, StepTimer

__all__ = [
    "Gate", "Recorder", "Span", "StepTimer", "facts", "lock", "machine", "meters", "ranks",
    "recorder", "redaction", "supervision",
]  # fmt: skip
