"""``outlay team``: books that machines share, who may use them, and their limits."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import msgspec
import typer

from outlay.cli.guard.log import scopes_table
from outlay.cli.guard.options import DEFAULT_LOG, Log, open_guard
from outlay.cli.output import AsJson, console, new_table, print_json, print_sentence
from outlay.cli.team.claim import show_claim
from outlay.clock import wall_ns_of
from outlay.errors import InvalidValue
from outlay.guard.balance import LimitRow
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import LimitChange, requested_change
from outlay.guard.entries import Limited, Noted, parse_timestamp, timestamp
from outlay.guard.scopes import Of, Period, ScopePattern, lab_of
from outlay.guard.spend_log import is_url
from outlay.team import PostgresUrl
from outlay.team.team_schema import (
    Member,
    Role,
    create_book,
    list_members,
    member_text,
    prune_book,
    removal_text,
    run_sql,
    setup_text,
)
from outlay.units import Duration, Money, Unit

app = typer.Typer(help="Share ceilings between machines and people.", no_args_is_help=True)
app.command("claim")(show_claim)

OwnerUrl = Annotated[
    str,
    typer.Option(
        metavar="URL", help="postgresql://OWNER@HOST/DATABASE?book=NAME", envvar="OUTLAY_SPEND_LOG"
    ),
]
Run = Annotated[bool, typer.Option("--run", help="Run the SQL there, after a typed confirmation.")]
Request = Annotated[str, typer.Argument(help="The id of a request.")]
Reason = Annotated[str, typer.Option(help="Why, in a few words.")]
User = Annotated[str, typer.Option(metavar="NAME", help="Of a user; '*' for each without one.")]
Team = Annotated[str, typer.Option(metavar="NAME", help="Of a team; '*' for each without one.")]
Project = Annotated[
    str, typer.Option(metavar="NAME", help="Of a project; '*' for each without one.")
]
Amount = str | None
All = Annotated[Amount, typer.Option("--all", metavar="AMOUNT", help="At all times.")]
Day = Annotated[Amount, typer.Option("--day", metavar="AMOUNT", help="On each UTC day.")]
Month = Annotated[Amount, typer.Option("--month", metavar="AMOUNT", help="In each UTC month.")]
Hour = Annotated[
    Amount, typer.Option("--hour", metavar="AMOUNT", help="Of what open holds cost per hour.")
]
Until = Annotated[
    str, typer.Option(metavar="TIME", help="Its end, UTC; then the limit before it applies again.")
]


@app.callback()
def team() -> None:
    """Share ceilings between machines and people."""


# Books and people: SQL that is printed, or run.


def _offer(url: str, sql: str, *, run: bool, as_json: bool, asks: str, done: str) -> None:
    """Print SQL, or run it once the name of the book is typed."""
    book = PostgresUrl.parse(url)
    if run:
        _confirm(book, asks)
        run_sql(book, sql)
    if as_json:
        print_json({"book": book.book, "ran": run, "sql": sql})
    elif run:
        print_sentence(done)
    else:
        print(sql, end="")


def _confirm(book: PostgresUrl, asks: str) -> None:
    typed = typer.prompt(f"{asks} Type the name of the book", err=True)
    if typed.strip() != book.book:
        raise InvalidValue("the name of the book", typed, f"{book.book}; nothing was done")


@app.command("init")
def show_init(
    url: OwnerUrl,
    unit: Annotated[
        str | None, typer.Option(help='Of all amounts: "USD", "USD showback" or "GPU-h".')
    ] = None,
    run: Run = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that creates a book, with its tables and roles; or run it.

    It may be run again, for another book too.

    Example: outlay team init --url "postgresql://owner@db.example/spend?book=vision" --run
    """
    book, kept_in = PostgresUrl.parse(url), None if unit is None else Unit.parse(unit)
    if run:
        _confirm(book, f"Create {book}?")
        create_book(book, kept_in)
    if as_json:
        print_json({"book": book.book, "ran": run, "sql": setup_text(book.book, kept_in)})
    elif run:
        print_sentence(f"{book} is there; `outlay team add` lets logins launch.")
    else:
        print(setup_text(book.book, kept_in), end="")


