"""BudgetGuard: authorise before spending, record after it, and read what remains.

It only keeps the books; ``supervise`` and ``rental`` start and stop what costs money.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Self

from outlay.clock import SYSTEM, Clock, utc_text, wall_ns_of
from outlay.errors import Finding, InvalidValue, choices
from outlay.guard import decisions
from outlay.guard.away.waiting_settlements import deliver_to, waiting_dir
from outlay.guard.balance import (
    Books,
    Hold,
    balance_findings,
    rental_findings,
)
from outlay.guard.ceilings import (
    Ceilings,
    LimitChange,
    ScopeStanding,
    manifest_ceilings,
    manifest_path,
    parse_cap,
    parse_lab_caps,
    parse_limit,
    resolve_ceilings,
    room,
    standings,
    stated_ceiling,
    write_ceiling,
)
from outlay.guard.chain import MissingLine
from outlay.guard.entries import (
    Answer,
    AnyEntry,
    Captured,
    Decision,
    Limited,
    Noted,
    Rental,
    RunPart,
    amount_of,
    parse_timestamp,
    read_amount,
    read_detail,
    read_difference,
    read_key,
    read_label,
    read_reason,
    read_text,
    timestamp,
)
from outlay.guard.errors import CeilingUnusable
from outlay.guard.scopes import BUFFER, lab_of
from outlay.guard.spend_log import (
    BookLog,
    FileSpendLog,
    LogName,
    MemorySpendLog,
    SpendLog,
    Verification,
    is_url,
    open_book,
    open_log,
    read_log_path,
)
from outlay.membership import paying_team
from outlay.proc.identity import has_ended, this_process
from outlay.rates import cost_at_most
from outlay.units import Duration, Money, Rate, Unit
from outlay.units.money import recorded_rate

TEST_MODE = "BUDGET_GUARD_TEST_MODE"
USER_VARIABLE, TEAM_VARIABLE = "OUTLAY_USER", "OUTLAY_TEAM"
"""Whose money a process holds, if its login is not the user, or the user has several teams."""


class BudgetGuard:
    """Refuses operations that would exceed the ceiling, and records holds and spend.

    Args:
        ceiling_usd: The hard ceiling of everything in this log.
        log_path: The spend log; ``manifest.json`` beside it adds caps per lab. Or the URL of a
            book that machines share: ``postgresql://host/database?book=vision``.
        caps: A cap per lab; where the manifest caps labs too, the tighter one applies.
        day_usd: A cap for each UTC day.
        month_usd: A cap for each UTC month.
        currency: Of the ceiling and of every amount in the log; also ``USD showback`` or ``GPU-h``.
        user: Whose money new lines are about; default: the login. A book lets only services, and
            only for users of their lists, state another.
        team: The user's team that pays; default: the one that a book knows.
        clock: The source of time.
        environ: The source of overrides; default: the process's environment.
        log: Another spend log; ``log_path`` then only locates the manifest.

    ``ceiling_usd`` may be None where lines of the log set its limits.

    Raises:
        CeilingUnusable: A ceiling can't be parsed.
        InvalidValue: ``log_path`` is not the path of a spend log, or no URL of a book.
    """

    def __init__(
        self,
        ceiling_usd: object,
        log_path: str | os.PathLike[str],
        *,
        caps: Mapping[str, object] | None = None,
        day_usd: object = None,
        month_usd: object = None,
        currency: str = "USD",
        user: str = "",
        team: str = "",
        clock: Clock = SYSTEM,
        environ: Mapping[str, str] | None = None,
        log: SpendLog | None = None,
    ) -> None:
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._user = user or self._environ.get(USER_VARIABLE, "")
        self._team = team or self._environ.get(TEAM_VARIABLE, "")
        book = open_book(str(log_path), clock=clock) if is_url(log_path) else None
        self._manifest_path = None if book else manifest_path(read_log_path(log_path))
        self.log_name: LogName = Path(log_path) if book is None else book.name
        self._waiting_dir = None if book is None else waiting_dir(book.name)
        self.unit = Unit.parse(currency, name="currency")
        self._follows_manifest = False
        self._used = False
        self._given = Ceilings(
            unit=self.unit,
            whole=parse_cap(ceiling_usd, where="ceiling_usd", currency=currency),
            labs=parse_lab_caps(caps or {}, where="caps", currency=currency),
            day=parse_cap(day_usd, where="day_usd", currency=currency),
            month=parse_cap(month_usd, where="month_usd", currency=currency),
        )
        _ = self._stated()  # refuses a setting that can't be parsed
        self.log = log or self._default_log(book)

    @classmethod
    def of_log(
        cls,
        log_path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM,
        environ: Mapping[str, str] | None = None,
        log: BookLog | None = None,
    ) -> Self:
        """Return the guard of an existing log, with the ceiling of its manifest or last line.

        ``log`` is the book of that name, if it is open already.

        Raises:
            CeilingUnusable: Neither states a ceiling, nor does the environment.
        """
        environ = os.environ if environ is None else environ
        opened = log or open_log(log_path, clock=clock)
        is_file = isinstance(opened, FileSpendLog)
        name = str(log_path) if isinstance(opened, FileSpendLog) else str(opened.name)
        manifest = manifest_path(Path(log_path)) if is_file else None
        ceiling, unit = opened.look(
            lambda books: (stated_ceiling(manifest, books, environ, log=name), books.unit)
        )
        currency = str(unit if ceiling is None else ceiling.unit)
        guard = cls(ceiling, log_path, currency=currency, clock=clock, environ=environ)
        if not is_file and not isinstance(guard.log, MemorySpendLog):
            guard.log = opened  # One connection is enough.
        guard._follows_manifest = True
        return guard

    def _default_log(self, book: SpendLog | None) -> SpendLog:
        if self._environ.get(TEST_MODE) == "1":
            _announce_test_mode()
            return MemorySpendLog()
        if book is not None:
            return book
        return FileSpendLog(self.log_path, clock=self._clock)

    @property
    def log_path(self) -> Path:
        """The path of a log in a file.

        Raises:
            InvalidValue: It is a book.
        """
        if not isinstance(self.log_name, Path):
            expected = "a spend log in a file"
            raise InvalidValue("log_path", str(self.log_name), expected)
        return self.log_name

    @property
    def currency(self) -> str:
        """The unit of the ceiling and of every amount in the log."""
        return str(self.unit)

    @property
    def ceilings(self) -> Ceilings:
        """The limits in force now, from the caller, the environment, the manifest and the log."""
        return self._look(lambda books: self._limits(books, self._wall_ns()))

    def _limits(self, books: Books, wall_ns: int) -> Ceilings:
        stated = self._stated()
        if books.limited:
            policy = books.limits(timestamp(wall_ns))
            return replace(stated, scoped=(*stated.scoped, policy))
        if stated.whole is None and not stated.scoped:
            expected = "a ceiling: name one, or have one set with `outlay team set-ceiling`"
            raise CeilingUnusable(str(self.log_name), None, expected)
        return stated

    def _stated(self) -> Ceilings:
        """Return the limits of the caller, the environment and the manifest."""
        manifest = manifest_ceilings(self._manifest_path, self.currency)
        given = self._given
        if manifest is not None and self._follows_manifest:
            given = replace(given, whole=manifest.whole)
        return resolve_ceilings(given, manifest, self._environ)

    # -- holds ------------------------------------------------------------------------------

    def authorize(
        self,
        op_label: str,
        estimated_usd: object,
        *,
        lab: str | None = None,
        key: str = "",
        rental: Rental | None = None,
        by: str | None = None,
        least_usd: object = None,
        rate: Rate | None = None,
    ) -> Hold:
        """Hold ``estimated_usd`` for an operation; on disk before this returns.

        Args:
            op_label: The operation; ``lab02-...`` is paid by lab 02.
            estimated_usd: The most it should cost; digits beyond a micro-unit round up.
            lab: The lab that pays, if the label does not name it.
            key: An idempotency key: the same request with it returns the same hold.
            rental: How to find and terminate a rental that is about to be ordered.
            by: The process that will settle it, whose end makes the hold stale; default: this one.
            least_usd: If the estimate does not fit, hold what fits, but no less than this.
            rate: What it costs per hour, which hourly limits count; default: the rental's.

        Raises:
            BudgetGuardExceeded: A ceiling or cap would be exceeded; nothing is held.
            RentalUnattended: A rental of the same lab is overdue or unwatched.
            NamesakeListed: A machine has the name of a rental of the same lab, and is not it.
            SpendLogUnusable: The log can't be read, locked or written.
            KeyReused: The key was used for another request.
        """
        request = replace(
            self._request(op_label, estimated_usd, lab=lab, rate=rate),
            least=None if least_usd is None else self._amount(least_usd, "least_usd"),
            key=read_key(key),
            by=this_process() if by is None else read_text(by, name="by"),
        )
        if rental is not None:
            per_hour = request.rate or self._amount(recorded_rate(rental.rate).per_hour, "rate")
            request = replace(request, rental=rental, rate=per_hour)
        if not self._used:
            _ = self._stated()  # refuses an unusable ceiling before a log is created
        if self._waiting_dir is not None and self._waiting_dir.exists():
            deliver_to(self)  # What was held and not spent is free again.
        return self._transact(
            lambda books, now: decisions.authorize(
                books, now, request, unattended=self._unattended(books)
            ),
            needs_ceiling=True,
        )

    def check(
        self,
        op_label: str,
        estimated_usd: object,
        *,
        lab: str | None = None,
        rate: Rate | None = None,
    ) -> None:
        """Raise what ``authorize`` would raise for these arguments; hold and write nothing.

        Another launch can take the money afterwards: only a hold keeps it.
        """
        request = self._request(op_label, estimated_usd, lab=lab, rate=rate)

        def decide(books: Books) -> None:
            now = self._moment(books, needs_ceiling=True)
            decisions.authorize(books, now, request, unattended=self._unattended(books))

        self._look(decide)

    def _request(
        self, op_label: str, estimated_usd: object, *, lab: str | None, rate: Rate | None
    ) -> decisions.HoldRequest:
        label = read_label(op_label)
        return decisions.HoldRequest(
            hold=secrets.token_hex(6),
            op_label=label,
            lab=lab_of(label, None if lab is None else read_text(lab, name="lab")),
            amount=self._amount(estimated_usd, "estimated_usd"),
            least=None,
            key="",
            by="",
            rental=None,
            rate=None if rate is None else self._amount(rate.per_hour, "rate"),
        )

    def extend(
        self, hold: Hold | str, more_usd: object, *, least_usd: object = None, key: str = ""
    ) -> Hold:
        """Hold more for the same operation, under the same limits as a new hold.

        If ``more_usd`` does not fit, what fits is held, but no less than ``least_usd``. The same
        request with the same idempotency key extends it once.

        Raises:
            BudgetGuardExceeded: It does not fit; the hold is unchanged.
            HoldResolved: The hold is captured or voided.
        """
        more = self._amount(more_usd, "more_usd")
        least = None if least_usd is None else self._amount(least_usd, "least_usd")
        hold_id, key = _id(hold), read_key(key)
        return self._transact(
            lambda books, now: decisions.extend(books, now, hold_id, more, least, key=key),
            needs_ceiling=True,
        )

    # -- spend ------------------------------------------------------------------------------

    def record_actual(
        self,
        op_label: str,
        actual_usd: object,
        *,
        hold: Hold | str | None = None,
        key: str = "",
        basis: str = "measured",
        part: RunPart | None = None,
    ) -> Captured:
        """Record the actual cost of an operation; always recorded, even past the ceiling.

        It resolves ``hold``, else the label's oldest open hold, else none: spend without a hold
        counts, too. A rental's hold is settled by ``settle_rental``. ``part`` names the part of a
        run whose cost it is, which ``verify`` compares with the run's log.

        Raises:
            HoldResolved: ``hold`` is already captured or voided.
            RentalAlive: ``hold`` pays for a rental that is not verified gone.
            SpendLogUnusable: The log can't be read, locked or written.
        """
        spend = decisions.Spend(
            op_label=read_label(op_label),
            actual=self._amount(actual_usd, "actual_usd"),
            hold=None if hold is None else _id(hold),
            key=read_key(key),
            basis=read_text(basis, name="basis"),
            part=part,
        )
        return self._transact(lambda books, now: decisions.record(books, now, spend))

    def void(self, hold: Hold | str, reason: str, *, key: str = "") -> None:
        """Release a hold on which nothing was spent.

        Raises:
            HoldResolved: It is already captured or voided.
            RentalAlive: It pays for a rental that is not verified gone.
        """
        text, hold_id, key = read_reason(reason), _id(hold), read_key(key)
        self._transact(lambda books, now: decisions.void(books, now, hold_id, text, key=key))

    def settle_rental(
        self, hold: Hold, cost: Money, proof: str, *, basis: str = "estimated"
    ) -> Money | None:
        """Record that a rental is gone; return its cost, or None if that was done before."""
        return self._transact(
            lambda books, now: decisions.settle_rental(
                books, now, hold, cost=cost, proof=proof, basis=basis
            )
        )

    def reopen_rental(self, hold: Hold, resource: str) -> Hold:
        """Record that a rental came back after its end, and its cost; return its new hold."""
        new, by = secrets.token_hex(6), this_process()
        return self._transact(
            lambda books, now: decisions.reopen_rental(
                books, now, hold.id, new=new, by=by, resource=resource
            )
        )

    def release_rental(self, hold: Hold, proof: str) -> None:
        """Release the hold of a rental that was never created, with the proof of that."""
        self._transact(lambda books, now: decisions.release_rental(books, now, hold.id, proof))

    def correct(
        self,
        op_label: str,
        difference_usd: object,
        reason: str,
        *,
        spent: Money | None = None,
        key: str = "",
    ) -> None:
        """Add a signed difference to the spend of a label.

        Nothing is added if the total spend is no longer ``spent``.

        Raises:
            InvalidValue: It would take back more than was spent.
        """
        label, text = read_label(op_label), read_reason(reason)
        more = self.unit.money(read_difference(difference_usd, name="difference_usd"))
        key = read_key(key)
        self._transact(
            lambda books, now: decisions.correct(
                books, now, label, more, reason=text, expected=spent, key=key
            )
        )

    def note(
        self,
        event: str,
        op_label: str = "",
        *,
        hold: Hold | None = None,
        detail: Mapping[str, str] | None = None,
        key: str = "",
    ) -> None:
        """Append a note, which changes no balance."""
        label = hold.op_label if hold else read_text(op_label, name="op_label")
        hold_id, event = hold.id if hold else "", read_text(event, name="event")
        text, key = read_detail(detail), read_key(key)
        self._transact(
            lambda books, now: decisions.note(
                books, now, label, event, hold=hold_id, detail=text, key=key
            )
        )

    def take_watch(self, hold: Hold, watcher: str) -> bool:
        """Note a rental's new watcher; False if another took it since ``hold`` was read."""
        return self._transact(lambda books, now: decisions.take_watch(books, now, hold, watcher))

    def set_ceiling(self, ceiling_usd: object, reason: str) -> None:
        """Change the ceiling, with a note of who did it and why.

        Writes the manifest beside the log; without one the note itself states the ceiling, for
        guards opened with ``of_log``. A ceiling in code or in the environment is unchanged.

        Raises:
            CeilingUnusable: Not an amount, or the manifest can't be read or written.
            InvalidValue: It is the ceiling already, or there is no reason.
        """
        text = read_reason(reason)
        after = parse_limit(ceiling_usd, where="ceiling_usd", currency=self.currency)
        path = self._manifest_path

        def decide(books: Books, now: decisions.Moment) -> Decision[None]:
            before = (manifest_ceilings(path, self.currency) or now.ceilings).whole
            if before is None or books.limited:
                expected = "`outlay team set-ceiling`, since lines of the log set its limits"
                raise InvalidValue("ceiling", str(after), expected)
            return decisions.set_ceiling(now, before, after, by=self.log.author(), reason=text)

        self._transact(decide, needs_ceiling=True)
        try:
            changed = write_ceiling(path, after)
        except OSError as error:
            raise CeilingUnusable(str(path), str(error), "a manifest.json to write to") from error
        if not changed:
            self._given = replace(self._given, whole=after)

    # -- limits that lines of the log set ---------------------------------------------------

    def set_limit(self, change: LimitChange, reason: str, *, key: str = "") -> Limited:
        """Set, change or remove a limit, with who did it and why; of a book, only owners can.

        Raises:
            InvalidValue: It ends in the past, or there is no reason.
            SpendLogUnusable: The login may not, or the log can't be written.
        """
        text, key = read_reason(reason), read_key(key)
        return self._transact(
            lambda books, now: decisions.limit(
                books, now, change, by=self.log.author(), reason=text, key=key
            )
        )

    def request_limit(self, change: LimitChange, reason: str) -> Noted:
        """Ask for another limit, which an owner grants or denies."""
        text, request = read_reason(reason), secrets.token_hex(4)
        return self._transact(
            lambda _, now: decisions.request_limit(
                now, request, change, by=self.log.author(), reason=text
            )
        )

    def answer_request(self, request: str, reason: str, *, granted: bool) -> AnyEntry:
        """Grant a request for another limit, or deny it.

        Raises:
            InvalidValue: No open request has this id.
        """
        text = read_reason(reason)
        return self._transact(
            lambda books, now: decisions.answer_request(
                books, now, request, granted=granted, by=self.log.author(), reason=text
            )
        )

    def allow_offline(self, allowance: Duration, reason: str) -> None:
        """State how long running operations go on while the log can't be reached."""
        text = read_reason(reason)
        self._transact(
            lambda _, now: decisions.allow_offline(
                now, allowance, by=self.log.author(), reason=text
            )
        )

    def accept(self, reason: str) -> None:
        """Accept the log as it is now, although it is behind what was seen.

        A note states who did it, why, and what was missing. It also resets a latest day that lies
        ahead.

        Raises:
            InvalidValue: The log is in order, or there is no reason.
            SpendLogAltered: A line was edited: that can't be accepted, only restored.
        """
        text = read_reason(reason)

        def entry(books: Books, missing: tuple[MissingLine, ...]) -> Noted:
            now = self._moment(books)
            now = replace(now, limits=None, currency=books.currency or self.currency)
            return decisions.accept(books, now, missing, by=self.log.author(), reason=text)

        self.log.accept(entry)

    # -- queries ----------------------------------------------------------------------------

    @property
    def total_spent(self) -> float:
        """The actual spend: captures and corrections."""
        return float(amount_of(self._look(Books.captured)))

    @property
    def held(self) -> float:
        """The sum of open holds, and what rentals have cost beyond theirs."""
        held = self._look(lambda books: books.held(at_ns=self._wall_ns()))
        return float(amount_of(held))

    @property
    def committed(self) -> float:
        """Spent plus held."""
        return float(amount_of(self._committed()))

    @property
    def remaining(self) -> float:
        """What is left of the ceiling, or of the tightest limit; negative once it is exceeded."""
        ceilings = self.ceilings
        if ceilings.whole is not None and not ceilings.scoped:
            return float(amount_of(ceilings.whole.micros - self._committed()))
        return float(self.room().amount)

    def room(self, lab: str = BUFFER) -> Money:
        """Return how much more this user can hold in a lab today: of the tightest limit."""

        def ask(books: Books) -> Money:
            now = self._moment(books, needs_ceiling=True)
            payer, day = now.payer(lab), now.day(books)
            return room(books, now.ceilings, payer, day, at_ns=now.wall_ns)

        return self._look(ask)

    @property
    def head(self) -> str:
        """The hash of the log's last line; kept elsewhere, it proves later that nothing is gone."""
        return self.log.head()

    def holds(self) -> tuple[Hold, ...]:
        """Return the open holds, oldest first."""
        return self._look(Books.open_holds)

    def rental_here(self, environ: Mapping[str, str]) -> Hold | None:
        """Return the rental's hold that already pays for this machine, by the vendor's id."""
        from outlay.record.facts import instance_id  # Here: it loads sockets.

        here = instance_id(environ)
        rentals = self._look(Books.open_rentals)
        return next((hold for hold in rentals if hold.is_machine(here)), None)

    def until_deadline(self, hold: Hold, rate: Rate) -> Hold:
        """Return a rental's hold with the cost of its remaining time at the run's ``rate``.

        Any other hold is returned unchanged.
        """
        if hold.rental is None:
            return hold
        deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
        left_ns = max(deadline_ns - self._clock.wall_ns(), 0)
        return replace(hold, amount=cost_at_most(rate, left_ns))

    def room_of(self, hold: Hold) -> Money:
        """Return the largest amount a hold could have: its own, and its tightest scope's rest."""

        def ask(books: Books) -> Money:
            at_ns = self._wall_ns()
            return room(books, self._limits(books, at_ns), hold.payer, hold.day, at_ns=at_ns)

        return hold.amount + self._look(ask)

    def standings(self, *, lab: str | None = None) -> tuple[ScopeStanding, ...]:
        """Return today's standing of every scope that has a limit, the whole first.

        ``lab`` is listed even if it has no cap of its own and has spent nothing.
        """

        def ask(books: Books) -> tuple[ScopeStanding, ...]:
            at_ns = self._wall_ns()
            ceilings, day = self._limits(books, at_ns), max(timestamp(at_ns)[:10], books.latest_day)
            return standings(books, ceilings, day=day, at_ns=at_ns, lab=lab)

        return self._look(ask)

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check the whole log, every decision in it, and captures against the logs of their runs.

        Args:
            expect: The head's hash in an earlier report, or its first digits; that line must
                still be there.
            runs: The directories of runs, by run id.
        """
        return self.log.verify(expect=expect, runs=runs)

    def findings(self) -> tuple[Finding, ...]:
        """Return raised ceilings, accepted logs, dates ahead, exceeded limits, doubtful rentals."""
        source = str(self.log_name)
        doubts = self._look(
            lambda books: balance_findings(books, source, today=timestamp(self._wall_ns())[:10])
        )
        return (*doubts, *self.exceeded(), *self.rental_findings())

    def exceeded(self) -> tuple[Finding, ...]:
        """Return the limits that only warn, and are exceeded."""
        try:
            rows = [row for row in self.standings() if not row.refuses]
        except CeilingUnusable:
            return ()
        texts = [
            f"{row.scope}: {row.captured} spent + {row.held} held, above the limit of {row.limit}"
            for row in rows
            if row.remaining.micros < 0
        ]
        source = str(self.log_name)
        return tuple(Finding(source=source, message=text, severity="warning") for text in texts)

    def rental_findings(self) -> tuple[Finding, ...]:
        """Return rentals that are lost, unattended, back or not listed, and their namesakes."""
        return self._look(
            lambda books: rental_findings(
                books, str(self.log_name), unattended=self._unattended(books)
            )
        )

    def offline_allowance(self) -> Duration:
        """Return how long a lease may run while the log can't be reached; held beforehand."""
        return self.log.offline_allowance()

    # -- details ----------------------------------------------------------------------------

    def _unattended(self, books: Books) -> dict[str, str]:
        now_ns, rentals = self._wall_ns(), books.open_rentals()
        silent = self.log.silent_watchers() if rentals else frozenset()
        reasons = {hold.id: why_unattended(hold, now_ns, silent) for hold in rentals}
        return {hold_id: why for hold_id, why in reasons.items() if why}

    def _committed(self) -> int:
        return self._look(lambda books: books.committed(at_ns=self._wall_ns()))

    def _look(self, ask: Callable[[Books], Answer]) -> Answer:
        def look(books: Books) -> Answer:
            self._check_currency(books)
            return ask(books)

        return self.log.look(look)

    def _transact(
        self,
        decide: Callable[[Books, decisions.Moment], Decision[Answer]],
        *,
        needs_ceiling: bool = False,
    ) -> Answer:
        """Decide under the lock; ``needs_ceiling`` refuses while that is unusable."""

        def post(books: Books) -> Decision[Answer]:
            self._check_currency(books)
            now = self._moment(books, needs_ceiling=needs_ceiling)
            return decisions.noting_raise(books, now, decide(books, now))

        answer = self.log.transact(post)
        self._used = True
        return answer

    def _check_currency(self, books: Books) -> None:
        if books.currency not in (None, self.currency):
            expected = f"amounts in {self.currency}, as the ceiling is"
            raise CeilingUnusable(str(self.log_name), books.currency, expected)

    def _moment(self, books: Books, *, needs_ceiling: bool = False) -> decisions.Moment:
        """Return the present; spend is recorded even while the ceiling is unusable."""
        limits, wall_ns = None, self._wall_ns()
        try:
            limits = self._limits(books, wall_ns)
        except CeilingUnusable:
            if needs_ceiling:
                raise
        login = self.log.login(self._user)
        team = paying_team(self._team, login.teams)
        if needs_ceiling and not team and login.teams:
            raise InvalidValue("team", "none", choices(login.teams))
        return decisions.Moment(
            wall_ns=wall_ns, currency=self.currency, limits=limits, user=login.user, team=team,
            via=login.via,
        )  # fmt: skip

    def _wall_ns(self) -> int:
        """Return the time: a book's own, whatever the clock of this machine says."""
        return self.log.wall_ns(self._clock)

    def _amount(self, value: object, name: str) -> Money:
        return read_amount(value, name=name, unit=self.unit)


