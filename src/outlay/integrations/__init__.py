"""Callbacks for trainers and hooks for trackers: each framework is one file, imported where used.

What each callback can see is in the table of ``docs/howto/trainers.md``.
"""
