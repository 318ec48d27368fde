"""The pages that are written before anything is rented: the budget, the checklist, the manifest.

Planning launches nothing. Every sum on a page is computed here, and what does not add up is
refused instead of written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from outlay.errors import InvalidValue, OutlayError
from outlay.files import write_whole
from outlay.guard.ceilings import Manifest
from outlay.guard.entries import amount_of
from outlay.guard.lease import Terms
from outlay.guard.scopes import BUFFER
from outlay.units import Duration, Money, Rate
from outlay.units.numbers import EXACT
from outlay.units.quantity import NS_PER_HOUR

AUTO_TERMINATION = Duration(4 * 3600 * 10**9)
ALERT_PERCENT = 80
HEADROOM_PERCENT = 50
SURVEY_FILE = "vendor-survey.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a lab is expected to cost: GPUs, what each costs, and for how long.

    ``assumed`` marks a price that nobody looked up.
    """

    gpus: int = 2
    price: Rate = Rate(350_000)  # noqa: RUF009 - a frozen value
    hours: Decimal = Decimal(3)
    assumed: bool = True

    @property
    def rate(self) -> Rate:
        """What all GPUs cost per hour."""
        return self.price * self.gpus

    @property
    def cost(self) -> Money:
        """What the whole lab costs."""
        return Terms(rate=self.rate).cost(int(EXACT.multiply(self.hours, NS_PER_HOUR)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a survey of vendors found: the pick, when, and the price per GPU-hour of each."""

    vendor: str = "<chosen>"
    date: str = ""
    prices: dict[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A ceiling, divided; ``day`` and ``month`` cap what one of them (UTC) may take of it.

    Raises:
        InvalidValue: The caps and the buffer are more than the ceiling, or a cap is no amount of
            zero or more in its currency.
    """

    ceiling: Money
    labs: dict[str, Money]
    buffer: Money
    day: Money | None = None
    month: Money | None = None
    estimate: Estimate = Estimate()
    survey: Survey = Survey()
    seed: int = 35000
    hardware_target: str = "to be filled in lab 02"

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
        """What the caps and the buffer add up to."""
        return sum(self.labs.values(), self.buffer)

    @property
    def paying_lab(self) -> str:
        """The lab with the largest cap: the one that rents something."""
        return max(self.labs, key=lambda lab: self.labs[lab].micros, default=BUFFER)

    @property
    def cap(self) -> Money:
        """That lab's cap."""
        return self.labs.get(self.paying_lab, self.buffer)


def alert_of(cap: Money) -> Money:
    """Return at which spend the vendor is to warn of a cap."""
    return Money(cap.micros * ALERT_PERCENT // 100, cap.currency)


def needed_for(estimate: Money) -> Money:
    """Return what has to remain before a launch: the estimate and its headroom, rounded up."""
    hundredths = estimate.micros * (100 + HEADROOM_PERCENT)
    return Money(-(-hundredths // 100), estimate.currency)


class FilesExist(OutlayError):
    """A plan is there already; replacing it is a deliberate act."""

    def __init__(self, paths: list[Path]) -> None:
        names = ", ".join(str(path) for path in paths)
        super().__init__(f"{names}: already written. Change them on purpose with --replace.")


def write_documents(directory: Path, plan: Plan, *, replace: bool = False) -> tuple[Path, ...]:
    """Write the pages; return their paths.

    Raises:
        FilesExist: One of them is there already.
    """
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


def manifest_text(plan: Plan, spend_log_path: str = "spend.jsonl") -> str:
    """Return ``manifest.json``: the documented keys."""
    labs = {lab: amount_of(cap.micros) for lab, cap in sorted(plan.labs.items())}
    manifest = Manifest(
        seed=plan.seed,
        hardware_target=plan.hardware_target,
        vendor=plan.survey.vendor,
        currency=plan.ceiling.currency,
        ceiling_usd=amount_of(plan.ceiling.micros),
        ceiling_per_lab={**labs, BUFFER: amount_of(plan.buffer.micros)},
        spend_log_path=spend_log_path,
        vendor_snapshot_date=plan.survey.date,
        vendor_snapshot_prices=plan.survey.prices,
        ceiling_per_day_usd=None if plan.day is None else amount_of(plan.day.micros),
        ceiling_per_month_usd=None if plan.month is None else amount_of(plan.month.micros),
    )
    # Every documented key is written, empty ones too: a reader should see what is still open.
    # The caps on days and months are ours, and stand there when they were asked for.
    stated = {key: value for key, value in asdict(manifest).items() if value is not None}
    encoded = msgspec.json.Encoder(decimal_format="number").encode(stated)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def budget_page(plan: Plan) -> str:
    """Return ``budget.md``: the table, its sum, and why the caps are what they are."""
    rows = [
        f"| Lab {lab}{'' if cap else ' (no cloud)'} | {'≤' if cap else '='} {_amount(cap)} |"
        for lab, cap in sorted(plan.labs.items())
    ]
    return "\n".join(
        [
            f"# Cloud budget: {_amount(plan.ceiling)}, hard ceiling",
            "",
            "| for | cap |",
            "|---|---:|",
            *rows,
            f"| Buffer for retries and setup | ≤ {_amount(plan.buffer)} |",
            f"| **Total** | **{_amount(plan.total)} ≤ {_amount(plan.ceiling)}** |",
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


def _paces(plan: Plan) -> list[str]:
    caps = (("day", plan.day), ("month", plan.month))
    parts = [f"{_amount(cap)} a {name}" for name, cap in caps if cap is not None]
    return [f"Of all of it together at most {' and '.join(parts)} (UTC).", ""] if parts else []


def _reasoning(plan: Plan) -> str:
    e, cap = plan.estimate, plan.cap
    sum_text = f"{e.gpus} x {_amount(e.price.per_hour)}/h x {e.hours} h = {_amount(e.cost)}"
    if e.cost > cap:
        room = f"MORE than the cap of {_amount(cap)}: shorten it or rent something cheaper"
    elif e.cost:
        permille = ((cap - e.cost).micros * 2000 + e.cost.micros) // (2 * e.cost.micros)
        room = (
            f"the cap of {_amount(cap)} leaves {permille // 10}.{permille % 10} % "
            "for setup, container pulls and retries"
        )
    else:
        room = f"the cap is {_amount(cap)}"
    source = (
        "The price per GPU-hour is an assumption that nobody looked up."
        if e.assumed
        else "The price per GPU-hour was stated when this page was written."
    )
    survey = f" See {SURVEY_FILE} for the vendors compared." if plan.survey.prices else ""
    return f"Lab {plan.paying_lab}: {sum_text}; {room}. {source}{survey}"


def checklist_page(plan: Plan) -> str:
    """Return ``pre-flight-checklist.md``: one action a line, in the order to do them."""
    e, cap, lab = plan.estimate, plan.cap, plan.paying_lab
    timer = Terms(rate=e.rate).cost(AUTO_TERMINATION.ns)
    label = f"lab{lab}-spinup" if lab != BUFFER else "spinup"
    timer_fits = "within" if timer <= cap else "MORE THAN"
    return f"""# Before every launch

Do the steps in order. Tick each one. If one fails: stop, nothing is lost yet.

- [ ] 1. Run `outlay guard preflight --label {label} --estimate "{e.cost}"`.
         It checks by itself what it can, and asks for the rest.
- [ ] 2. Budget: `outlay guard status` must show at least {_amount(needed_for(e.cost))} remaining
         (estimate {_amount(e.cost)} + {HEADROOM_PERCENT} %).
- [ ] 3. Vendor console: is any other instance running? If yes, you forgot it: terminate it now.
- [ ] 4. Instance type: is it {e.gpus} GPUs, each at most {_amount(e.price.per_hour)} an hour?
- [ ] 5. Vendor console: set a budget alert at {_amount(alert_of(cap))}
         ({ALERT_PERCENT} % of lab {lab}'s cap of {_amount(cap)}).
- [ ] 6. Vendor console: set auto-termination at {AUTO_TERMINATION}
         ({_amount(timer)}, {timer_fits} the cap), if it has one. It is no safety net: RunPod's
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


def _amount(money: Money) -> str:
    text = f"{amount_of(money.micros)}"
    return f"${text}" if money.currency == "USD" else f"{text} {money.currency}"
