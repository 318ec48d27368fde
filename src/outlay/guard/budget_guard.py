"""BudgetGuard: ask before spending, record after it, and look at what is left.

It only keeps the books. Starting and stopping what costs money is the subject of ``supervise``
and ``rentals``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Self, TypedDict

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, InvalidValue
from outlay.guard.ceilings import (
    OVERRIDES,
    Settled,
    money,
    read_manifest,
    settle,
    with_manifest,
)
from outlay.guard.entries import (
    LARGEST,
    SCHEMA,
    AnyEntry,
    Captured,
    Corrected,
    Extended,
    Held,
    Noted,
    Rental,
    Voided,
    amount_of,
    timestamp,
)
from outlay.guard.errors import BudgetGuardExceeded, CeilingUnusable, KeyReused
from outlay.guard.filelog import FileSpendLog
from outlay.guard.policy import WHOLE, Books, Ceilings, Hold, lab_of, scopes_of, shortfalls
from outlay.guard.spendlog import MemorySpendLog, Posting, SpendLog, Verification
from outlay.guard.standing import Standing, doubts, standings
from outlay.units import Money
from outlay.units.numbers import exact_decimal

_KEY_LENGTH = 255


class _Stamp(TypedDict):
    v: int
    ts: str
    op_label: str
    currency: str
    ceiling: Decimal


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
        label, asked = _label(op_label), self._asked(estimated_usd, "estimated_usd")
        payer = lab_of(label, lab)
        _check_key(key)
        self._settled()  # a ceiling that can't be understood refuses before the log is touched

        def decide(books: Books) -> Posting[Hold]:
            if key in books.grants:
                return Posting((), self._same_grant(books, key, label, payer, asked))
            day = max(self._today(), books.latest_day)
            settled = self._room(books, payer, day, asked)
            held = Held(
                **self._stamp(label, settled.ceilings.whole), estimated=amount_of(asked.micros),
                hold=_new_id(books), lab=payer, day=day, key=key, rental=rental,
                by=_this_process() if by is None else by,
                caps=_caps(settled.ceilings, payer, day),
            )  # fmt: skip
            hold = Hold(
                id=held.hold, op_label=label, lab=payer, day=day, amount=asked, ts=held.ts,
                by=held.by, rental=rental,
            )  # fmt: skip
            return Posting((*self._raised(books, settled), held), hold)

        return self.log.transact(decide)

    def extend(self, hold: Hold | str, more_usd: object) -> Hold:
        """Set more aside for the same operation; judged like a new authorisation.

        Raises:
            BudgetGuardExceeded: There is no room for it; the hold stays as it was.
            HoldResolved: The hold was captured or voided.
        """
        asked = self._asked(more_usd, "more_usd")

        def decide(books: Books) -> Posting[str]:
            current = books.hold(_id(hold))
            settled = self._room(books, current.lab, current.day, asked)
            extended = Extended(
                **self._stamp(current.op_label, settled.ceilings.whole),
                estimated=amount_of(asked.micros), hold=current.id,
                caps=_caps(settled.ceilings, current.lab, current.day),
            )  # fmt: skip
            return Posting((*self._raised(books, settled), extended), current.id)

        return self.log.books().hold(self.log.transact(decide))

    def _room(self, books: Books, lab: str, day: str, asked: Money) -> Settled:
        settled = self._settled()
        if short := shortfalls(books, settled.ceilings, lab=lab, day=day, asked=asked):
            raise BudgetGuardExceeded("; ".join(str(scope) for scope in short))
        return settled

    def _raised(self, books: Books, settled: Settled) -> tuple[AnyEntry, ...]:
        """Return the line that says so when this is judged by a looser ceiling than before."""
        now, override = settled.ceilings.whole.micros, settled.override
        first_override = books.ceiling_micros is None and override is not None and override.loosens
        if not first_override and (books.ceiling_micros is None or now <= books.ceiling_micros):
            return ()
        before = override.over.micros if first_override and override else books.ceiling_micros or 0
        by = override.variable if override else "ceiling_usd"
        detail = {"from": str(amount_of(before)), "to": str(amount_of(now)), "by": by}
        return (
            Noted(**self._stamp("", settled.ceilings.whole), event="ceiling-raised", detail=detail),
        )

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
        label, actual = _label(op_label), self._asked(actual_usd, "actual_usd")
        _check_key(key)

        def decide(books: Books) -> Posting[Captured]:
            if key in books.grants:
                return Posting((), self._same_capture(books, key, label, actual))
            found = books.hold(_id(hold)) if hold is not None else books.oldest_open(label)
            captured = Captured(
                **self._stamp(label), actual=amount_of(actual.micros),
                estimated=amount_of(found.amount.micros) if found else None,
                hold=found.id if found else "", lab=found.lab if found else lab_of(label),
                day=found.day if found else max(self._today(), books.latest_day),
                key=key, basis=basis,
            )  # fmt: skip
            return Posting((captured,), captured)

        return self.log.transact(decide)

    def void(self, hold: Hold | str, reason: str) -> None:
        """Release a hold on which nothing was spent.

        Raises:
            HoldResolved: It was captured or voided before.
        """

        def decide(books: Books) -> Posting[None]:
            current = books.hold(_id(hold))
            released = amount_of(current.amount.micros)
            voided = Voided(
                **self._stamp(current.op_label), estimated=released, actual=Decimal(0),
                hold=current.id, reason=_reason(reason),
            )  # fmt: skip
            return Posting((voided,), None)

        self.log.transact(decide)

    def correct(self, op_label: str, difference_usd: object, reason: str) -> None:
        """Add a difference, negative included, to what was recorded for a label."""
        label = _label(op_label)
        expected = "a finite amount; negative takes back"
        difference = exact_decimal(difference_usd, name="difference_usd", expected=expected)
        size = self._asked(abs(difference), "difference_usd").micros

        def decide(books: Books) -> Posting[None]:
            signed = size if difference > 0 else -size
            if books.captured() + signed < 0:
                raise InvalidValue("difference_usd", difference_usd, "no more than was spent")
            corrected = Corrected(
                **self._stamp(label), actual=amount_of(signed), lab=lab_of(label),
                day=max(self._today(), books.latest_day), reason=_reason(reason),
            )  # fmt: skip
            return Posting((corrected,), None)

        self.log.transact(decide)

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

        def decide(books: Books) -> Posting[None]:
            del books
            noted = Noted(
                **self._stamp(label), hold=hold_id, event=event, detail=dict(detail or {})
            )
            return Posting((noted,), None)

        self.log.transact(decide)

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

    def _stamp(self, label: str, ceiling: Money | None = None) -> _Stamp:
        whole = (ceiling or self.ceilings.whole).micros
        return {
            "v": SCHEMA,
            "ts": timestamp(self._clock.wall_ns()),
            "op_label": label,
            "currency": self.currency,
            "ceiling": amount_of(whole),
        }

    def _asked(self, value: object, name: str) -> Money:
        asked = Money.parse(value, name=name, currency=self.currency, rounding="up")
        if asked.currency != self.currency or asked.amount >= LARGEST:
            expected = f"an amount in {self.currency} below {LARGEST}"
            raise InvalidValue(name, value, expected)
        return asked

    def _same_grant(self, books: Books, key: str, label: str, lab: str, asked: Money) -> Hold:
        before = books.grants[key]
        asked_before = before.op_label, before.lab, before.estimated
        if not isinstance(before, Held) or asked_before != (label, lab, amount_of(asked.micros)):
            raise KeyReused(key, f"{before.op_label} in lab {before.lab}, {before.estimated}")
        return books.granted(key)

    def _same_capture(self, books: Books, key: str, label: str, actual: Money) -> Captured:
        before = books.grants[key]
        same = (before.op_label, before.actual) == (label, amount_of(actual.micros))
        if not isinstance(before, Captured) or not same:
            raise KeyReused(key, f"{before.op_label}, {before.actual or before.estimated}")
        return before


def _caps(ceilings: Ceilings, lab: str, day: str) -> dict[str, Decimal]:
    limits = {scope: ceilings.of(scope) for scope in scopes_of(lab, day) if scope != WHOLE}
    return {str(scope): amount_of(cap.micros) for scope, cap in limits.items() if cap is not None}


def _id(hold: Hold | str) -> str:
    return hold if isinstance(hold, str) else hold.id


def _new_id(books: Books) -> str:
    while (fresh := secrets.token_hex(6)) in books.open or fresh in books.resolved:
        pass
    return fresh


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


def _check_key(key: str) -> None:
    if len(key) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
