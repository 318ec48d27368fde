"""Limits of a team: who may hold how much, who may say so, and what a refusal tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import in_process
from outlay import BudgetGuard
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.balance import Hold
from outlay.guard.ceilings import LimitChange
from outlay.guard.errors import BudgetGuardExceeded, CeilingUnusable, SpendLogUnusable
from outlay.guard.scopes import ScopePattern
from outlay.units import Money, Rate
from postgres import TeamDatabase

pytestmark = pytest.mark.xdist_group("postgres")
Limits = dict[ScopePattern, str]


@pytest.fixture
def book(team: TeamDatabase) -> Iterator[str]:
    yield team.new_book().rpartition("=")[2]
    team.forget_people()


def owner_of(team: TeamDatabase, book: str, unit: str = "USD") -> BudgetGuard:
    return BudgetGuard(None, team.owner_url(book), currency=unit, environ={})


def launcher_of(team: TeamDatabase, book: str, **more: str) -> BudgetGuard:
    return BudgetGuard(None, team.url(book), environ={}, **more)  # type: ignore[arg-type]


def limit(guard: BudgetGuard, pattern: ScopePattern, amount: str, **more: object) -> None:
    change = LimitChange(pattern=pattern, amount=Money.parse(amount), **more)  # type: ignore[arg-type]
    guard.set_limit(change, "so")


@pytest.mark.parametrize(
    ("of", "named"), [("whole", ""), ("user", "me"), ("user", "*"), ("team", "lab"), ("lab", "02")]
)
@pytest.mark.parametrize("period", ["", "day", "month"])
def test_a_limit_refuses_what_exceeds_it(
    team: TeamDatabase, book: str, of: str, named: str, period: str
) -> None:
    team.add_member(team.login, "lab")
    name = team.login if named == "me" else named
    limit(owner_of(team, book), ScopePattern(of, name, period), "5 USD")  # type: ignore[arg-type]
    guard = launcher_of(team, book)
    hold = guard.authorize("lab02-a", 3)
    guard.record_actual("lab02-a", 2, hold=hold)
    guard.authorize("lab02-a", 3)
    with pytest.raises(BudgetGuardExceeded) as refused:
        guard.authorize("lab02-b", "0.000001")
    assert "> 5.00 USD" in str(refused.value)
    assert ("it frees on" in str(refused.value)) == bool(period)
    assert guard.verify().findings == ()


def test_each_user_has_the_limit_of_everyone_unless_one_of_his_own(
    team: TeamDatabase, book: str
) -> None:
    owner = owner_of(team, book)
    limit(owner, ScopePattern("user", "*", "day"), "1 USD")
    limit(owner, ScopePattern("user", team.login, "day"), "3 USD")
    mine, other = launcher_of(team, book), BudgetGuard(None, team.another_login(book), environ={})
    mine.authorize("a", 3)
    other.authorize("a", 1)
    for guard in (mine, other):
        with pytest.raises(BudgetGuardExceeded, match=r"user \w+ day"):
            guard.authorize("a", "0.01")


def test_an_hourly_limit_counts_the_rates_of_open_holds(team: TeamDatabase, book: str) -> None:
    limit(owner_of(team, book), ScopePattern(period="hour"), "10 USD")
    guard = launcher_of(team, book)
    first = guard.authorize("a", 1, rate=Rate.parse("6 USD/h"))
    with pytest.raises(BudgetGuardExceeded, match=r"hour: 6.00 USD/h of open holds"):
        guard.authorize("b", 1, rate=Rate.parse("4.01 USD/h"))
    guard.authorize("b", 1)  # It states no rate.
    guard.void(first, "done")
    guard.authorize("b", 1, rate=Rate.parse("10 USD/h"))
    assert guard.verify().findings == ()


def test_without_a_limit_that_applies_nothing_is_held(team: TeamDatabase, book: str) -> None:
    limit(owner_of(team, book), ScopePattern("user", "somebody"), "5 USD")
    with pytest.raises(BudgetGuardExceeded, match="no limit applies to user"):
        launcher_of(team, book).authorize("a", 1)


def test_a_book_without_limits_needs_a_ceiling(team: TeamDatabase, book: str) -> None:
    with pytest.raises(CeilingUnusable, match="outlay team set-ceiling"):
        launcher_of(team, book).authorize("a", 1)


def test_code_and_environment_only_tighten(team: TeamDatabase, book: str) -> None:
    limit(owner_of(team, book), ScopePattern(), "5 USD")
    url = team.url(book)
    with pytest.raises(BudgetGuardExceeded, match=r"> 2.00 USD"):
        BudgetGuard(2, url, environ={}).authorize("a", 3)
    with pytest.raises(BudgetGuardExceeded, match=r"> 1.00 USD"):
        BudgetGuard(9, url, environ={"OUTLAY_CEILING_USD": "1"}).authorize("a", 3)
    with pytest.raises(BudgetGuardExceeded, match=r"> 5.00 USD"):
        BudgetGuard(99, url, environ={}).authorize("a", 6)
    BudgetGuard(99, url, environ={}).authorize("a", 5)
    assert launcher_of(team, book).verify().findings == ()


def test_a_limit_that_warns_refuses_nothing_and_is_reported(team: TeamDatabase, book: str) -> None:
    owner = owner_of(team, book)
    limit(owner, ScopePattern(), "9 USD")
    limit(owner, ScopePattern("user", team.login), "2 USD", refuses=False)
    guard = launcher_of(team, book)
    guard.authorize("a", 3)
    (finding,) = guard.findings()
    assert finding.severity == "warning"
    assert "above the limit of 2.00 USD" in finding.message


def test_a_limit_with_an_end_gives_way_to_the_one_before(team: TeamDatabase, book: str) -> None:
    clock = ManualClock()
    with team.at_time(clock) as advance:
        owner = owner_of(team, book)
        limit(owner, ScopePattern(), "1 USD")
        until = "2023-11-15T00:00:00.000000Z"
        limit(owner, ScopePattern(), "5 USD", until=until)
        guard = BudgetGuard(None, team.url(book), clock=clock, environ={})
        hold = guard.authorize("a", 4)
        guard.void(hold, "done")
        clock.advance(2 * 3600 * 10**9)
        advance()
        with pytest.raises(BudgetGuardExceeded, match=r"> 1.00 USD"):
            guard.authorize("a", 4)
        assert guard.verify().findings == ()
        with pytest.raises(InvalidValue, match="a time after now"):
            limit(owner, ScopePattern(), "5 USD", until=until)


@pytest.mark.parametrize(("period", "hours"), [("day", 24), ("month", 24 * 31)])
def test_a_period_begins_anew_by_the_database_s_clock(
    team: TeamDatabase, book: str, period: str, hours: int
) -> None:
    clock = ManualClock()
    with team.at_time(clock) as advance:
        limit(owner_of(team, book), ScopePattern("whole", "", period), "5 USD")  # type: ignore[arg-type]
        guard = launcher_of(team, book)  # Its machine's clock is years ahead.
        guard.record_actual("a", 5)
        with pytest.raises(BudgetGuardExceeded, match="it frees on 2023-1"):
            guard.authorize("a", 1)
        clock.advance(hours * 3600 * 10**9)
        advance()
        guard.authorize("a", 5)
        assert guard.verify().findings == ()


def test_the_database_refuses_what_a_client_does_not(
    team: TeamDatabase, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(owner_of(team, book), ScopePattern("user", team.login, "month"), "5 USD")
    guard = launcher_of(team, book)
    monkeypatch.setattr("outlay.guard.decisions.shortfalls", lambda *_, **__: ())
    with pytest.raises(SpendLogUnusable, match="exceeds the limit of user"):
        guard.authorize("a", 6)
    assert guard.holds() == ()


def test_only_an_owner_sets_limits(team: TeamDatabase, book: str) -> None:
    with pytest.raises(SpendLogUnusable, match="only an owner"):
        limit(launcher_of(team, book), ScopePattern(), "5 USD")


def test_a_request_is_granted_with_both_names(team: TeamDatabase, book: str) -> None:
    owner, guard = owner_of(team, book), launcher_of(team, book)
    limit(owner, ScopePattern(), "1 USD")
    change = LimitChange(pattern=ScopePattern(), amount=Money.parse("5 USD"))
    request = guard.request_limit(change, "an ablation").detail["request"]
    with pytest.raises(SpendLogUnusable, match="only an owner"):
        guard.answer_request(request, "mine", granted=True)
    line = owner.answer_request(request, "agreed", granted=True)
    assert (line.by, line.requested_by) == ("postgres", team.login)  # type: ignore[union-attr]
    guard.authorize("a", 5)
    with pytest.raises(InvalidValue, match="none is open"):
        owner.answer_request(request, "again", granted=True)
    assert guard.verify().findings == ()


def test_a_user_of_two_teams_says_which_one_pays(team: TeamDatabase, book: str) -> None:
    url = team.another_login(book)
    login = url.partition("//")[2].partition(":")[0]
    for name in ("audio", "vision"):
        team.add_member(login, name)
        limit(owner_of(team, book), ScopePattern("team", name), "1 USD")
    with pytest.raises(InvalidValue, match="audio, vision"):
        BudgetGuard(None, url, environ={}).authorize("a", 1)
    BudgetGuard(None, url, team="audio", environ={}).authorize("a", 1)
    BudgetGuard(None, url, environ={"OUTLAY_TEAM": "vision"}).authorize("a", 1)
    limit(owner_of(team, book), ScopePattern("team", "other"), "1 USD")
    with pytest.raises(SpendLogUnusable, match="is not in team other"):
        BudgetGuard(None, url, team="other", environ={}).authorize("a", 1)


def test_a_service_acts_for_the_users_of_its_list(team: TeamDatabase, book: str) -> None:
    limit(owner_of(team, book), ScopePattern("user", "ana"), "2 USD")
    team.execute(f"INSERT INTO outlay.service VALUES ('{team.login}', 'ana')")
    guard = launcher_of(team, book, user="ana")
    hold = guard.authorize("a", 2)
    (line,) = [line for line in guard.log.lines() if line.op_label == "a"]
    assert (hold.user, line.user, line.via) == ("ana", "ana", team.login)  # type: ignore[union-attr]
    guard.record_actual("a", 1, hold=hold)
    limit(owner_of(team, book), ScopePattern("user", "bob"), "2 USD")
    with pytest.raises(SpendLogUnusable, match="may not act for user bob"):
        launcher_of(team, book, user="bob").authorize("a", 1)


def test_a_service_of_everybody_acts_for_anybody(team: TeamDatabase, book: str) -> None:
    limit(owner_of(team, book), ScopePattern("user", "*"), "2 USD")
    team.execute(f"INSERT INTO outlay.service VALUES ('{team.login}', '*')")
    for user in ("ana", "bob"):
        guard = launcher_of(team, book, user=user)
        guard.void(guard.authorize("a", 2), "that it may")


# -- the owner of a team ---------------------------------------------------------------------------


def owned_team(team: TeamDatabase, book: str, *, owns: str) -> tuple[BudgetGuard, Hold]:
    """Return the guard of a login that owns a team, and a hold of another of its members."""
    limit(owner_of(team, book), ScopePattern("team", "*"), "9 USD")
    team.add_member(team.login, "vision")
    url = team.another_login(book)
    login = url.partition("//")[2].partition(":")[0]
    team.add_member(login, owns)
    team.execute(f"UPDATE outlay.member SET owns = true WHERE login = '{login}'")
    return BudgetGuard(None, url, environ={}), launcher_of(team, book).authorize("a", 3)


def test_the_owner_of_a_team_settles_its_holds(team: TeamDatabase, book: str) -> None:
    owner, hold = owned_team(team, book, owns="vision")
    owner.record_actual("a", 2, hold=hold)
    again = launcher_of(team, book).authorize("b", 3)
    owner.note("seen", hold=again)
    owner.log.beat(again.id, "a-process")
    owner.void(again, "its node is dead")
    assert (owner.total_spent, owner.held, owner.verify().findings) == (2.0, 0.0, ())


def test_the_owner_of_a_team_holds_nothing_for_its_members(team: TeamDatabase, book: str) -> None:
    owner, hold = owned_team(team, book, owns="vision")
    with pytest.raises(SpendLogUnusable, match="the hold is not of user"):
        owner.extend(hold, 1)
    url = owner.log.name.url  # type: ignore[attr-defined]
    with pytest.raises(SpendLogUnusable, match="may not act for user"):
        BudgetGuard(None, url, user=team.login, environ={}).authorize("a", 1)


def test_the_owner_of_another_team_settles_nothing(team: TeamDatabase, book: str) -> None:
    owner, hold = owned_team(team, book, owns="audio")
    for act in (lambda: owner.record_actual("a", 2, hold=hold), lambda: owner.void(hold, "no")):
        with pytest.raises(SpendLogUnusable, match="the hold is not of user"):
            act()
    assert [each.id for each in owner.holds()] == [hold.id]


def test_a_team_is_owned_from_a_first_day_to_a_last(team: TeamDatabase, book: str) -> None:
    owner, hold = owned_team(team, book, owns="vision")
    team.execute("UPDATE outlay.member SET until = '2001-01-01' WHERE owns")
    with pytest.raises(SpendLogUnusable, match="the hold is not of user"):
        owner.void(hold, "no")


def test_an_owner_is_named_when_a_member_is_added(team: TeamDatabase, book: str) -> None:
    words = ("--url", team.owner_url(book))
    login = f"lee_{book[-6:]}"
    assert in_process("team", "add", login, "--owns-team", *words).code == 2
    printed = in_process("team", "add", login, "--team", "vision", "--owns-team", *words)
    team.execute(printed.out)
    rows = in_process("team", "members", *words, "--json").json
    assert [(row["team"], row["owns"]) for row in rows] == [("vision", True)]
    assert "vision (owner)" in in_process("team", "members", *words).out


def test_a_membership_counts_from_its_first_day_to_its_last(team: TeamDatabase, book: str) -> None:
    clock = ManualClock()
    login = f"{team.login}"
    team.execute(
        f"INSERT INTO outlay.member VALUES ('{login}', 'summer', '2023-11-15', '2023-11-16')"
    )
    teams = []
    with team.at_time(clock) as advance:
        limit(owner_of(team, book), ScopePattern(), "9 USD")
        for _ in range(3):
            advance()
            teams.append("summer" in launcher_of(team, book).log.login("").teams)
            clock.advance(24 * 3600 * 10**9)
    assert teams == [False, True, False]


@pytest.mark.parametrize("unit", ["USD showback", "GPU-h"])
def test_a_book_has_a_unit_that_does_not_mix(team: TeamDatabase, unit: str) -> None:
    book = team.new_book().rpartition("=")[2]
    team.execute(f"UPDATE outlay.book SET currency = '{unit}' WHERE name = '{book}'")
    with pytest.raises(SpendLogUnusable, match="another currency"):
        limit(owner_of(team, book), ScopePattern(), "5 USD")
    owner = owner_of(team, book, unit)
    change = LimitChange(pattern=ScopePattern(), amount=owner.unit.money(5_000_000))
    owner.set_limit(change, "so")
    guard = BudgetGuard.of_log(team.url(book), environ={})
    hold = guard.authorize("a", 3)
    assert str(hold.amount) == f"3.00 {unit}"
    assert [str(each.amount) for each in team.log(team.url(book)).books().open_holds()] == [
        f"3.00 {unit}"
    ]
    with pytest.raises(InvalidValue, match=f"an amount in {unit}"):
        guard.authorize("a", Money.parse("1 USD"))
    assert guard.verify().findings == ()


@pytest.mark.parametrize("act", ["extend", "void", "correct", "note"])
def test_the_same_act_with_the_same_key_is_done_once(
    team: TeamDatabase, book: str, tmp_path: Path, act: str
) -> None:
    """Also by another process, after the answer to the first was lost."""
    acts: dict[str, Callable[[BudgetGuard, Hold], object]] = {
        "extend": lambda guard, hold: guard.extend(hold, 1, key="k"),
        "void": lambda guard, hold: guard.void(hold, "no", key="k"),
        "correct": lambda guard, _: guard.correct("a", 1, "more", key="k"),
        "note": lambda guard, _: guard.note("seen", "a", key="k"),
    }
    for name in (team.owner_url(book), tmp_path / "spend.jsonl"):
        first, again = (BudgetGuard(9, name, environ={}) for _ in range(2))
        hold = first.authorize("a", 1)
        acts[act](first, hold)
        lines = first.log.lines()
        acts[act](again, hold)
        assert again.log.lines() == lines


# Commands.


def test_limits_are_set_asked_for_and_shown_by_commands(team: TeamDatabase, book: str) -> None:
    owner, mine = team.owner_url(book), team.url(book)
    place = ("--team", "lab", "--month")
    done = in_process("team", "set-ceiling", *place, "5 USD", "--reason", "grant", "--log", owner)
    assert (done.code, done.out) == (0, "team lab month: 5.00 USD.\n")
    asked = in_process("team", "request", *place, "7 USD", "--reason", "r", "--log", mine, "--json")
    request = asked.json["detail"]["request"]
    shown = in_process("team", "limits", "--log", mine, columns=200)
    assert request in shown.out
    refused = in_process("team", "approve", request, "--reason", "me", "--log", mine)
    assert (refused.code != 0, "only an owner" in refused.err) == (True, True)
    granted = in_process("team", "approve", request, "--reason", "yes", "--log", owner)
    assert granted.out == "team lab month: 7.00 USD.\n"
    limits = in_process("team", "limits", "--log", mine, "--json").json
    assert [row["limit"]["micros"] for row in limits["scopes"]] == [7_000_000]
    assert limits["requests"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--all, --day, --month or --hour"),
        (("--month", "5 EUR"), "an amount in USD"),
        (("--month", "lots"), "a finite amount"),
        (("--month", "5", "--user", "a", "--team", "b"), "one of user, team and project"),
        (("--month", "5", "--enforce", "maybe"), "refuse or warn"),
        (("--month", "5", "--until", "soon"), "a time such as"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    team: TeamDatabase, book: str, words: tuple[str, ...], says: str
) -> None:
    url = team.owner_url(book)
    done = in_process("team", "set-ceiling", *words, "--reason", "r", "--log", url, columns=200)
    assert (done.code, says in done.err) == (2, True), done.err
    assert team.log(url).lines() == ()


def test_people_are_added_and_removed_by_sql_that_is_printed(team: TeamDatabase, book: str) -> None:
    owner, login = team.owner_url(book), f'o\'hara "{book}"'
    printed = in_process("team", "add", login, "--team", "x", "--url", owner)
    assert printed.code == 0
    team.execute(printed.out)
    rows = in_process("team", "members", "--url", owner, "--json").json
    assert [row["team"] for row in rows if row["login"] == login] == ["x"]
    asked = f"SELECT pg_has_role({login!r}, 'outlay_launcher', 'MEMBER')".replace(
        repr(login), "'" + login.replace("'", "''") + "'"
    )
    assert team.execute(asked) == [(True,)]
    done = in_process("team", "remove", login, "--url", owner, "--run", typed=f"{book}\n")
    assert done.code == 0, done.err
    assert team.execute(asked) == [(False,)]


def test_people_are_added_only_after_the_book_is_typed(team: TeamDatabase, book: str) -> None:
    owner, login = team.owner_url(book), f"eve_{book[-4:]}"
    done = in_process("team", "add", login, "--url", owner, "--run", typed="no\n")
    assert (done.code, "nothing was done" in done.err) == (2, True)
    assert team.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{login}'") == []
