"""``outlay help``: the commands by the question that they answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from outlay.cli.app import ALL, ENTRIES, FIRST, TOPICS, CommandEntry
from outlay.cli.output import AsJson, print_json, print_rows, print_sentence, print_title
from outlay.errors import InvalidValue

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help=f"{', '.join(TOPICS)}, or {ALL}.")]


def show_help(topic: Topic = ALL, as_json: AsJson = False) -> None:
    """List commands by topic.

    Example: outlay help money
    """
    if topic not in (*TOPICS, ALL):
        raise InvalidValue("TOPIC", topic, f"{', '.join(TOPICS)} or {ALL}")
    topics = (FIRST, *TOPICS) if topic == ALL else (topic,)
    if as_json:
        print_json([_document(entry) for each in topics for entry in _entries(each)])
        return
    for each in topics:
        print_title(TOPICS.get(each, each))
        print_rows(("command", "what it does"), [(e.name, e.help) for e in _entries(each)])
    print_sentence("outlay COMMAND --help shows its options.")


def _entries(topic: str) -> Iterator[CommandEntry]:
    return (entry for entry in ENTRIES if entry.topic == topic)


def _document(entry: CommandEntry) -> dict[str, str]:
    return {"command": entry.name, "topic": entry.topic.lower(), "help": entry.help}
