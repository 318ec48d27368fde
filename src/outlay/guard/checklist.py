"""The pages written before a launch, and the checks before and after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from outlay.clock import utc_text, wall_ns_of
from outlay.errors import InvalidValue, OutlayError
from outlay.files import write_whole
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import CeilingManifest, ScopeStanding
from outlay.guard.entries import Noted, amount_of, parse_timestamp
from outlay.guard.rental.watch import RentalInventory
from outlay.guard.scopes import BUFFER, WHOLE, Scope, lab_of
from outlay.rates import cost_at_most
from outlay.units import Duration, Money, Rate
from outlay.units.quantity import EXACT, NS_PER_HOUR
from outlay.units.shown import dollar_text

# The pages: budget, checklist, manifest. Launches nothing. Every sum on a page is computed here; a
# plan that does not add up is refused.

AUTO_TERMINATION = Duration(4 * 3600 * 10**9)
ALERT_PERCENT = 80
HEADROOM_PERCENT = 50
SURVEY_FILE = "vendor-survey.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEstimate:
    """The expected cost of a lab; ``assumed`` marks a price that nobody looked up."""

    gpus: int = 2
    price: Rate = Rate(350_000)  # noqa: RUF009 - a frozen value
    hours: Decimal = Decimal(3)
    assumed: bool = True

    @property
    def rate(self) -> Rate:
        """The price of all GPUs per hour."""
        return self.price * self.gpus

    @property
    def cost(self) -> Money:
        """The cost of the whole lab."""
        return cost_at_most(self.rate, int(EXACT.multiply(self.hours, NS_PER_HOUR)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A ceiling and its caps per lab, per UTC day and per UTC month.

    Attributes:
        survey_prices: Each vendor's price per GPU-hour, as of ``survey_date``.

    Raises:
        InvalidValue: The caps and the buffer exceed the ceiling, or a cap is negative or in another
            currency.
    """

    ceiling: Money
    labs: dict[str, Money]
    buffer: Money
    day: Money | None = None
    month: Money | None = None
    estimate: LaunchEstimate = LaunchEstimate()
    vendor: str = "<chosen>"
    survey_date: str = ""
    survey_prices: dict[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        currency = self.ceiling.currency
        caps = {"day": self.day, "month": self.month, "buffer": self.buffer}
        for name, cap in (*caps.items(), *(("lab", cap) for cap in self.labs.values())):
            if cap is not None and (cap.currency != currency or cap.micros < 0):
                raise InvalidValue(name, str(cap), f"an amount of zero or more in {currency}")
        if self.total > self.ceiling:
            seen = f"{self.total} in caps and buffer"
            raise InvalidValue("lab", seen, f"at most the ceiling of {self.ceiling}")

    @property
    def total(self) -> Money:
        """The sum of the caps and the buffer."""
        return sum(self.labs.values(), self.buffer)

    @property
    def paying_lab(self) -> str:
        """The lab with the largest cap: the one that rents."""
        return max(self.labs, key=lambda lab: self.labs[lab].micros, default=BUFFER)

    @property
    def cap(self) -> Money:
        """The cap of the paying lab."""
        return self.labs.get(self.paying_lab, self.buffer)


def alert_of(cap: Money) -> Money:
    """Return the spend at which the vendor's budget alert is set."""
    return cap.unit.money(cap.micros * ALERT_PERCENT // 100)


def needed_for(estimate: Money) -> Money:
    """Return what has to remain before a launch: the estimate and 50 %, rounded up."""
    hundredths = estimate.micros * (100 + HEADROOM_PERCENT)
    return estimate.unit.money(-(-hundredths // 100))


class FilesExist(OutlayError):
    """The pages exist already."""

    def __init__(self, paths: list[Path]) -> None:
        names = ", ".join(str(path) for path in paths)
        super().__init__(f"{names}: already written. Replace them with --replace.")


def write_documents(
    directory: Path, plan: LaunchPlan, *, replace: bool = False
) -> tuple[Path, ...]:
    """Write the pages; return their paths."""
    pages = {
        directory / "budget.md": budget_page(plan),
        directory / "pre-flight-checklist.md": checklist_page(plan),
        directory / "manifest.json": manifest_text(plan, str(directory / "spend.jsonl")),
    }
    existing = [path for path in pages if path.exists()]
    if existing and not replace:
        raise FilesExist(existing)
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        write_whole(path, text.encode())
    return tuple(pages)


def manifest_text(plan: LaunchPlan, spend_log_path: str = "spend.jsonl") -> str:
    """Return ``manifest.json``: the documented keys."""
    labs = {lab: amount_of(cap.micros) for lab, cap in sorted(plan.labs.items())}
    manifest = CeilingManifest(
        vendor=plan.vendor,
        currency=plan.ceiling.currency,
        ceiling_usd=amount_of(plan.ceiling.micros),
        ceiling_per_lab={**labs, BUFFER: amount_of(plan.buffer.micros)},
        spend_log_path=spend_log_path,
        vendor_snapshot_date=plan.survey_date,
        vendor_snapshot_prices=plan.survey_prices,
        ceiling_per_day_usd=None if plan.day is None else amount_of(plan.day.micros),
        ceiling_per_month_usd=None if plan.month is None else amount_of(plan.month.micros),
    )
    # Every documented key is written, empty ones too, to show what is still open; the caps of days
    # and months, which are outlay's own, only if they are set.
    stated = {key: value for key, value in asdict(manifest).items() if value not in (None, ())}
    encoded = msgspec.json.Encoder(decimal_format="number").encode(stated)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def budget_page(plan: LaunchPlan) -> str:
    """Return ``budget.md``: the caps, their sum, and the reasoning."""
    rows = [
        f"| Lab {lab}{'' if cap else ' (no cloud)'} | {'≤' if cap else '='} {dollar_text(cap)} |"
        for lab, cap in sorted(plan.labs.items())
    ]
    return "\n".join(
        [
            f"# Cloud budget: {dollar_text(plan.ceiling)}, hard ceiling",
            "",
            "| for | cap |",
            "|---|---:|",
            *rows,
            f"| Buffer for retries and setup | ≤ {dollar_text(plan.buffer)} |",
            f"| **Total** | **{dollar_text(plan.total)} ≤ {dollar_text(plan.ceiling)}** |",
            "",
            *_paces(plan),
            "## Why",
            "",
            _reasoning(plan),
            "",
            "The ceiling is a boundary. Raising it is a decision of its own, made before the next",
            "launch and written down; `outlay guard status` shows every raise.",
            "",
        ]
    )


def _paces(plan: LaunchPlan) -> list[str]:
    caps = (("day", plan.day), ("month", plan.month))
    parts = [f"{dollar_text(cap)} a {name}" for name, cap in caps if cap is not None]
    return [f"Of all of it together at most {' and '.join(parts)} (UTC).", ""] if parts else []


def _reasoning(plan: LaunchPlan) -> str:
    e, cap = plan.estimate, plan.cap
    sum_text = f"{e.gpus} x {dollar_text(e.price.per_hour)}/h x {e.hours} h = {dollar_text(e.cost)}"
    if e.cost > cap:
        room = f"MORE than the cap of {dollar_text(cap)}: shorten it or rent something cheaper"
    elif e.cost:
        permille = ((cap - e.cost).micros * 2000 + e.cost.micros) // (2 * e.cost.micros)
        room = (
            f"the cap of {dollar_text(cap)} leaves {permille // 10}.{permille % 10} % "
            "for setup, container pulls and retries"
        )
    else:
        room = f"the cap is {dollar_text(cap)}"
    source = (
        "The price per GPU-hour is an assumption that nobody looked up."
        if e.assumed
        else "The price per GPU-hour was stated when this page was written."
    )
    survey = f" See {SURVEY_FILE} for the vendors compared." if plan.survey_prices else ""
    return f"Lab {plan.paying_lab}: {sum_text}; {room}. {source}{survey}"


def checklist_page(plan: LaunchPlan) -> str:
    """Return ``pre-flight-checklist.md``: the actions in order."""
    e, cap, lab = plan.estimate, plan.cap, plan.paying_lab
    timer = cost_at_most(e.rate, AUTO_TERMINATION.ns)
    label = f"lab{lab}-spinup" if lab != BUFFER else "spinup"
    timer_fits = "within" if timer <= cap else "MORE THAN"
    needed = dollar_text(needed_for(e.cost))
    return f"""# Before every launch

Do the steps in order. Tick each one. If one fails: stop, nothing is lost yet.

- [ ] 1. Run `outlay guard preflight --label {label} --estimate "{e.cost}"`.
         It checks by itself what it can, and asks for the rest.
- [ ] 2. Budget: `outlay guard status` must show at least {needed} remaining
         (estimate {dollar_text(e.cost)} + {HEADROOM_PERCENT} %).
- [ ] 3. Vendor console: is any other instance running? If yes, you forgot it: terminate it now.
- [ ] 4. Instance type: is it {e.gpus} GPUs, each at most {dollar_text(e.price.per_hour)} an hour?
- [ ] 5. Vendor console: set a budget alert at {dollar_text(alert_of(cap))}
         ({ALERT_PERCENT} % of lab {lab}'s cap of {dollar_text(cap)}).
- [ ] 6. Vendor console: set auto-termination at {AUTO_TERMINATION}
         ({dollar_text(timer)}, {timer_fits} the cap), if it has one. It is no safety net: RunPod's
         timers were accepted and ignored. `outlay watch --install` is one.
- [ ] 7. Note the start time. `preflight` writes it to the log.
- [ ] 8. Set an alarm on your phone for {e.hours} hours from now.
- [ ] 9. Say aloud how you will end it: `outlay guard down {label}`.

Launch it with `outlay guard run` (it runs here) or `outlay guard rent` (it runs there).
A spot machine can be taken back with 30 seconds' notice: save results after every measurement.

# After every launch

- [ ] 1. `outlay guard down {label}`, and wait for "verified gone".
         If you launched it by hand: end it by hand, and then run
         `outlay guard record {label} --rate "{e.rate}"`.
- [ ] 2. Vendor console: nothing is running. Take a screenshot.
- [ ] 3. Run `outlay guard postflight --label {label} --proof proof-terminated.png`.
- [ ] 4. Commit the directory.
"""


# Checks before and after a launch, by machine where possible, else by a person.


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: The name with which a person confirms it.
        passed: None if a machine can't tell, so that a person has to.
        text: What was found, or what to check.
    """

    name: str
    passed: bool | None
    text: str

    def confirmed(self, names: Iterable[str]) -> Check:
        """Return the check, passed if it needed a person and is among ``names``."""
        if self.passed is not None or self.name not in names:
            return self
        return Check(name=self.name, passed=True, text=f"{self.text} (confirmed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A planned launch."""

    label: str
    estimate: Money
    rate: Rate | None = None
    lab: str | None = None


def preflight(
    guard: BudgetGuard, flight: Flight, *, now_ns: int, inventory: RentalInventory | None = None
) -> tuple[Check, ...]:
    """Return every check in the checklist's order; launches and writes nothing."""
    lab = lab_of(flight.label, flight.lab)
    standings = {row.scope: row for row in guard.standings(lab=lab)}
    lab_row = standings.get(Scope("lab", lab))
    tightest = min(standings.values(), key=lambda row: row.remaining)
    whole = standings.get(WHOLE, tightest)
    cap = lab_row.limit if lab_row else whole.limit
    paces = [row for row in standings.values() if row.scope.period_kind in ("day", "month")]
    return (
        _log(guard),
        _ceiling(guard),
        _headroom(whole, flight.estimate),
        _lab(lab, lab_row, flight.estimate),
        *(_fits(row, flight.estimate) for row in paces),
        _stale(guard),
        _others(inventory),
        _alert(lab, cap),
        _timer(flight, cap),
        Check(
            name="instance-type",
            passed=None,
            text="the instance has the GPUs, and the price, that the estimate assumes",
        ),
        Check(name="start", passed=True, text=f"start {utc_text(now_ns)}"),
    )


def _log(guard: BudgetGuard) -> Check:
    verification = guard.verify()
    doubts = "; ".join(str(finding) for finding in verification.findings)
    text = f"the spend log's {verification.lines} lines are as they were written"
    return Check(name="log", passed=verification.sound, text=doubts or text)


def _ceiling(guard: BudgetGuard) -> Check:
    rentals = guard.rental_findings()
    raised = [each for each in guard.findings() if each not in rentals]
    whole = guard.ceilings.whole
    text = "the limits are those that the log sets" if whole is None else f"the ceiling is {whole}"
    if not raised:
        return Check(name="ceiling", passed=True, text=text)
    return Check(name="ceiling", passed=None, text=f"{text}, and {raised[-1].message}: on purpose?")


def _headroom(whole: ScopeStanding, estimate: Money) -> Check:
    needed = needed_for(estimate)
    text = f"{whole.remaining} remaining; the estimate and {HEADROOM_PERCENT} % are {needed}"
    return Check(name="headroom", passed=whole.remaining >= needed, text=text)


def _lab(lab: str, row: ScopeStanding | None, estimate: Money) -> Check:
    if row is None:
        return Check(name="lab", passed=True, text=f"project {lab} has no cap of its own")
    return _fits(row, estimate)


def _fits(row: ScopeStanding, estimate: Money) -> Check:
    text = f"{row.scope} has {row.remaining} of {row.limit} left; the estimate is {estimate}"
    name = row.scope.period_kind or row.scope.of
    return Check(name=name, passed=row.remaining >= estimate, text=text)


def _stale(guard: BudgetGuard) -> Check:
    stale = [hold for hold, _ in guard.stale_holds()]
    names = ", ".join(f"{hold.id} ({hold.op_label}, {hold.amount})" for hold in stale)
    text = f"settle these with `outlay guard reconcile`: {names}" if stale else "no stale holds"
    return Check(name="stale-holds", passed=not stale, text=text)


def _others(inventory: RentalInventory | None) -> Check:
    if inventory is None:
        text = "the vendor's console shows no other instance running"
        return Check(name="others", passed=None, text=text)
    if inventory.findings:
        return Check(
            name="others", passed=None, text=f"{inventory.findings[0]}; look at the console"
        )
    names = ", ".join(f"{row.name or row.id} ({row.state})" for row in inventory.rows)
    text = f"already running: {names}" if names else "the vendor runs nothing else"
    return Check(name="others", passed=not names, text=text)


def _alert(lab: str, cap: Money) -> Check:
    share = f"{ALERT_PERCENT} % of {cap}, project {lab}"
    text = f"the vendor's budget alert is set at {alert_of(cap)} ({share})"
    return Check(name="alert", passed=None, text=text)


def _timer(flight: Flight, cap: Money) -> Check:
    text = f"the vendor's auto-termination is set at {AUTO_TERMINATION}"
    if flight.rate is None:
        return Check(name="auto-termination", passed=None, text=text)
    cost = cost_at_most(flight.rate, AUTO_TERMINATION.ns)
    if cost > cap:
        text = f"{AUTO_TERMINATION} at {flight.rate} are {cost}, more than {cap}: set it shorter"
        return Check(name="auto-termination", passed=False, text=text)
    text += f" ({cost} at {flight.rate}, within {cap})"
    return Check(name="auto-termination", passed=None, text=text)


def cost_since_start(guard: BudgetGuard, label: str, rate: Rate, *, now_ns: int) -> Money:
    """Return the cost of the time since a label's last preflight, at a rate.

    Raises:
        InvalidValue: No preflight of this label recorded a start, or it lies ahead.
    """
    starts = [
        line.detail["start"]
        for line in guard.log.lines()
        if isinstance(line, Noted)
        and (line.event, line.op_label) == ("preflight", label)
        and "start" in line.detail
    ]
    if not starts:
        raise InvalidValue("label", label, "an operation whose start a preflight recorded")
    elapsed_ns = now_ns - wall_ns_of(parse_timestamp(starts[-1]))
    if elapsed_ns < 0:
        raise InvalidValue("label", label, f"a start in the past; it is {starts[-1]}")
    return cost_at_most(rate, elapsed_ns)


def postflight(
    guard: BudgetGuard, label: str, *, inventory: RentalInventory | None
) -> tuple[Check, ...]:
    """Check that everything of a label has ended and is settled."""
    books = guard.log.books()
    open_holds = [hold for hold in books.open_holds() if hold.op_label == label]
    names = ", ".join(f"{hold.id} ({hold.amount})" for hold in open_holds)
    settled = Check(
        name="settled",
        passed=not open_holds,
        text=f"still open: {names}" if open_holds else f"nothing of {label} is held any more",
    )
    rented = [hold for hold in books.rentals() if hold.op_label == label]
    not_gone = [hold.id for hold in rented if hold.state not in ("gone", "reappeared")]
    text = "all rentals are verified gone"
    if not rented:
        text = "the vendor's console shows the instance terminated"
    elif not_gone:
        text = f"not verified gone: {', '.join(not_gone)}"
    proofs = Check(name="gone", passed=(not not_gone) if rented else None, text=text)
    return (settled, proofs) if inventory is None else (settled, proofs, _others(inventory))