def _id(hold: Hold | str) -> str:
    return hold.id if isinstance(hold, Hold) else read_text(hold, name="hold", expected="a hold")


@cache
def _announce_test_mode() -> None:
    with suppress(OSError):
        sys.stderr.write(
            f"outlay: {TEST_MODE}=1: the guard keeps its books in memory; nothing is written, and "
            "all of it is forgotten with this process\n"
        )


# Stale holds and unattended rentals: reported, never released.

OLD_NS = 24 * 3600 * 10**9


def why_unattended(hold: Hold, now_ns: int, silent: Collection[str] = ()) -> str:
    """Return why a live rental is an error, overdue or unwatched; "" if it is not.

    ``silent`` are watchers that are taken for dead, since their book has not heard of them.
    """
    if hold.rental is None or hold.state == "gone":
        return ""
    why = []
    deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
    if now_ns > deadline_ns:
        why.append(f"it is past its deadline of {utc_text(deadline_ns)}")
    if hold.watcher in silent or has_ended(hold.watcher or hold.by):
        why.append(
            f"its watcher {hold.watcher} is dead" if hold.watcher else "it never had a watcher"
        )
    return " and ".join(why)


def why_stale(hold: Hold, now_ns: int) -> str:
    """Return why a hold may be abandoned; "" if nothing suggests that."""
    if hold.rental is not None:
        return why_unattended(hold, now_ns)
    if has_ended(hold.by):
        return f"{hold.by}, which opened it, has ended"
    if now_ns - wall_ns_of(parse_timestamp(hold.ts)) > OLD_NS:
        return "it is older than a day"
    return ""
