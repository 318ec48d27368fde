"""BudgetGuard: ask before spending, record after it, and look at what is left.

It only keeps the books. Starting and stopping what costs money is the subject of ``supervise``
and ``rentals``.
"""

from __future__ import annotations

import getpass
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Self

from outlay.clock import SYSTEM, Clock, wall_ns_of
from outlay.errors import Finding
from outlay.guard import decisions
from outlay.guard.balance import (
    BindingCeilings,
    Books,
    Ceilings,
    Hold,
    ScopeStanding,
    balance_findings,
    room,
    standings,
)
from outlay.guard.ceilings import (
    lab_caps,
    manifest_ceilings,
    manifest_path,
    money,
    settle,
    stated_ceiling,
    write_ceiling,
)
from outlay.guard.chain import MissingLine
from outlay.guard.entries import (
    Answer,
    Captured,
    Noted,
    Posting,
    Rental,
    RunPart,
    amount_of,
    is_machine,
    lab_of,
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
from outlay.guard.locking import this_process, why_unattended
from outlay.guard.spend_log import (
    FileSpendLog,
    MemorySpendLog,
    SpendLog,
    Verification,
    read_log_path,
)
from outlay.rates import cost_at_most
from outlay.units import Money, Rate

TEST_MODE = "BUDGET_GUARD_TEST_MODE"


class BudgetGuard:
    """Refuses what would pass the ceiling, and remembers what was allowed and spent.

    Args:
        ceiling_usd: The hard ceiling of everything in this log.
        log_path: The spend log; ``manifest.json`` beside it adds caps per lab.
        caps: A cap per lab; where the manifest caps labs too, the tighter one binds.
        day_usd: A cap for each UTC day.
        month_usd: A cap for each UTC month.
        currency: Of the ceiling and of every amount in the log.
        clock: Where the time comes from.
        environ: Where overrides come from; the process's environment when left out.
        log: A spend log kept elsewhere; ``log_path`` is then only where the manifest is sought.

    Raises:
        CeilingUnusable: A ceiling can't be understood.
        InvalidValue: ``log_path`` names no file that a log can be in.
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
        clock: Clock = SYSTEM,
        environ: Mapping[str, str] | None = None,
        log: SpendLog | None = None,
    ) -> None:
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._manifest_path = manifest_path(read_log_path(log_path))
        self.log_path = Path(log_path)
        self.currency = currency
        self._follows_manifest = False
        self._used = False
        self._given = Ceilings(
            whole=money(ceiling_usd, where="ceiling_usd", currency=currency),
            labs=lab_caps(caps or {}, where="caps", currency=currency),
            day=self._cap(day_usd, "day_usd"),
            month=self._cap(month_usd, "month_usd"),
        )
        self._settled()
        self.log = self._default_log() if log is None else log

    @classmethod
    def of_log(
        cls,
        log_path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the guard of a log that exists, with the ceiling that it or its manifest states.

        Raises:
            CeilingUnusable: Neither states one, and neither does the environment.
        """
        path, environ = Path(log_path), os.environ if environ is None else environ
        log = FileSpendLog(path, clock=clock)
        ceiling = log.look(lambda books: stated_ceiling(path, books, environ))
        guard = cls(ceiling, path, currency=ceiling.currency, clock=clock, environ=environ)
        guard._follows_manifest = True
        return guard

    def _cap(self, value: object, name: str) -> Money | None:
        return None if value is None else money(value, where=name, currency=self.currency)

    def _default_log(self) -> SpendLog:
        if self._environ.get(TEST_MODE) == "1":
            _announce_test_mode()
            return MemorySpendLog()
        return FileSpendLog(self.log_path, clock=self._clock)

    def _settled(self) -> BindingCeilings:
        """Return what binds now; under the lock it is what binds the decision."""
        manifest = manifest_ceilings(self._manifest_path, self.currency)
        given = self._given
        if manifest is not None and self._follows_manifest:
            given = replace(given, whole=manifest.whole)
        return settle(given, manifest, self._environ)

    @property
    def ceilings(self) -> Ceilings:
        """The limits in force now: the manifest as it stands, the environment's override."""
        return self._settled().ceilings

    # -- asking -----------------------------------------------------------------------------

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
    ) -> Hold:
        """Set ``estimated_usd`` aside for an operation, on disk before this returns.

        Args:
            op_label: What it is for; ``lab02-...`` is paid by lab 02.
            estimated_usd: The most it should cost; digits beyond a micro-unit round up.
            lab: The lab that pays, when the label does not say.
            key: An idempotency key: asking again with it returns the same hold.
            rental: How to find and end what is about to be rented.
            by: Who will settle it; default: this process, so that its end makes the hold stale.
            least_usd: Where there is no room for all of it: take what there is, if it is this much.

        Raises:
            BudgetGuardExceeded: A ceiling or cap would be passed; nothing was set aside.
            RentalUnattended: Something rented in the same lab is overdue, or nobody watches it.
            SpendLogUnusable: The log can't be read, locked or written.
            KeyReused: The key stands for something else.
        """
        label = read_label(op_label)
        ask = decisions.Ask(
            hold=secrets.token_hex(6),
            op_label=label,
            lab=lab_of(label, None if lab is None else read_text(lab, name="lab")),
            amount=self._amount(estimated_usd, "estimated_usd"),
            least=None if least_usd is None else self._amount(least_usd, "least_usd"),
            key=read_key(key),
            by=this_process() if by is None else read_text(by, name="by"),
            rental=rental,
        )
        if not self._used:
            self._settled()  # a ceiling that can't be understood refuses before there is a log

        def decide(books: Books) -> Posting[Hold]:
            settled = self._settled()
            moment, unattended = self._moment(settled), self._unattended(books)
            return decisions.authorize(books, moment, settled.ceilings, ask, unattended=unattended)

        return self._transact(decide)

    def extend(self, hold: Hold | str, more_usd: object, *, least_usd: object = None) -> Hold:
        """Set more aside for the same operation; judged like a new authorisation.

        Where there is no room for all of it, what there is is taken if it is ``least_usd`` or more.

        Raises:
            BudgetGuardExceeded: There is no room for it; the hold stays as it was.
            HoldResolved: The hold was captured or voided.
        """
        more = self._amount(more_usd, "more_usd")
        least = None if least_usd is None else self._amount(least_usd, "least_usd")

        def decide(books: Books) -> Posting[Hold]:
            settled = self._settled()
            moment = self._moment(settled)
            return decisions.extend(books, moment, settled.ceilings, _id(hold), more, least)

        return self._transact(decide)

    # -- recording --------------------------------------------------------------------------

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
        """Record what an operation really cost; always recorded, even past the ceiling.

        It settles ``hold``, else the label's oldest open hold; spend that was never authorised
        stands alone, and counts. A hold that pays for something rented is settled by whoever sees
        that it is gone. ``part`` says of which run's log it is the cost: ``verify`` compares them.

        Raises:
            HoldResolved: ``hold`` was captured or voided before.
            RentalAlive: ``hold`` pays for something rented that was not seen to be gone.
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
        return self._transact(lambda books: decisions.record(books, self._now(), spend))

    def void(self, hold: Hold | str, reason: str) -> None:
        """Release a hold on which nothing was spent.

        Raises:
            HoldResolved: It was captured or voided before.
            RentalAlive: It pays for something rented that was not seen to be gone.
        """
        text = read_reason(reason)
        hold_id = _id(hold)
        self._transact(lambda books: decisions.void(books, self._now(), hold_id, text))

    def settle_rental(self, hold: Hold, cost: Money, proof: str) -> Money | None:
        """Record that something rented is gone; return its cost, None if that was done before."""
        return self._transact(
            lambda books: decisions.settle_rental(books, self._now(), hold, cost=cost, proof=proof)
        )

    def release_rental(self, hold: Hold, proof: str) -> None:
        """Release the hold of something that was never rented, with the proof of that."""
        self._transact(lambda books: decisions.release_rental(books, self._now(), hold.id, proof))

    def correct(
        self, op_label: str, difference_usd: object, reason: str, *, spent: Money | None = None
    ) -> None:
        """Add a difference, negative included, to what was recorded for a label.

        Nothing is added where something else than ``spent`` is spent in all by now.

        Raises:
            InvalidValue: More would be taken back than was spent.
        """
        label, text = read_label(op_label), read_reason(reason)
        more = read_difference(difference_usd, name="difference_usd", currency=self.currency)
        self._transact(
            lambda books: decisions.correct(
                books, self._now(), label, more, reason=text, expected=spent
            )
        )

    def note(
        self,
        event: str,
        op_label: str = "",
        *,
        hold: Hold | None = None,
        detail: Mapping[str, str] | None = None,
    ) -> None:
        """Write down something that moves no money, such as the proof that a pod is gone."""
        label = hold.op_label if hold else read_text(op_label, name="op_label")
        hold_id, event = hold.id if hold else "", read_text(event, name="event")
        details = read_detail(detail)

        def decide(books: Books) -> Posting[None]:
            now = self._now()
            noted = Noted(**now.stamp(label), hold=hold_id, event=event, detail=details)
            return decisions.note(books, now, noted)

        self._transact(decide)

    def set_ceiling(self, ceiling_usd: object, reason: str) -> None:
        """Set another ceiling, on purpose: a line says who did it and why.

        A manifest beside the log is changed; without one the line itself states the ceiling, for
        guards that are opened without one. A ceiling in code or in the environment stays.

        Raises:
            CeilingUnusable: It is no amount, or the manifest can't be read or written.
            InvalidValue: It is the ceiling already, or no reason is given.
        """
        text = read_reason(reason)
        after = money(ceiling_usd, where="ceiling_usd", currency=self.currency)
        path = self._manifest_path

        def decide(books: Books) -> Posting[None]:
            settled = self._settled()
            manifest = manifest_ceilings(path, self.currency)
            before = manifest.whole if manifest else settled.ceilings.whole
            moment = self._moment(settled)
            return decisions.set_ceiling(books, moment, before, after, by=_person(), reason=text)

        self._transact(decide)
        try:
            changed = write_ceiling(path, after)
        except OSError as error:
            raise CeilingUnusable(str(path), str(error), "a manifest.json to write to") from error
        if not changed:
            self._given = replace(self._given, whole=after)

    def accept(self, reason: str) -> None:
        """Take the log for what it is now, although it is not what was seen before.

        A line says who did it, why, and what was missing. It also frees the day that a line with a
        date ahead keeps open.

        Raises:
            InvalidValue: The log is in order, or no reason is given.
            SpendLogAltered: A line was edited: that can't be accepted, only restored.
        """
        text = read_reason(reason)

        def entry(books: Books, missing: tuple[MissingLine, ...]) -> Noted:
            now = replace(self._moment(None), currency=books.currency or self.currency)
            return decisions.accept(books, now, missing, by=_person(), reason=text)

        self.log.accept(entry)

    # -- looking ----------------------------------------------------------------------------

    @property
    def total_spent(self) -> float:
        """What was really spent: captures and corrections."""
        return float(amount_of(self._look(Books.captured)))

    @property
    def held(self) -> float:
        """What unresolved holds set aside, and what rentals have cost beyond that."""
        return float(amount_of(self._look(self._held)))

    @property
    def committed(self) -> float:
        """Spent and set aside together."""
        return float(amount_of(self._look(self._committed)))

    @property
    def remaining(self) -> float:
        """The ceiling less what was spent and set aside; negative once it was passed."""
        return float(amount_of(self.ceilings.whole.micros - self._look(self._committed)))

    @property
    def head(self) -> str:
        """The hash of the log's last line: kept elsewhere, it shows later what was removed."""
        return self.log.head()

    def holds(self) -> tuple[Hold, ...]:
        """Return the unresolved holds, oldest first."""
        return self._look(lambda books: tuple(books.open.values()))

    def rental_here(self, environ: Mapping[str, str]) -> Hold | None:
        """Return the hold that already pays for this machine, as its vendor's id says."""
        from outlay.record.facts import instance_id  # It loads sockets, which books never need.

        here = instance_id(environ)
        rentals = self._look(Books.open_rentals)
        return next((hold for hold in rentals if is_machine(hold.resource, here)), None)

    def until_deadline(self, hold: Hold, rate: Rate) -> Hold:
        """Return a hold as what runs under it may use it: of a rental, the time that is left.

        One that pays for nothing rented is returned as it is. ``rate`` is that of the run.
        """
        if hold.rental is None:
            return hold
        deadline_ns = wall_ns_of(parse_timestamp(hold.rental.deadline))
        left_ns = max(deadline_ns - self._clock.wall_ns(), 0)
        return replace(hold, amount=cost_at_most(rate, left_ns))

    def room_of(self, hold: Hold) -> Money:
        """Return what a hold could grow to: what it has, and what its tightest scope has left."""
        ceilings, at_ns = self.ceilings, self._clock.wall_ns()
        return hold.amount + self._look(
            lambda books: room(books, ceilings, lab=hold.lab, day=hold.day, at_ns=at_ns)
        )

    def standings(self, *, lab: str | None = None) -> tuple[ScopeStanding, ...]:
        """Return how every scope that has a limit stands today, the whole first.

        ``lab`` is listed even if it has no cap of its own and never spent anything.
        """
        ceilings, now = self.ceilings, self._now()
        return self._look(
            lambda books: standings(books, ceilings, day=now.day(books), at_ns=now.wall_ns, lab=lab)
        )

    def verify(self, *, expect: str = "", runs: Mapping[str, Path] | None = None) -> Verification:
        """Check the whole log, every decision in it, and captures against the logs of their runs.

        Args:
            expect: The hash, or its first digits, that an earlier report shows as the head: its
                line has to be there still.
            runs: The directories of runs, by their ids.
        """
        return self.log.verify(expect=expect, runs=runs)

    def findings(self) -> tuple[Finding, ...]:
        """Return what a reader of the balance should know beside it."""
        source, today = str(self.log_path), self._now().ts[:10]
        return self._look(
            lambda books: balance_findings(
                books, source, today=today, unattended=self._unattended(books)
            )
        )

    # -- details ----------------------------------------------------------------------------

    def _unattended(self, books: Books) -> dict[str, str]:
        """Return why a rental is an error, by its hold."""
        now_ns = self._clock.wall_ns()
        reasons = {hold.id: why_unattended(hold, now_ns) for hold in books.open_rentals()}
        return {hold_id: why for hold_id, why in reasons.items() if why}

    def _held(self, books: Books) -> int:
        return books.held(at_ns=self._clock.wall_ns())

    def _committed(self, books: Books) -> int:
        return books.committed(at_ns=self._clock.wall_ns())

    def _look(self, ask: Callable[[Books], Answer]) -> Answer:
        return self.log.look(lambda books: ask(self._in_our_currency(books)))

    def _transact(self, decide: Callable[[Books], Posting[Answer]]) -> Answer:
        answer = self.log.transact(lambda books: decide(self._in_our_currency(books)))
        self._used = True
        return answer

    def _in_our_currency(self, books: Books) -> Books:
        if books.currency not in (None, self.currency):
            expected = f"amounts in {self.currency}, as the ceiling is"
            raise CeilingUnusable(str(self.log_path), books.currency, expected)
        return books

    def _now(self) -> decisions.Moment:
        """Return the present; spend is recorded even while the ceiling can't be understood."""
        try:
            return self._moment(self._settled())
        except CeilingUnusable:
            return self._moment(None)

    def _moment(self, settled: BindingCeilings | None) -> decisions.Moment:
        now_ns = self._clock.wall_ns()
        return decisions.Moment(
            wall_ns=now_ns,
            ts=timestamp(now_ns),
            currency=self.currency,
            ceiling=settled.ceilings.whole if settled else None,
            by=settled.by if settled else "",
            over=settled.over if settled else None,
        )

    def _amount(self, value: object, name: str) -> Money:
        return read_amount(value, name=name, currency=self.currency)


def _id(hold: Hold | str) -> str:
    return hold.id if isinstance(hold, Hold) else read_text(hold, name="hold", expected="a hold")


def _person() -> str:
    """Return who sits here, as far as the system says."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user} on {os.uname().nodename}".encode(errors="replace").decode()


@cache
def _announce_test_mode() -> None:
    with suppress(OSError):
        sys.stderr.write(
            f"outlay: {TEST_MODE}=1: the guard keeps its books in memory; nothing is written, and "
            "all of it is forgotten with this process\n"
        )
