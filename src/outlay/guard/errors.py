"""Every way the guard says no.

Refused
├── BudgetGuardExceeded     a ceiling or a cap would be passed
│   ├── RentalUnattended    something rented in the same lab is overdue, or nobody watches it
│   └── RentalEnds          the machine that a run is on ends then, and its hold is not extended
├── RentalAlive             the hold pays for something that was not seen to be gone
├── SpendLogUnusable        the log can't be read, locked or written, so nothing is allowed
│   └── SpendLogAltered     a line was edited, removed or reordered
│       └── SpendLogRolledBack  it is not the log that was seen before, until a person accepts it
└── CeilingUnusable         the ceiling's setting can't be understood
InvalidValue
└── KeyReused               an idempotency key came back with other parameters
OutlayError
├── UnknownHold             there never was a hold of that id
└── HoldResolved            the hold was captured or voided before
"""

from __future__ import annotations

from outlay.errors import InvalidValue, OutlayError, Refused


class BudgetGuardExceeded(Refused):
    """An operation would pass a ceiling; names every scope that it would pass."""


class RentalUnattended(BudgetGuardExceeded):
    """A rental of the same lab is overdue or unwatched: it is dealt with before more is spent."""

    def __init__(self, lab: str, hold: str, op_label: str, why: str) -> None:
        super().__init__(
            f"project {lab}: hold {hold} ({op_label}) pays for something rented, and {why}. "
            f"Nothing more is authorised in project {lab} until it is gone "
            f"(`outlay guard down {op_label}`) or watched within its deadline "
            f"(`outlay guard adopt {hold}`)."
        )


class RentalEnds(BudgetGuardExceeded):
    """A run on a rented machine lasts as long as the machine does: its hold is not extended."""

    def __init__(self, hold: str, deadline: str) -> None:
        super().__init__(f"hold {hold} pays for this machine, which is ended at {deadline[:19]}Z")


class RentalAlive(Refused):
    """Nothing settles the hold of a rental before the vendor's list shows that it is gone."""

    def __init__(self, hold: str, op_label: str) -> None:
        super().__init__(
            f"hold {hold} ({op_label}) pays for something rented that was not seen to be gone, so "
            f"it can't be settled. `outlay guard down {op_label}` ends it, waits until the vendor "
            "no longer lists it, and settles the hold."
        )


class SpendLogUnusable(Refused):
    """The spend log can't be trusted with an answer, so the answer is no."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(
            f"{path}: {problem}. Nothing is authorised until this is settled. {remedy}"
        )
        self.path, self.problem = path, problem


class SpendLogAltered(SpendLogUnusable):
    """The spend log is not what was written: a line was edited, removed or reordered."""

    remedy = "Restore the file from a copy; `outlay guard verify` checks it."

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(path, f"line {line}: {problem}" if line else problem, self.remedy)
        self.line = line


class SpendLogRolledBack(SpendLogAltered):
    """The spend log is not the one that was seen before: cut, replaced, or without its head."""

    remedy = (
        "Restore the file and its head from a copy. A log that is kept in git looks like this "
        "after a checkout of an older commit. If it is right as it is now, say why: "
        "`outlay guard accept --reason ...`."
    )


class CeilingUnusable(Refused):
    """A ceiling was set in a way that can't be understood, so nothing is allowed."""

    def __init__(self, where: str, seen: object, expected: str) -> None:
        super().__init__(f"{where}: got {seen!r}; expected {expected}. Nothing is authorised.")


class KeyReused(InvalidValue):
    """An idempotency key was used before for something else."""

    def __init__(self, key: str, before: str) -> None:
        super().__init__("key", key, f"a new key, for it already stands for {before}")


class UnknownHold(OutlayError):
    """No hold of that id was ever opened in this log."""

    exit_code = 2

    def __init__(self, hold: str) -> None:
        super().__init__(f"no hold {hold!r} in this log; `outlay guard status` lists the open ones")


class HoldResolved(OutlayError):
    """The hold was captured or voided before; it resolves once."""

    def __init__(self, hold: str, how: str) -> None:
        super().__init__(
            f"hold {hold} is resolved already ({how}). "
            "What was recorded wrongly is put right with `outlay guard correct`."
        )


class Inconsistent(OutlayError):
    """A line contradicts the lines before it; the reader adds which line it is."""
