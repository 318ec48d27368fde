"""The command line: parse, call, show. It computes nothing itself."""

from outlay.cli.app import main

__all__ = ["app", "main"]
