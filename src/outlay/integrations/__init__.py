"""Callbacks for trainers: each framework is one file, imported where it is used.

What each of them can see is in the table of ``docs/howto/trainers.md``.
"""
