"""Meters: what a step used beyond time. Each says what it sees, and how far to trust it.

Loads the standard library only; torch and NVML are imported by the meters that need them.
"""