@app.command("add")
def show_add(
    login: Annotated[str, typer.Argument(help="The login of a person or a service.")],
    url: OwnerUrl,
    role: Annotated[Role, typer.Option(help="What it may do.")] = "launcher",
    team: Annotated[str, typer.Option(metavar="NAME", help="The team that pays for it.")] = "",
    since: Annotated[
        str, typer.Option(metavar="DATE", help="The first UTC day in the team; default: today.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="DATE", help="The first UTC day no longer in it.")
    ] = "",
    acts_for: Annotated[
        list[str] | None,
        typer.Option(metavar="USER", help="A user for whom this service may launch; '*' for all."),
    ] = None,
    owns_team: Annotated[
        bool, typer.Option("--owns-team", help="Let it settle what the team holds.")
    ] = False,
    run: Run = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that lets a login use the books, or run it.

    A new login has no password: psql's command password sets it.

    Example: outlay team add ana --team vision --url "postgresql://owner@db.example/spend?book=lab"
    """
    member = Member(
        login=login, role=role, team=team, since=_date(since, "--since"),
        until=_date(until, "--until"), acts_for=tuple(acts_for or ()), owns=owns_team,
    )  # fmt: skip
    if owns_team and not team:
        raise InvalidValue("--owns-team", "no team", "--team with the name of one")
    of_team = f"{' and owns' if owns_team else ' in'} team {team}" if team else ""
    shown = f"{login} is a {role}{of_team}."
    _offer(
        url, member_text(member), run=run, as_json=as_json, asks=f"Add {login}?", done=shown
    )  # fmt: skip


@app.command("remove")
def show_remove(
    login: Annotated[str, typer.Argument(help="The login of a person or a service.")],
    url: OwnerUrl,
    team: Annotated[
        str, typer.Option(metavar="NAME", help="Leave this team only; default: everything.")
    ] = "",
    run: Run = False,
    as_json: AsJson = False,
) -> None:
    """Print the SQL that takes a login out of a team, or out of all, with its rights; or run it.

    What it spent stays; its open holds are settled by an owner.

    Example: outlay team remove ana --url "postgresql://owner@db.example/spend?book=lab" --run
    """
    left = f"team {team}" if team else "the books"
    _offer(
        url, removal_text(login, team), run=run, as_json=as_json,
        asks=f"Remove {login} from {left}?", done=f"{login} has left {left}.",
    )  # fmt: skip


@app.command("members")
def show_members(url: OwnerUrl, as_json: AsJson = False) -> None:
    """List who is in which team, and for whom services act.

    Example: outlay team members --url "postgresql://ana@db.example/spend?book=lab"
    """
    names = ("login", "team", "since", "until", "acts_for", "owns")
    rows = list_members(PostgresUrl.parse(url))
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    table = new_table("login", "team", "since", "until", "acts for")
    for login, team, since, until, acts_for, owns in rows:
        table.add_row(login, f"{team} (owner)" if owns else team, since, until, acts_for)
    console.print(table)


def _date(text: str, name: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidValue(name, text, "a date such as 2026-12-01") from None


# Limits: lines of the log.


@app.command("set-ceiling")
def show_set_ceiling(
    reason: Reason,
    user: User = "",
    team: Team = "",
    project: Project = "",
    at_all_times: All = None,
    day: Day = None,
    month: Month = None,
    hour: Hour = None,
    enforce: Annotated[str, typer.Option(help="refuse or warn.")] = "refuse",
    until: Until = "",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Set a ceiling of everybody, a user, a team or a project; the amount "none" removes it.

    Example: outlay team set-ceiling --team vision --month "5000 USD" --reason "the grant"
    """
    guard = _guard(log)
    if enforce not in ("refuse", "warn"):
        raise InvalidValue("--enforce", enforce, "refuse or warn")
    of, name = _whom(user, team, project)
    amounts = _amounts(at_all_times, day, month, hour)
    changes = [
        LimitChange(
            pattern=ScopePattern(of, name, period), amount=_limit(text, guard.unit),
            refuses=enforce == "refuse", until=_until(until),
        )
        for period, text in amounts.items()
    ]  # fmt: skip
    lines = [guard.set_limit(change, reason) for change in changes]
    if as_json:
        print_json(msgspec.to_builtins(lines))
        return
    for line in lines:
        print_sentence(f"{line.pattern}: {_shown(line, guard.unit)}.")


@app.command("limits")
def show_limits(log: Log = DEFAULT_LOG, as_json: AsJson = False) -> None:
    """Show every limit with what is spent and held of it, who set it, and open requests.

    Example: outlay team limits
    """
    guard = _guard(log)
    rows, asked, offline_ns = guard.log.look(
        lambda books: (books.limit_lines(), books.requests(), books.offline_ns)
    )
    standings = guard.standings() if rows else ()
    if as_json:
        print_json(
            {
                "scopes": standings, "limits": msgspec.to_builtins(rows),
                "requests": msgspec.to_builtins(asked), "offline_s": offline_ns / 1e9,
            }
        )  # fmt: skip
        return
    if standings:
        console.print(scopes_table(standings))
        console.print()
    console.print(_limits_table(rows, guard.unit))
    if asked:
        console.print()
        console.print(_requests_table(asked))
    if offline_ns:
        print_sentence(f"Running operations go on for {Duration(offline_ns)} without the database.")


def _limits_table(rows: list[LimitRow], unit: Unit) -> object:
    table = new_table("limit of", "amount", "set by", "on", "reason", prose=("reason",))
    for line in (line for row in rows for line in row if line is not None):
        by = line.by + (f", asked by {line.requested_by}" if line.requested_by else "")
        table.add_row(str(line.pattern), _shown(line, unit), by, line.ts[:10], line.reason)
    return table


def _requests_table(asked: list[Noted]) -> object:
    table = new_table(
        "request", "limit of", ">amount", "asked by", "on", "reason", prose=("reason",)
    )
    for line in asked:
        change, told = requested_change(line), line.detail
        table.add_row(
            told["request"], str(change.pattern), str(change.amount), told["by"], line.ts[:10],
            told["reason"],
        )  # fmt: skip
    return table


def _shown(line: Limited, unit: Unit) -> str:
    if line.limit is None:
        return "no limit"
    per = "/h" if line.period == "hour" else ""
    amount = f"{Money.parse(line.limit, currency=unit.currency).as_kind(unit.kind)}{per}"
    warns = ", only warns" if line.enforce == "warn" else ""
    return f"{amount}{warns}{f' until {line.until}' if line.until else ''}"


@app.command("request")
def show_request(
    reason: Reason,
    user: User = "",
    team: Team = "",
    project: Project = "",
    at_all_times: All = None,
    day: Day = None,
    month: Month = None,
    hour: Hour = None,
    until: Until = "",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Ask for another ceiling, which an owner approves or denies.

    Example: outlay team request --team vision --month "6000 USD" --reason "a last ablation"
    """
    guard = _guard(log)
    of, name = _whom(user, team, project)
    amounts = _amounts(at_all_times, day, month, hour)
    if len(amounts) != 1:
        raise InvalidValue("limits", len(amounts), "one of --all, --day, --month and --hour")
    ((period, text),) = amounts.items()
    amount = _limit(text, guard.unit)
    if amount is None:
        raise InvalidValue("limit", text, "an amount")
    change = LimitChange(pattern=ScopePattern(of, name, period), amount=amount, until=_until(until))
    line = guard.request_limit(change, reason)
    if as_json:
        print_json(msgspec.to_builtins(line))
    else:
        request = line.detail["request"]
        print_sentence(f"request {request}; an owner runs `outlay team approve {request}`.")


@app.command("approve")
def show_approve(
    request: Request, reason: Reason, log: Log = DEFAULT_LOG, as_json: AsJson = False
) -> None:
    """Grant a request: the limit is set, with the names of both.

    Example: outlay team approve 1f2e3d4c --reason "agreed"
    """
    _answer(request, reason, log, granted=True, as_json=as_json)


@app.command("deny")
def show_deny(
    request: Request, reason: Reason, log: Log = DEFAULT_LOG, as_json: AsJson = False
) -> None:
    """Deny a request.

    Example: outlay team deny 1f2e3d4c --reason "next month"
    """
    _answer(request, reason, log, granted=False, as_json=as_json)


def _answer(request: str, reason: str, log: str, *, granted: bool, as_json: bool) -> None:
    guard = _guard(log)
    line = guard.answer_request(request, reason, granted=granted)
    if as_json:
        print_json(msgspec.to_builtins(line))
    elif isinstance(line, Limited):
        print_sentence(f"{line.pattern}: {_shown(line, guard.unit)}.")
    else:
        print_sentence(f"request {request} is denied.")


@app.command("offline")
def show_offline(
    allowance: Annotated[str, typer.Argument(help="Such as 30m; 0s for none.")],
    reason: Reason,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Let running operations go on for a time without the database; it is held beforehand.

    Example: outlay team offline 30m --reason "the database is updated on Sundays"
    """
    duration = Duration.parse(allowance, name="ALLOWANCE")
    _guard(log).allow_offline(duration, reason)
    if as_json:
        print_json({"offline_s": duration.seconds})
    else:
        print_sentence(f"From now on leases hold {duration} ahead, and go on for so long.")


def _guard(log: str) -> BudgetGuard:
    """Return the guard of a log, in its unit; no ceiling of the caller's is needed."""
    if not is_url(log):
        return open_guard(log, None)
    guard = BudgetGuard(0, log, environ={})
    return BudgetGuard(None, log, currency=str(guard.log.look(lambda books: books.unit)))


def _whom(user: str, team: str, project: str) -> tuple[Of, str]:
    named: list[tuple[Of, str]] = []
    named += [("user", user)] if user else []
    named += [("team", team)] if team else []
    named += [("lab", lab_of("", project))] if project else []
    if len(named) > 1:
        raise InvalidValue("limit", [name for _, name in named], "one of user, team and project")
    return named[0] if named else ("whole", "")


def _amounts(always: Amount, day: Amount, month: Amount, hour: Amount) -> dict[Period, str]:
    stated: dict[Period, Amount] = {"": always, "day": day, "month": month, "hour": hour}
    found = {period: text for period, text in stated.items() if text is not None}
    if not found:
        raise InvalidValue("limit", "none", "--all, --day, --month or --hour with an amount")
    return found


def _limit(text: str, unit: Unit) -> Money | None:
    if text.strip().lower() == "none":
        return None
    amount = Money.parse(text, name="limit", currency=unit.currency).as_kind(unit.kind)
    if amount.unit != unit:
        raise InvalidValue("limit", text, f"an amount in {unit}, as the book is")
    return amount


def _until(text: str) -> str:
    if not text:
        return ""
    try:
        return timestamp(wall_ns_of(parse_timestamp(text)))
    except msgspec.ValidationError:
        raise InvalidValue("--until", text, "a time such as 2026-12-01T12:00") from None


# Snapshots.


@app.command("prune")
def show_prune(url: OwnerUrl, as_json: AsJson = False) -> None:
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
def show_rebuild(url: OwnerUrl, as_json: AsJson = False) -> None:
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
