"""Callbacks and hooks for trainers and trackers."""
