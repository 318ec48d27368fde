"""A drop-in for ml-goodput-measurement 0.2.3: the same modules and names, over outlay's timeline.

Modules are also importable below ``src``. Time is not divided into phases here.
"""

from __future__ import annotations
