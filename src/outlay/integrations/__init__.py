"""Callbacks for trainers and hooks for trackers: one module per framework, imported only by users.

What each callback can see is listed in ``docs/howto/trainers.md``.
"""
