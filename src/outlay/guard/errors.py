"""The guard's exceptions.

Refused
├── BudgetGuardExceeded     a ceiling or a cap would be exceeded
│   ├── RentalUnattended    a rental of the same lab is overdue or has no watcher
│   ├── NamesakeListed      a machine has the name of a rental of the same lab, and is not it
│   └── RentalEnds          the hold of a rented machine is not extended past its deadline
├── RentalAlive             the hold pays for a rental that is not verified gone
├── RentalListed            a person said that a rental is gone, and the vendor lists it
├── SpendLogUnusable        the log can't be read, locked or written, so nothing is authorised
│   ├── SpendLogAway        it can't be reached, or does not answer, now
│   └── SpendLogAltered     a line was edited, removed or reordered
│       └── SpendLogRolledBack  the log is behind what was seen, until a person accepts it
│           └── BookRolledBack  the same, of a book: an owner accepts it
└── CeilingUnusable         a ceiling's setting can't be parsed
InvalidValue
└── KeyReused               an idempotency key was reused with other parameters
OutlayError
├── UnknownHold             no hold has that id
└── HoldResolved            the hold is already captured or voided
"""

from __future__ import annotations

from outlay.errors import InvalidValue, OutlayError, Refused, got


class BudgetGuardExceeded(Refused):
    """An operation would exceed a ceiling; the message names every scope."""


class RentalUnattended(BudgetGuardExceeded):
    """A rental of the same lab is overdue or unwatched, which blocks the lab."""

    def __init__(self, lab: str, hold: str, op_label: str, why: str) -> None:
        super().__init__(
            f"project {lab}: hold {hold} ({op_label}) pays for a rental, and {why}. "
            f"Nothing more is authorised in project {lab} until it is gone "
            f"(`outlay guard down {op_label}`) or watched within its deadline "
            f"(`outlay guard adopt {hold}`)."
        )


class NamesakeListed(BudgetGuardExceeded):
    """A machine has the name of a rental of the same lab and is not it, which blocks the lab."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Nothing was authorised.")


class RentalEnds(BudgetGuardExceeded):
    """The hold of a rented machine is not extended past the machine's deadline."""

    def __init__(self, hold: str, deadline: str) -> None:
        super().__init__(
            f"hold {hold} pays for this machine, which is terminated at {deadline[:19]}Z"
        )


class RentalAlive(Refused):
    """A rental's hold can't be settled before the vendor's list shows that the rental is gone."""

    def __init__(self, hold: str, op_label: str) -> None:
        super().__init__(
            f"hold {hold} ({op_label}) pays for a rental that is not verified gone, so it can't be "
            f"settled. `outlay guard down {op_label}` terminates it, waits until the vendor no "
            "longer lists it, and settles the hold. If the vendor never listed it, a person "
            f"decides: `outlay guard reconcile {hold} --gone --reason ...`."
        )


class RentalListed(Refused):
    """A rental that the vendor lists is not gone, whoever says so."""

    def __init__(self, hold: str, op_label: str, ids: str) -> None:
        super().__init__(
            f"hold {hold} ({op_label}) pays for {ids}, which the vendor lists now, so it is not "
            f"gone. `outlay guard down {op_label}` terminates it and settles the hold."
        )


class SpendLogUnusable(Refused):
    """The spend log can't be used, so nothing is authorised."""

    line = 0

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(
            f"{path}: {problem}. Nothing is authorised until this is settled. {remedy}"
        )
        self.path, self.problem = path, problem


class SpendLogAway(SpendLogUnusable):
    """The log can't be reached, or does not answer, now; nothing is wrong with what was asked."""


class SpendLogAltered(SpendLogUnusable):
    """A line of the spend log was edited, removed or reordered."""

    remedy = "Restore the file from a copy; `outlay guard verify` checks it."

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(path, f"line {line}: {problem}" if line else problem, self.remedy)
        self.line, self.problem = line, problem


class SpendLogRolledBack(SpendLogAltered):
    """The spend log was truncated, replaced, or lost its head."""

    remedy = (
        "Restore the file and its head from a copy. A log that is kept in git looks like this "
        "after a checkout of an older commit. If it is right as it is now, say why: "
        "`outlay guard accept --reason ...`."
    )


class BookRolledBack(SpendLogRolledBack):
    """A book lacks lines: a backup was restored, or a standby promoted that was behind."""

    remedy = (
        "A backup that was restored looks like this, or a standby that was behind. If the book is "
        "right as it is now, an owner says why, on this machine: "
        "`outlay guard accept --reason ...`."
    )


class CeilingUnusable(Refused):
    """A ceiling's setting can't be parsed, so nothing is authorised."""

    def __init__(self, where: str, seen: object, expected: str) -> None:
        super().__init__(f"{where}: {got(seen)}; expected {expected}. Nothing is authorised.")


class KeyReused(InvalidValue):
    """An idempotency key was reused with other parameters."""

    def __init__(self, key: str, before: str) -> None:
        super().__init__("key", key, f"a new key: this one was used for {before}")


class UnknownHold(OutlayError):
    """No hold of this log has that id."""

    exit_code = 2

    def __init__(self, hold: str) -> None:
        super().__init__(f"no hold {hold!r} in this log; `outlay guard status` lists the open ones")


class HoldResolved(OutlayError):
    """The hold is already captured or voided."""

    def __init__(self, hold: str, how: str) -> None:
        super().__init__(
            f"hold {hold} is resolved already ({how}). "
            "A wrong amount is corrected with `outlay guard correct`."
        )


class Inconsistent(OutlayError):
    """A line contradicts the lines before it; the reader adds the line number."""
