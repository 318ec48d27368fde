"""Correcting the price of a run that has ended, by one more record that names both prices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outlay.errors import InvalidValue
from outlay.ledger.attempts import DEAD_AFTER_NS, Attempt, derive_attempts, read_lives
from outlay.ledger.price import Price, typed_price
from outlay.ledger.records import PriceCorrected
from outlay.ledger.segments import id_from_name, segment_paths
from outlay.ledger.writer import append_to_ended


def correct_price(
    run_dir: Path, price: str, *, was: str | None, by: str, reason: str, now_ns: int
) -> PriceCorrected:
    """Record that a run's price was wrong, and return the record.

    Args:
        run_dir: A run that has ended.
        price: What counts instead, of the kind of the recorded price unless it names another.
        was: The recorded price that is wrong; None if there is only one, or none.
        by: Who corrects it.
        reason: Why.
        now_ns: The present.

    Raises:
        InvalidValue: The run is alive or has no log, or a price is not one that can be corrected.
        OSError: The log cannot be written.
    """
    attempts = derive_attempts(read_lives(run_dir))
    if not attempts:
        raise InvalidValue("RUN", str(run_dir), "the directory of a run")
    last = attempts[-1]
    if last.end is None and now_ns - last.last_sign_ns < DEAD_AFTER_NS:
        expected = "a run that has ended: a live one changes its price with run.set_price"
        raise InvalidValue("RUN", str(run_dir), expected)
    if not reason.strip():
        raise InvalidValue("--reason", reason, "why the recorded price is wrong")
    wrong = _wrong_price(_recorded(attempts), was)
    source = f"corrected from {'no price' if wrong is None else wrong.text}: {reason}"
    kind = "cash" if wrong is None else wrong.kind
    right = typed_price(price, name="--price", source=source, kind=kind)
    if wrong is not None and wrong.rate == right.rate:
        raise InvalidValue("--price", price, "another price than the recorded one")
    record = PriceCorrected(t_ns=now_ns, price=right, was=wrong, by=by, reason=reason)
    (path, *_) = [p for p in segment_paths(run_dir) if id_from_name(p) == last.segment]
    append_to_ended(path, record)
    return record


def _recorded(attempts: Sequence[Attempt]) -> list[Price]:
    """Return the distinct prices that count now, in order of time."""
    found: dict[object, Price] = {}
    for attempt in attempts:
        for price in (attempt.header.price, *(change.price for change in attempt.prices)):
            if price is not None:
                found.setdefault(price.rate, price)
    return list(found.values())


def _wrong_price(recorded: Sequence[Price], was: str | None) -> Price | None:
    choices = ", ".join(price.text for price in recorded) or "none"
    if was is not None:
        for price in recorded:
            stated = typed_price(was, name="--was", source="", kind=price.kind)
            if stated.rate == price.rate:
                return price
        raise InvalidValue("--was", was, f"a price that the run recorded: {choices}")
    if len(recorded) > 1:
        raise InvalidValue("--was", "", f"which of its prices is wrong: {choices}")
    return recorded[0] if recorded else None
