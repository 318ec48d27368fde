"""BudgetGuard: ask before spending, record after it, and look at what is left.

It only keeps the books. Starting and stopping what costs money is the subject of ``supervise``
and ``rentals``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.guard import decisions
from outlay.guard.books import Books, Hold
from outlay.guard.ceilings import OVERRIDES, money, read_manifest, settle, with_manifest
from outlay.guard.entries import (
    LARGEST,
    Captured,
    Noted,
    Rental,
    amount_of,
    timestamp,
)
from outlay.guard.errors import CeilingUnusable
from outlay.guard.filelog import FileSpendLog
from outlay.guard.policy import Ceilings, Settled
from outlay.guard.posting import Posting
from outlay.guard.scopes import lab_of, scopes_of
from outlay.guard.spendlog import MemorySpendLog, SpendLog, Verification
from outlay.guard.standing import Standing, doubts, standings
from outlay.units import Money
from outlay.units.numbers import exact_decimal

_KEY_LENGTH = 255


class BudgetGuard:
    """Refuses what would pass the ceiling, and remembers what was allowed and spent.

    Args:
        ceiling_usd: The hard ceiling of everything in this log.
        log_path: The spend log; ``manifest.json`` beside it adds caps per lab.
        caps: A cap per lab, instead of the manifest's.
        day_usd: A cap for each UTC day.
        month_usd: A cap for each UTC month.
        currency: Of the ceiling and of every amount in the log.
        clock: Where the time comes from.
        environ: Where overrides come from; the process's environment when left out.
        log: A spend log kept elsewhere; ``log_path`` is then only where the manifest is sought.
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
        self.log_path = Path(log_path)
        self.currency = currency
        self._configured = self._with_manifest(
            Ceilings(
                whole=money(ceiling_usd, where="ceiling_usd", currency=currency),
                labs={lab_of("", lab): self._limit(cap) for lab, cap in (caps or {}).items()},
                day=None if day_usd is None else self._limit(day_usd),
                month=None if month_usd is None else self._limit(month_usd),
            )
        )
        self._settled()
        self.log = log or self._default_log()

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
        manifest = read_manifest(path.parent / "manifest.json")
        recorded = FileSpendLog(path, clock=clock).books()
        stated = next((environ[name] for name in OVERRIDES if name in environ), None)
        if manifest is not None:
            ceiling: object = manifest.ceiling_usd
        elif recorded.ceiling_micros is not None:
            ceiling = amount_of(recorded.ceiling_micros)
        elif stated is not None:
            ceiling = stated
        else:
            expected = "a ceiling: name one, or write a manifest with `outlay guard init`"
            raise CeilingUnusable(str(path), None, expected)
        currency = manifest.currency if manifest else recorded.currency or "USD"
        return cls(ceiling, path, currency=currency, clock=clock, environ=environ)

    def _limit(self, value: object) -> Money:
        return money(value, where="cap", currency=self.currency)

    def _with_manifest(self, given: Ceilings) -> Ceilings:
        path = self.log_path.parent / "manifest.json"
        manifest = read_manifest(path)
        return given if manifest is None else with_manifest(given, manifest, where=str(path))

    def _default_log(self) -> SpendLog:
        if self._environ.get("BUDGET_GUARD_TEST_MODE") == "1":
            return MemorySpendLog()
        return FileSpendLog(self.log_path, clock=self._clock)

    def _settled(self) -> Settled:
        return settle(self._configured, self._environ)

    @property
    def ceilings(self) -> Ceilings:
        """The limits in force now, the environment's override included."""
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
    ) -> Hold:
        """Set ``estimated_usd`` aside for an operation, on disk before this returns.

        Args:
            op_label: What it is for; ``lab02-...`` is paid by lab 02.
            estimated_usd: The most it should cost; digits beyond a micro-unit round up.
            lab: The lab that pays, when the label does not say.
            key: An idempotency key: asking again with it returns the same hold.
            rental: How to find and end what is about to be rented.
            by: Who will settle it; default: this process, so that its end makes the hold stale.

        Raises:
            BudgetGuardExceeded: A ceiling or cap would be passed; nothing was set aside.
            SpendLogUnusable: The log can't be read, locked or written.
            KeyReused: The key stands for something else.
        """
        label = _label(op_label)
        ask = decisions.Ask(
            hold=secrets.token_hex(6),
            op_label=label,
            lab=lab_of(label, lab),
            amount=self._asked(estimated_usd, "estimated_usd"),
            key=_key(key),
            by=_this_process() if by is None else by,
            rental=rental,
        )
        self._settled()  # a ceiling that can't be understood refuses before the log is touched

        def decide(books: Books) -> Posting[Hold]:
            settled = self._settled()
            return decisions.authorize(books, self._moment(settled.ceilings.whole), settled, ask)

        return self.log.transact(decide)

    def extend(self, hold: Hold | str, more_usd: object) -> Hold:
        """Set more aside for the same operation; judged like a new authorisation.

        Raises:
            BudgetGuardExceeded: There is no room for it; the hold stays as it was.
            HoldResolved: The hold was captured or voided.
        """
        more = self._asked(more_usd, "more_usd")

        def decide(books: Books) -> Posting[None]:
            settled = self._settled()
            moment = self._moment(settled.ceilings.whole)
            return decisions.extend(books, moment, settled, _id(hold), more)

        self.log.transact(decide)
        return self.log.books().hold(_id(hold))

    # -- recording --------------------------------------------------------------------------

    def record_actual(
        self,
        op_label: str,
        actual_usd: object,
        *,
        hold: Hold | str | None = None,
        key: str = "",
        basis: str = "measured",
    ) -> Captured:
        """Record what an operation really cost; always recorded, even past the ceiling.

        It settles ``hold``, else the label's oldest open hold; spend that was never authorised
        stands alone, and counts.

        Raises:
            HoldResolved: ``hold`` was captured or voided before.
            SpendLogUnusable: The log can't be read, locked or written.
        """
        spend = decisions.Spend(
            op_label=_label(op_label),
            actual=self._asked(actual_usd, "actual_usd"),
            hold=None if hold is None else _id(hold),
            key=_key(key),
            basis=basis,
        )
        return self.log.transact(lambda books: decisions.record(books, self._moment(), spend))

    def void(self, hold: Hold | str, reason: str) -> None:
        """Release a hold on which nothing was spent.

        Raises:
            HoldResolved: It was captured or voided before.
        """
        text = _reason(reason)
        self.log.transact(lambda books: decisions.void(books, self._moment(), _id(hold), text))

    def correct(self, op_label: str, difference_usd: object, reason: str) -> None:
        """Add a difference, negative included, to what was recorded for a label.

        Raises:
            InvalidValue: More would be taken back than was spent.
        """
        label, text = _label(op_label), _reason(reason)
        expected = "a finite amount; negative takes back"
        number = exact_decimal(difference_usd, name="difference_usd", expected=expected)
        size = self._asked(abs(number), "difference_usd")
        signed = size if number > 0 else -size
        self.log.transact(
            lambda books: decisions.correct(books, self._moment(), label, signed, text)
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
        label, hold_id = (hold.op_label, hold.id) if hold else (op_label, "")
        stamp = self._moment().stamp(label)
        noted = Noted(**stamp, hold=hold_id, event=event, detail=dict(detail or {}))
        self.log.transact(lambda _: Posting((noted,), None))

    # -- looking ----------------------------------------------------------------------------

    @property
    def total_spent(self) -> float:
        """What was really spent: captures and corrections."""
        return float(amount_of(self.log.books().captured()))

    @property
    def held(self) -> float:
        """What unresolved holds set aside."""
        return float(amount_of(self.log.books().held()))

    @property
    def committed(self) -> float:
        """Spent and set aside together."""
        books = self.log.books()
        return float(amount_of(books.captured() + books.held()))

    @property
    def remaining(self) -> float:
        """The ceiling less what was spent and set aside; negative once it was passed."""
        books = self.log.books()
        return float(amount_of(self.ceilings.whole.micros - books.captured() - books.held()))

    def holds(self) -> tuple[Hold, ...]:
        """Return the unresolved holds, oldest first."""
        return tuple(self.log.books().open.values())

    def room_of(self, hold: Hold) -> Money:
        """Return what a hold could grow to: what it has, and what its tightest scope has left."""
        books, ceilings = self.log.books(), self.ceilings
        return hold.amount + min(
            Money(limit.micros - books.captured(scope) - books.held(scope), self.currency)
            for scope in scopes_of(hold.lab, hold.day)
            if (limit := ceilings.of(scope)) is not None
        )

    def standings(self) -> tuple[Standing, ...]:
        """Return how every scope that has a limit stands today, the whole first."""
        books = self.log.books()
        return standings(books, self.ceilings, day=max(self._today(), books.latest_day))

    def verify(self) -> Verification:
        """Check the whole log."""
        return self.log.verify()

    def findings(self) -> tuple[Finding, ...]:
        """Return what a reader of the balance should know beside it."""
        return doubts(self.log.books(), str(self.log_path))

    # -- details ----------------------------------------------------------------------------

    def _today(self) -> str:
        return timestamp(self._clock.wall_ns())[:10]

    def _moment(self, ceiling: Money | None = None) -> decisions.Moment:
        """Return the present; spend is recorded even while the ceiling can't be understood."""
        if ceiling is None:
            with suppress(CeilingUnusable):
                ceiling = self.ceilings.whole
        ts = timestamp(self._clock.wall_ns())
        return decisions.Moment(ts=ts, currency=self.currency, ceiling=ceiling)

    def _asked(self, value: object, name: str) -> Money:
        asked = Money.parse(value, name=name, currency=self.currency, rounding="up")
        if asked.currency != self.currency or asked.amount >= LARGEST:
            expected = f"an amount in {self.currency} below {LARGEST}"
            raise InvalidValue(name, value, expected)
        return asked


def _id(hold: Hold | str) -> str:
    return hold if isinstance(hold, str) else hold.id


def _this_process() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


def _label(op_label: str) -> str:
    if not op_label.strip():
        raise InvalidValue("op_label", op_label, "a name for the operation, such as lab02-spinup")
    return op_label


def _reason(reason: str) -> str:
    if not reason.strip():
        raise InvalidValue("reason", reason, "why, in a few words")
    return reason


def _key(key: str) -> str:
    if len(key) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
    return key
