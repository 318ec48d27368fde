"""Inside training: the recorder, and the gates that decide whether a step may run.

Loads the standard library and msgspec only: a training process pays for nothing it does not use.
"""

from outlay.record.recorder import Gate, Recorder, Span, StepTimer

__all__ = ["Gate", "Recorder", "Span", "StepTimer"]
