"""A command group that is also a command: ``outlay goodput RUN`` beside ``outlay goodput diff``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

DEFAULT = "show"


class DefaultGroup(TyperGroup):
    """Runs its ``show`` command when the first word names none of its commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command where none is named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args.insert(0, DEFAULT)
        return super().parse_args(ctx, args)
