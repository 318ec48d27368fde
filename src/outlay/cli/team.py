"""``outlay team init``, ``prune`` and ``rebuild``: the tables of books that machines share."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.output import AsJson, print_json, print_sentence
from outlay.errors import InvalidValue
from outlay.team import PostgresUrl
from outlay.team.team_schema import create_book, prune_book, setup_text

app = typer.Typer(help="Share one ceiling between machines.", no_args_is_help=True)


@app.callback()
def team() -> None:
    """Share one ceiling between machines."""


OwnersUrl = Annotated[
    str, typer.Option("--url", metavar="URL", help="postgresql://OWNER@HOST/DATABASE?book=NAME")
]


@app.command("init")
def show_init(
    url: OwnersUrl,
    run: Annotated[
        bool, typer.Option("--run", help="Run the SQL there, after a typed confirmation.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that creates a book, with its tables and roles; or run it.

    It may be run again, for another book too. Logins launch once an owner has granted them
    outlay_launcher.

    Example: outlay team init --url "postgresql://owner@db.example/spend?book=vision"
    """
    book = PostgresUrl.parse(url)
    if run:
        typed = typer.prompt(f"Create {book}? Type the name of the book", err=True)
        if typed.strip() != book.book:
            raise InvalidValue("the name of the book", typed, f"{book.book}; nothing was done")
        create_book(book)
    if as_json:
        print_json({"book": book.book, "ran": run, "sql": setup_text(book.book)})
    elif run:
        print_sentence(f"{book} is there; an owner lets logins launch: GRANT outlay_launcher TO …")
    else:
        print(setup_text(book.book), end="")


@app.command("prune")
def show_prune(url: OwnersUrl, as_json: AsJson = False) -> None:
    """Remove the snapshots of a book except the newest three; its lines stay.

    Snapshots let a process begin without reading every line. Only an owner may remove them, at any
    time: now and then, or by a timer.

    Example: outlay team prune --url "postgresql://owner@db.example/spend?book=vision"
    """
    book = PostgresUrl.parse(url)
    removed = prune_book(book)
    if as_json:
        print_json({"book": book.book, "removed": removed})
        return
    print_sentence(f"{book}: {removed} rows of old snapshots removed")


@app.command("rebuild")
def show_rebuild(url: OwnersUrl, as_json: AsJson = False) -> None:
    """Remove every snapshot of a book, if `guard verify` found a wrong one; its lines stay.

    The next process reads the book from its first line, and keeps a new snapshot.

    Example: outlay team rebuild --url "postgresql://owner@db.example/spend?book=vision"
    """
    book = PostgresUrl.parse(url)
    removed = prune_book(book, newest=0)
    if as_json:
        print_json({"book": book.book, "removed": removed})
        return
    print_sentence(f"{book}: {removed} rows of snapshots removed; the next process makes new ones")
