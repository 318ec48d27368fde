"""The guard's decisions: what each request appends to the log, and its answer. Pure.

They take the fold as it is under the lock; if one raises, nothing is written. What each raises is
stated by the method of ``BudgetGuard`` that calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import TypedDict

import msgspec

from outlay.errors import Finding, InvalidValue
from outlay.guard.balance import (
    ACCEPTED,
    DENIED,
    OFFLINE,
    RAISED,
    REQUESTED,
    Books,
    Hold,
    namesakes_text,
    stated_day,
)
from outlay.guard.ceilings import (
    Ceilings,
    LimitChange,
    Request,
    ScopeStanding,
    requested_change,
    room,
    shortfalls,
)
from outlay.guard.chain import MissingLine
from outlay.guard.entries import (
    SCHEMA,
    Answer,
    AnyEntry,
    AnyLine,
    Captured,
    Corrected,
    Decision,
    Extended,
    Held,
    Keyed,
    Limited,
    Noted,
    Rental,
    RunPart,
    Simple,
    Voided,
    amount_of,
    line_kind,
    micros_of,
    parse_timestamp,
    timestamp,
)
from outlay.guard.errors import (
    BudgetGuardExceeded,
    KeyReused,
    NamesakeListed,
    RentalAlive,
    RentalUnattended,
    UnknownHold,
)
from outlay.guard.scopes import (
    HOUR,
    WHOLE,
    Limit,
    Payer,
    Scope,
    all_scopes_of,
    lab_of,
    scopes_of,
)
from outlay.rates import cost_at_most
from outlay.units import Duration, Money
from outlay.units.money import recorded_rate

Limits = tuple[tuple[Scope, Limit], ...]
"""The limits of every scope that a decision is about."""


class Stamp(TypedDict):
    """The fields that all lines of one moment share."""

    v: int
    ts: str
    op_label: str
    currency: str
    ceiling: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of a decision, who asks, and the limits in force.

    Attributes:
        currency: The unit of the ceiling and of every line.
        limits: None if they can't be parsed; spend is recorded all the same.
        user: Whose money new lines are about; ``team`` likewise.
        via: The service that states the user, if that is not the login.
    """

    wall_ns: int
    currency: str
    limits: Ceilings | None
    user: str = ""
    team: str = ""
    via: str = ""

    @property
    def ts(self) -> str:
        """The time as lines state it."""
        return timestamp(self.wall_ns)

    @property
    def ceilings(self) -> Ceilings:
        """The limits in force, without which no money is held."""
        assert self.limits is not None
        return self.limits

    def day(self, books: Books) -> str:
        """Return the UTC day on which money counts: never before the log's latest."""
        return max(self.ts[:10], books.latest_day)

    def payer(self, lab: str) -> Payer:
        """Return who pays what is asked for in a lab."""
        return Payer(lab, self.user, self.team)

    def stamp(self, op_label: str) -> Stamp:
        """Return the shared fields of a line about an operation."""
        whole = None if self.limits is None else self.limits.whole
        return {
            "v": SCHEMA,
            "ts": self.ts,
            "op_label": op_label,
            "currency": self.currency,
            "ceiling": None if whole is None else amount_of(whole.micros),
        }


