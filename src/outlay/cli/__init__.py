"""The command line: parse, call, show. No arithmetic lives here."""

from outlay.cli.app import main

__all__ = ["main"]