def noting_raise(books: Books, moment: Moment, decision: Decision[Answer]) -> Decision[Answer]:
    """Return a decision that first notes a ceiling above that of the last line, if there is one.

    Where lines of the log set limits, a ceiling of the caller's only tightens them, and is his own.
    """
    limits, before = moment.limits, books.ceiling_micros
    if before is None and limits is not None and limits.over is not None:
        before = limits.over.micros
    if not decision.entries or limits is None or limits.whole is None or before is None:
        return decision
    if books.limited or limits.whole.micros <= before:
        return decision
    after = amount_of(limits.whole.micros)
    detail = {"from": str(amount_of(before)), "to": str(after), "by": limits.by}
    raised = Noted(**moment.stamp(""), event=RAISED, detail=detail)
    return Decision((raised, *decision.entries), decision.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """A request to hold money.

    Attributes:
        least: If ``amount`` does not fit, hold what fits, but no less than this.
        rate: What it pays for costs per hour, if known.
    """

    hold: str
    op_label: str
    lab: str
    amount: Money
    least: Money | None
    key: str
    by: str
    rental: Rental | None
    rate: Money | None = None


def authorize(
    books: Books,
    moment: Moment,
    request: HoldRequest,
    *,
    unattended: Mapping[str, str],
) -> Decision[Hold]:
    """Open a hold, or return the one that the same key was granted before.

    ``unattended`` maps the holds of unattended rentals to the reason; each blocks its own lab.
    """
    if request.key and (granted := books.grant(request.key)):
        return Decision((), _earlier_grant(granted, request))
    day, lab = moment.day(books), request.lab
    for hold_id, why in unattended.items():
        if (other := books.hold(hold_id)).lab == lab:
            raise RentalUnattended(lab, hold_id, other.op_label, why)
    for each in books.with_namesakes():
        if each.lab == lab:
            raise NamesakeListed(namesakes_text(each))
    asked = Request(payer=moment.payer(lab), day=day, amount=request.amount, rate=request.rate)
    limits = moment.ceilings.on(asked.payer, day)
    amount = _fitting(books, moment, asked, request.least, limits)
    held = Held(
        **moment.stamp(request.op_label), estimated=amount_of(amount.micros), hold=request.hold,
        lab=lab, day=day, key=request.key, rental=request.rental, by=request.by,
        caps=_caps(limits), user=moment.user, team=moment.team, via=moment.via,
        rate=amount_of(request.rate.micros) if request.rate else None,
    )  # fmt: skip
    return Decision((held,), Hold.opened_by(held))


def extend(
    books: Books, moment: Moment, hold_id: str, more: Money, least: Money | None, *, key: str = ""
) -> Decision[Hold]:
    """Extend an open hold; the extension counts on the hold's own day.

    If ``more`` does not fit, what fits is held, but no less than ``least``.
    """
    hold = books.hold(hold_id)
    if key and (before := books.grant(key)):
        _same_line(key, before, Extended, hold=hold_id)
        return Decision((), hold)
    asked = Request(payer=hold.payer, day=hold.day, amount=more)
    limits = moment.ceilings.on(hold.payer, hold.day)
    more = _fitting(books, moment, asked, least, limits)
    extended = Extended(
        **moment.stamp(hold.op_label), estimated=amount_of(more.micros), hold=hold.id, key=key,
        caps=_caps(limits),
    )  # fmt: skip
    grown = replace(hold, amount=hold.amount + more)
    return Decision((extended,), grown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """An actual spend; ``hold`` is None for the label's oldest open one."""

    op_label: str
    actual: Money
    hold: str | None
    key: str
    basis: str
    part: RunPart | None = None


def record(books: Books, moment: Moment, spend: Spend) -> Decision[Captured]:
    """Capture spend, and resolve its hold if there is one."""
    if spend.key and (granted := books.grant(spend.key)):
        return Decision((), _earlier_capture(granted, spend))
    if spend.hold is None:
        hold = books.oldest_open(spend.op_label)
    else:
        hold = _settleable(books, spend.hold)
    captured = Captured(
        **moment.stamp(spend.op_label),
        actual=amount_of(spend.actual.micros),
        estimated=amount_of(hold.amount.micros) if hold else None,
        hold=hold.id if hold else "",
        lab=hold.lab if hold else lab_of(spend.op_label),
        day=hold.day if hold else moment.day(books),
        key=spend.key,
        basis=spend.basis,
        part=spend.part,
        user="" if hold else moment.user,
        team="" if hold else moment.team,
        via="" if hold else moment.via,
    )
    return Decision((captured,), captured)


def void(
    books: Books, moment: Moment, hold_id: str, reason: str, *, key: str = ""
) -> Decision[None]:
    """Release an open hold."""
    if key and (before := books.grant(key)):
        _same_line(key, before, Voided, hold=hold_id)
        return Decision((), None)
    voided = _voided(moment, _settleable(books, hold_id), reason, key)
    return Decision((voided,), None)


def _voided(moment: Moment, hold: Hold, reason: str, key: str = "") -> Voided:
    return Voided(
        **moment.stamp(hold.op_label),
        estimated=amount_of(hold.amount.micros),
        actual=Decimal(0),
        hold=hold.id,
        reason=reason,
        key=key,
    )


def _settleable(books: Books, hold_id: str) -> Hold:
    hold = books.hold(hold_id)
    if hold.lives:
        raise RentalAlive(hold.id, hold.op_label)
    return hold


def settle_rental(
    books: Books,
    moment: Moment,
    seen: Hold,
    *,
    cost: Money,
    proof: str,
    basis: str = "estimated",
) -> Decision[Money | None]:
    """Record that a rental is gone, and its cost; the answer is None if that was done before.

    ``seen`` is the hold with the id under which the vendor listed the rental. A hold that an
    earlier version resolved while the rental still ran gets a correction for the rest.

    Raises:
        UnknownHold: No rental has that hold.
    """
    hold = books.rental(seen.id)
    if hold is None:
        raise UnknownHold(seen.id)
    is_open = books.is_open(hold.id)
    if not is_open and hold.state in ("gone", "reappeared"):
        return Decision((), None)
    gone = _gone(moment, hold, proof, resource=seen.resource)
    if is_open:
        captured = Captured(
            **moment.stamp(hold.op_label), actual=amount_of(cost.micros),
            estimated=amount_of(hold.amount.micros), hold=hold.id, lab=hold.lab, day=hold.day,
            basis=basis,
        )  # fmt: skip
        return Decision((gone, captured), cost)
    rest = cost.micros - (books.paid_for(hold.id) or 0)
    if rest <= 0:  # Its settlement covered all of it.
        return Decision((gone,), cost.unit.money(0))
    corrected = _late_cost(moment, hold, rest)
    return Decision((gone, corrected), cost.unit.money(rest))


def _late_cost(moment: Moment, hold: Hold, micros: int) -> Corrected:
    return Corrected(
        **moment.stamp(hold.op_label), actual=amount_of(micros), hold=hold.id, lab=hold.lab,
        day=hold.day, reason=f"hold {hold.id} was settled while what it paid for still ran",
        user=hold.user, team=hold.team,
    )  # fmt: skip


REOPENED = Duration(600 * 10**9)
"""The time that the new hold of a rental which came back pays for, as far as there is room."""


def reopen_rental(
    books: Books, moment: Moment, hold_id: str, *, new: str, by: str, resource: str
) -> Decision[Hold]:
    """Correct the cost of a rental that came back after its end, and open a hold for the rest.

    What runs is paid for whether or not it fits, so that the new hold is never refused: it holds
    what fits, perhaps nothing, and counts its cost beyond that. If this was done before, the answer
    is the hold of then.

    Raises:
        UnknownHold: No rental has that hold.
    """
    hold = books.rental(hold_id)
    if hold is None or hold.rental is None:
        raise UnknownHold(hold_id)
    name = hold.rental.name
    here = [each for each in books.open_rentals() if each.rental and each.rental.name == name]
    if here or hold.state != "gone":
        return Decision((), here[-1] if here else hold)
    rental = msgspec.structs.replace(
        hold.rental, started=moment.ts, deadline=moment.ts,
        ordered=hold.rental.ordered or hold.rental.started,
    )  # fmt: skip
    day, stamp = moment.day(books), moment.stamp(hold.op_label)
    cost = hold.rental.cost_until(moment.wall_ns)
    late = cost.micros - (books.paid_for(hold_id) or 0)
    held = Held(
        **stamp, estimated=amount_of(_as_fits(books, moment, rental, hold.payer, max(late, 0))),
        hold=new, lab=hold.lab, day=day, by=by, rental=rental, user=hold.user, team=hold.team,
        rate=amount_of(hold.rate) if hold.rate else None,
        caps={} if moment.limits is None else _caps(moment.limits.on(hold.payer, day)),
    )  # fmt: skip
    created = {"resource": resource, "how": "came back"}
    entries: tuple[AnyEntry, ...] = (
        Noted(**stamp, hold=hold_id, event="reappeared", detail={"as": new}),
        *([_late_cost(moment, hold, late)] if late > 0 else []),
        held,
        Noted(**stamp, hold=new, event="created", detail=created),
        Noted(**stamp, hold=new, event="listed"),
    )
    answer = Hold.opened_by(held).noted("created", created, moment.ts)
    return Decision(entries, answer.noted("listed", {}, moment.ts))


def _as_fits(books: Books, moment: Moment, rental: Rental, payer: Payer, late: int) -> int:
    """Return what a rental costs in a while, or as much as fits after ``late``, in micro-units."""
    wanted = cost_at_most(recorded_rate(rental.rate), REOPENED.ns).micros
    if moment.limits is None:
        return 0
    left = room(books, moment.limits, payer, moment.day(books), at_ns=moment.wall_ns)
    return min(wanted, left.micros - late) if left.micros > late else 0


def release_rental(books: Books, moment: Moment, hold_id: str, proof: str) -> Decision[None]:
    """Release the hold of a rental that was never created."""
    hold = books.hold(hold_id)
    return Decision((_gone(moment, hold, proof), _voided(moment, hold, proof)), None)


def _gone(moment: Moment, hold: Hold, proof: str, **detail: str) -> Noted:
    details = {"proof": proof, **detail}
    return Noted(**moment.stamp(hold.op_label), hold=hold.id, event="gone", detail=details)


def correct(
    books: Books,
    moment: Moment,
    op_label: str,
    difference: Money,
    *,
    reason: str,
    expected: Money | None,
    key: str = "",
) -> Decision[None]:
    """Add a difference to a label's spend, for the payer and on the day of its last capture.

    Nothing is added if the total spend is not ``expected``.
    """
    actual = amount_of(difference.micros)
    if key and (before := books.grant(key)):
        _same_line(key, before, Corrected, op_label=op_label, actual=actual)
        return Decision((), None)
    if expected is not None and expected.micros != books.captured():
        return Decision((), None)
    paid = books.last_paid(op_label)
    payer, day = paid or (moment.payer(lab_of(op_label)), moment.day(books))
    spent = min(books.captured(scope) for scope in scopes_of(payer, day))
    if spent + difference.micros < 0:
        there = difference.unit.money(spent)
        raise InvalidValue("difference_usd", str(difference), f"no more than was spent, {there}")
    corrected = Corrected(
        **moment.stamp(op_label), actual=actual, lab=payer.lab, day=day, reason=reason, key=key,
        user=payer.user, team=payer.team,
    )  # fmt: skip
    return Decision((corrected,), None)


def note(
    books: Books, moment: Moment, op_label: str, event: str, *, hold: str, detail: dict[str, str],
    key: str = "",
) -> Decision[None]:  # fmt: skip
    """Append a note."""
    if key and (before := books.grant(key)):
        _same_line(key, before, Noted, event=event, hold=hold)
        return Decision((), None)
    noted = Noted(**moment.stamp(op_label), hold=hold, event=event, detail=detail, key=key)
    return Decision((noted,), None)


# Limits that lines of the log set.


def limit(
    books: Books, moment: Moment, change: LimitChange, *, by: str, reason: str,
    request: str = "", requested_by: str = "", key: str = "",
) -> Decision[Limited]:  # fmt: skip
    """Set, change or remove a limit."""
    if key and (before := books.grant(key)):
        _same_line(key, before, Limited)
        assert isinstance(before, Limited)
        return Decision((), before)
    if change.until and change.until <= moment.ts:
        raise InvalidValue("until", change.until, f"a time after now, {moment.ts}")
    pattern, amount = change.pattern, change.amount
    line = Limited(
        **moment.stamp(""), of=pattern.of, name=pattern.name, period=pattern.period,
        limit=None if amount is None else amount_of(amount.micros), until=change.until,
        enforce="refuse" if change.refuses else "warn", by=by, reason=reason, request=request,
        requested_by=requested_by, key=key,
    )  # fmt: skip
    return Decision((line,), line)


def request_limit(
    moment: Moment, request: str, change: LimitChange, *, by: str, reason: str
) -> Decision[Noted]:
    """Note a request for another limit."""
    assert change.amount is not None
    detail = {
        "request": request, "of": change.pattern.of, "name": change.pattern.name,
        "period": change.pattern.period, "limit": str(amount_of(change.amount.micros)),
        "until": change.until, "by": by, "reason": reason,
    }  # fmt: skip
    noted = Noted(
        **moment.stamp(""), event=REQUESTED, detail={k: v for k, v in detail.items() if v}
    )
    return Decision((noted,), noted)


def answer_request(
    books: Books, moment: Moment, request: str, *, granted: bool, by: str, reason: str
) -> Decision[AnyEntry]:
    """Grant a request for another limit, or deny it.

    Raises:
        InvalidValue: There is no such open request.
    """
    asked = books.request(request)
    if asked is None:
        known = ", ".join(line.detail["request"] for line in books.requests()) or "none is open"
        raise InvalidValue("request", request, f"an open request: {known}")
    if granted:
        made = limit(
            books, moment, requested_change(asked), by=by, reason=reason, request=request,
            requested_by=asked.detail["by"],
        )  # fmt: skip
        return Decision(made.entries, made.answer)
    detail = {"request": request, "by": by, "reason": reason}
    noted = Noted(**moment.stamp(""), event=DENIED, detail=detail)
    return Decision((noted,), noted)


def allow_offline(moment: Moment, allowance: Duration, *, by: str, reason: str) -> Decision[None]:
    """State how long operations go on without their database."""
    detail = {"ns": str(allowance.ns), "by": by, "reason": reason}
    return Decision((Noted(**moment.stamp(""), event=OFFLINE, detail=detail),), None)


def take_watch(books: Books, moment: Moment, hold: Hold, watcher: str) -> Decision[bool]:
    """Note a rental's new watcher, unless another one was noted since ``hold`` was read."""
    rental = books.rental(hold.id)
    current = "" if rental is None else rental.watcher
    if current != hold.watcher:
        return Decision((), current == watcher)
    stamp = moment.stamp(hold.op_label)
    noted = Noted(**stamp, hold=hold.id, event="watched", detail={"watcher": watcher})
    return Decision((noted,), answer=True)


def accept(
    books: Books, moment: Moment, missing: tuple[MissingLine, ...], *, by: str, reason: str
) -> Noted:
    """Return the note with which a person accepts a log as it is now."""
    if not missing and books.latest_day <= moment.ts[:10]:
        raise InvalidValue("accept", "a log in order", "one that is refused; `verify` checks it")
    detail = {"by": by, "reason": reason, "found": "; ".join(one.problem for one in missing)}
    if given_up := " ".join(sorted({one.hash for one in missing if one.hash})):
        detail["instead_of"] = given_up
    return Noted(**moment.stamp(""), event=ACCEPTED, detail=detail)


def set_ceiling(
    moment: Moment, before: Money, after: Money, *, by: str, reason: str
) -> Decision[None]:
    """Append the note of a person's change of the ceiling."""
    if after == before:
        raise InvalidValue("ceiling", str(after), "another ceiling than the one in force")
    event = RAISED if after > before else "ceiling-lowered"
    detail = {
        "from": str(amount_of(before.micros)), "to": str(amount_of(after.micros)), "by": by,
        "reason": reason,
    }  # fmt: skip
    changed = replace(moment, limits=replace(moment.ceilings, whole=after))
    noted = Noted(**changed.stamp(""), event=event, detail=detail)
    return Decision((noted,), None)


def recheck_decisions(
    lines: Iterable[tuple[int, AnyLine]], *, source: str, today: str
) -> Iterator[Finding]:
    """Yield a finding for each line that the limits stated in it do not allow.

    The lines are in order and consistent; those dated after ``today`` are warnings.
    """
    books = Books()
    for number, line in lines:
        if stated_day(line) > today:
            message = f"it is dated {stated_day(line)}, which lies ahead"
            yield Finding(source=source, line=number, message=message, severity="warning")
        for message in _violations(books, line):
            yield Finding(source=source, line=number, message=message)
        books.apply(line)


def _violations(books: Books, line: AnyLine) -> Iterator[str]:
    if isinstance(line, Simple):
        return
    ceiling, before = line.ceiling, books.ceiling_micros
    raised = (isinstance(line, Noted) and line.event == RAISED) or books.limited
    if ceiling is not None and before is not None and not raised and micros_of(ceiling) > before:
        yield f"its ceiling is {ceiling} after one of {amount_of(before)}, which nobody raised"
    if isinstance(line, Held):
        if line.day < books.latest_day:
            yield f"it counts on {line.day}, after {books.latest_day} had begun"
        if line.rental is None or line.estimated:  # A rental that came back may hold nothing.
            yield from _overruns(books, line, line.payer, line.day)
    elif isinstance(line, Extended):
        hold = books.hold(line.hold)
        yield from _overruns(books, line, hold.payer, hold.day)


def _overruns(books: Books, line: Held | Extended, payer: Payer, day: str) -> Iterator[str]:
    """Yield every scope in which the line exceeds the limits stated in it, or set before it."""
    policy = Ceilings(whole=None, scoped=(books.limits(line.ts),), unit=books.unit)
    for scope in all_scopes_of(payer, day):
        stated = line.ceiling if scope == WHOLE else line.caps.get(str(scope))
        limits = [] if stated is None else [stated]
        limits += [amount_of(one.amount.micros) for one in policy.of(scope) if one.refuses]
        asked = micros_of(line.estimated)
        if scope.period == HOUR:
            asked = micros_of(line.rate) if isinstance(line, Held) else 0
        total = books.captured(scope) + books.held(scope) + asked
        if limits and total > micros_of(min(limits)) and (asked or scope.period != HOUR):
            yield (
                f"it should have been refused: {scope} came to {amount_of(total)} {line.currency} "
                f"of {min(limits)}"
            )
    if books.limited and not _is_limited(books, line.ts, payer, day):
        yield f"it should have been refused: no limit applied to {_who(payer)}"


def _fitting(
    books: Books, moment: Moment, asked: Request, least: Money | None, limits: Limits
) -> Money:
    """Return the amount to grant: what is asked, or what fits if that is at least ``least``.

    Rentals count their cost by now.
    """
    at_ns, ceilings = moment.wall_ns, moment.ceilings
    if books.limited and not _is_limited(books, moment.ts, asked.payer, asked.day):
        raise BudgetGuardExceeded(
            f"no limit applies to {_who(asked.payer)}: somebody has to set one"
        )
    if least is not None:
        left = room(books, ceilings, asked.payer, asked.day, at_ns=at_ns)
        if least <= left < asked.amount:
            asked = replace(asked, amount=left)
    if short := shortfalls(books, limits, asked, at_ns=at_ns):
        raise BudgetGuardExceeded("; ".join(_refusal(row, asked) for row in short))
    return asked.amount


def _is_limited(books: Books, ts: str, payer: Payer, day: str) -> bool:
    """Return whether a limit that lines of the log set applies to a payer's money."""
    policy = Ceilings(whole=None, scoped=(books.limits(ts),), unit=books.unit)
    return any(limit.refuses for _, limit in policy.on(payer, day))


def _who(payer: Payer) -> str:
    named = (f"user {payer.user}" if payer.user else "", f"team {payer.team}" if payer.team else "")
    return ", ".join((*(each for each in named if each), f"project {payer.lab}"))


def _refusal(row: ScopeStanding, asked: Request) -> str:
    if row.scope.period == HOUR:
        return (
            f"{row.scope}: {row.held}/h of open holds + {asked.rate}/h asked > {row.limit}/h "
            f"({row.remaining}/h free; it frees when one of them ends)"
        )
    frees = f"; it frees on {free_on(row.scope.period)} UTC" if row.scope.period else ""
    return (
        f"{row.scope}: {row.captured} spent + {row.held} held + {asked.amount} asked "
        f"> {row.limit} ({row.remaining} free{frees})"
    )


def free_on(period: str) -> str:
    """Return the day after a UTC day, or the first day after a UTC month."""
    is_month = len(period) == 7
    first = parse_timestamp(f"{period}-28" if is_month else period)
    after = first + timedelta(days=4 if is_month else 1)
    return (after.replace(day=1) if is_month else after).date().isoformat()


def _caps(limits: Limits) -> dict[str, Decimal]:
    return {
        str(scope): amount_of(limit.amount.micros)
        for scope, limit in limits
        if limit.refuses and scope != WHOLE
    }


def _same_line(key: str, before: Keyed, kind: type, **fields: object) -> None:
    """Refuse a key that was used for another request."""
    same = all(getattr(before, name) == value for name, value in fields.items())
    if not isinstance(before, kind) or not same:
        raise KeyReused(key, f"{line_kind(before)} of {before.op_label or 'the log'}")


def _earlier_grant(before: Keyed, request: HoldRequest) -> Hold:
    most = amount_of(request.amount.micros)
    least = most if request.least is None else amount_of(request.least.micros)
    granted, lab = before.estimated, getattr(before, "lab", "")
    same = (before.op_label, lab) == (request.op_label, request.lab)
    fits = granted is not None and least <= granted <= most
    if not isinstance(before, Held) or not same or not fits:
        what = f"{before.op_label} in project {lab}, {before.estimated}"
        raise KeyReused(request.key, what)
    return Hold.opened_by(before)


def _earlier_capture(before: Keyed, spend: Spend) -> Captured:
    same = (before.op_label, before.actual) == (spend.op_label, amount_of(spend.actual.micros))
    if not isinstance(before, Captured) or not same:
        raise KeyReused(spend.key, f"{before.op_label}, {before.actual or before.estimated}")
    return before
