"""``outlay digest``: spending of a period by user, model and phase, the month's forecast, advice.

Amounts come from ``read_spending``, cut to the period: of an attempt that began earlier, the part
inside the period counts. Time between two attempts and stated trainings are booked whole, as in
every total by month. Units are never added. The same is computed of the period before, which is as
long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from outlay.advise.recommendation import OptimizationRecommendation, merged, of_kind
from outlay.advise.run_advice import advise_run
from outlay.bills.reconciliation import ConfirmedMonth
from outlay.clock import utc_datetime, utc_text
from outlay.cost.charges import month_edges
from outlay.cost.daily_cost import DAY_NS, CostChange
from outlay.cost.forecast import Estimate
from outlay.cost.month_forecast import PAST_DAYS, forecast_month
from outlay.cost.spending import Spending, SpendItem, energy_in
from outlay.cost.thresholds import percent_used
from outlay.errors import Finding, OutlayError
from outlay.export.live_runs import GuardReading, read_guards_once
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView, read_view
from outlay.goodput.timeline import Window
from outlay.guard.rental.watch import living_rentals
from outlay.guard.scopes import WHOLE
from outlay.rates import share_out
from outlay.report.bill_document import confirmed_figure
from outlay.report.document import (
    Block,
    ChartBlock,
    Document,
    Figure,
    NoteBlock,
    Table,
    sections,
)
from outlay.report.drawing.charts import Curve, LineChart
from outlay.report.html import Cell
from outlay.report.run_sections import energy
from outlay.runs.accounting.sacct_import import IN_NO_RUN as REST_OF_JOB
from outlay.runs.inventory.machines_now import MachinesNow, read_machines_now
from outlay.runs.money.limit_use import LimitUse, model_budgets, use_of_standing
from outlay.runs.money.spending_reader import read_reconciliation, read_spending, refresh_books
from outlay.store.run_row import RunRow
from outlay.store.runs import list_runs
from outlay.units import Money, Unit
from outlay.units.money import KINDS, MICROS
from outlay.units.quantity import NS_PER_HOUR, duration_text
from outlay.units.shown import (
    amount_text,
    counted,
    decimals_of,
    figure_text,
    graded,
    money_text,
    range_text,
)

NEAR_PERCENT = 75
"""Used share of a budget or ceiling from which the digest lists it."""
_ROWS = 12
"""Most rows of a table, so that the page can be printed on one sheet."""
_NOTES = 5
_SLICES = 45
"""Most points of the chart."""
_PATIENCE_S = 30.0  # for a database
ADVICE = 3
_ADVISED_RUNS = 50
IN_NO_RUN, UNKNOWN = "in no run", "not recorded"
"""In place of a phase: a machine without a run; a run that recorded no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentPart:
    """What one phase of a user's runs of a model cost in the period.

    Attributes:
        window: When it was used; the instant of the booking, if it is booked whole.
    """

    user: str
    model: str
    unit: Unit
    phase: str
    micros: int
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingLine:
    """The same advice for several runs: total savings, and the run that saves most."""

    saves: float
    unit: Unit
    runs: int
    best: OptimizationRecommendation


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Spending of a period.

    Attributes:
        before: What was spent in the period before, which is as long.
        late: Spends of closed months that became known later.
        months: Forecast of the present month's total, in micro-units, by unit.
        now: What costs money when the digest is made.
        guards: The spend logs that were read.
        energy_mj: Measured energy of the runs, as far as it was used in the period.
        confirmed: What bills confirm, of the months of the period of which bills are known.
    """

    period: Window
    parts: tuple[SpentPart, ...]
    late: tuple[SpendItem, ...]
    dead: tuple[RunRow, ...]
    limits: tuple[LimitUse, ...]
    months: dict[Unit, Estimate]
    advice: tuple[SavingLine, ...]
    guards: tuple[GuardReading, ...]
    energy_mj: int
    findings: tuple[Finding, ...]
    now: MachinesNow
    before: tuple[SpentPart, ...] = ()
    confirmed: tuple[ConfirmedMonth, ...] = ()

    @property
    def heads(self) -> dict[str, str]:
        """The hash of the last line of each spend log."""
        return {guard.log_path: guard.head for guard in self.guards}

    def totals(self) -> dict[Unit, Money]:
        """Return the total by unit."""
        return {unit: _sum(self.parts, unit) for unit in sorted({p.unit for p in self.parts})}

    def change(self, unit: Unit) -> CostChange:
        """Return the total of a unit against that of the period before."""
        return CostChange(spent=_sum(self.parts, unit), before=_sum(self.before, unit))

    @property
    def period_before(self) -> Window:
        """The period before."""
        return before(self.period)

    def by_phase(self, unit: Unit) -> dict[str, Money]:
        """Return the cost by phase: steps first, then by cost, descending."""
        names = {part.phase for part in self.parts if part.unit == unit}
        sums = {n: _sum((p for p in self.parts if p.phase == n), unit) for n in names}
        order = sorted(sums.items(), key=lambda row: (row[0] != ph.STEP, -row[1].micros, row[0]))
        return dict(order)


def read_digest(store: Engine, logs: Sequence[str | Path], period: Window, now_ns: int) -> Digest:
    """Return the digest of a period, with the ceilings of spend logs."""
    findings = refresh_books(store, now_ns)
    reading = read_spending(store, now_ns, damage=findings)
    spending = reading.spending
    findings += spending.findings
    runs = {row.run_id: row for row in list_runs(store)}
    views = dict(_views(spending, runs, period, now_ns, findings))
    parts, earlier = (
        tuple(spent_parts(spending.spends, views, each)) for each in (period, before(period))
    )
    guards = read_guards_once(logs, findings, patience_s=_PATIENCE_S)
    rented, troubles = living_rentals(logs)
    now = read_machines_now(store, rented, (r for r in runs.values() if _runs(r)), now_ns)
    findings += (each for each in (*troubles, *now.findings) if each not in findings)
    seen = [row for row in runs.values() if period.start_ns <= row.last_seen_ns < period.end_ns]
    return Digest(
        period=period,
        parts=parts,
        before=earlier,
        dead=tuple(row for row in seen if row.status == "dead"),
        limits=tuple(_limits(store, guards)),
        late=tuple(s for s in spending.spends if s.origin and _counted(s, period)),
        months=forecast_month(spending, now_ns, reading.running),
        advice=tuple(_advice(views)),
        guards=guards,
        energy_mj=energy_in(spending.spends, runs, period.start_ns, period.end_ns),
        confirmed=tuple(_confirmed(store, spending, period, findings)),
        findings=(*findings, *spending.unpriced_finding()),
        now=now,
    )


def before(period: Window) -> Window:
    """Return the period before another, which is as long."""
    return Window(period.start_ns - period.length_ns, period.start_ns)


def _runs(row: RunRow) -> bool:
    return row.status == "running"


def _confirmed(
    store: Engine, spending: Spending, period: Window, findings: list[Finding]
) -> Iterator[ConfirmedMonth]:
    for start_ns in month_edges(period.start_ns, period.end_ns)[:-1]:
        month = utc_datetime(start_ns).strftime("%Y-%m")
        for each in read_reconciliation(store, spending, month, findings):
            yield each.confirmed


def _views(
    spending: Spending,
    runs: dict[str, RunRow],
    period: Window,
    now_ns: int,
    findings: list[Finding],
) -> Iterator[tuple[str, RunView]]:
    wanted = (s.run_id for s in spending.spends if s.source == "ledger" and _counted(s, period))
    elsewhere = 0
    for run_id in dict.fromkeys(wanted):
        row = runs.get(run_id)
        elsewhere += row is not None and bool(row.log_host)
        if row is None or row.log_host:
            continue
        try:
            yield run_id, read_view(row.dir, now_ns)
        except (OutlayError, OSError) as error:
            findings.append(Finding(source=row.dir, message=str(error), severity="warning"))
    if elsewhere:
        message = (
            f"phases of {counted(elsewhere, 'run')} are not known here: their logs are on others"
        )
        findings.append(Finding(source="hosts", message=message, severity="warning"))


def is_in_no_run(spend: SpendItem) -> bool:
    """Return whether a machine was paid for without a run.

    A rental or an owned machine, the rest of a Slurm job, what was billed beyond use, or a
    correction by a bill.
    """
    return spend.source not in ("ledger", "stated") or spend.model == REST_OF_JOB


def _counted(spend: SpendItem, period: Window) -> Window | None:
    """Return the charged time that counts in a period: all of it if it is booked whole."""
    if spend.between or spend.origin or spend.source == "stated":
        is_booked = period.start_ns <= spend.booked_ns < period.end_ns
        return Window(spend.start_ns, spend.end_ns) if is_booked else None
    start_ns, end_ns = max(spend.start_ns, period.start_ns), min(spend.end_ns, period.end_ns)
    is_instant = spend.start_ns == spend.end_ns == start_ns < period.end_ns
    return Window(start_ns, end_ns) if start_ns < end_ns or is_instant else None


def spent_parts(
    spends: Iterable[SpendItem], views: Mapping[str, RunView], period: Window
) -> Iterator[SpentPart]:
    """Yield what was spent in a period, by phase; ``views`` of runs by id, of those that have one.

    The parts sum to the amounts, except that a part of an attempt is charged by its own log.
    """
    for spend in spends:
        window = _counted(spend, period)
        if window is None:
            continue
        micros = _inside(spend, window)
        is_inside = period.start_ns <= window.start_ns and window.end_ns <= period.end_ns
        used = window if is_inside else Window(spend.booked_ns, spend.booked_ns)
        weights = {IN_NO_RUN if is_in_no_run(spend) else UNKNOWN: 1}
        view = views.get(spend.run_id) if spend.source == "ledger" else None
        found = None if view is None else view.break_down(window)
        is_part = window.length_ns < spend.end_ns - spend.start_ns
        if found is not None and found.cost is not None and is_part and not spend.closed:
            micros = found.cost.micros  # Exact even if the price changed within the run.
        if view is not None and view.account.work.steps and not is_in_no_run(spend):
            assert found is not None
            costs = found.cost_by_phase.items()
            weights = {name: cost.micros for name, cost in costs if cost} or weights
        for phase, part in share_out(micros, weights).items():
            yield SpentPart(
                user=spend.user, model=spend.model, unit=spend.unit, phase=phase, micros=part,
                window=used,
            )  # fmt: skip


def _inside(spend: SpendItem, window: Window) -> int:
    """Return the part of an amount inside a window, in proportion to time."""
    whole_ns, inside_ns = spend.end_ns - spend.start_ns, window.length_ns
    if inside_ns >= whole_ns:
        return spend.cost.micros
    shares = share_out(spend.cost.micros, {True: inside_ns, False: whole_ns - inside_ns})
    return shares[True]


def _sum(parts: Iterable[SpentPart], unit: Unit) -> Money:
    return unit.money(sum(part.micros for part in parts if part.unit == unit))


def _limits(store: Engine, guards: Sequence[GuardReading]) -> Iterator[LimitUse]:
    yield from model_budgets(store)
    for guard in guards:
        yield from (use_of_standing(guard.log_path, each) for each in guard.standings)


def limit_name(use: LimitUse) -> str:
    """Return what a limit is of, and in which spend log."""
    return f"{use.name} in {use.source}" if use.source else use.name


def limit_percent(use: LimitUse) -> float:
    """Return the used share of a limit, in percent."""
    return percent_used(use.used, use.limit)


def _advice(views: dict[str, RunView]) -> list[SavingLine]:
    """Return the recommendations with the largest total savings, from the costliest runs."""
    costliest = sorted(views.values(), key=_cost_of, reverse=True)[:_ADVISED_RUNS]
    lines: list[SavingLine] = []
    for kind in KINDS:
        paid = (view for view in costliest if view.unit.kind == kind)
        alike: dict[tuple[str, str, str], list[OptimizationRecommendation]] = {}
        for each in of_kind(merged(e for view in paid for e in advise_run(view)), "saving"):
            alike.setdefault((each.category, each.action, each.currency), []).append(each)
        for group in alike.values():
            saves = sum(each.estimated_savings for each in group)
            unit = Unit(group[0].currency, kind)
            lines.append(SavingLine(saves=saves, unit=unit, runs=len(group), best=group[0]))
    return sorted(lines, key=lambda line: -line.saves)[:ADVICE]


def _cost_of(view: RunView) -> int:
    cost = view.break_down().cost
    return 0 if cost is None else cost.micros


# The page


_WIDE = (
    "Spent over time", "Who spent what", "Booked late", "Near the limit", "Runs that look dead",
    "What would save most", "Warnings", "Spend logs", "What costs money now",
)  # fmt: skip


def digest_document(digest: Digest) -> Document:
    """Return a digest as a page; text, Markdown and HTML have the same content."""
    start, end = utc_text(digest.period.start_ns)[:16], utc_text(digest.period.end_ns)[:16]
    return Document(
        title=f"What was spent from {start} to {end} UTC",
        verdict=_verdict(digest),
        sections=sections(
            [
                ("Spent over time", _over_time(digest)),
                ("Who spent what", _owners(digest)),
                ("By phase", _phases(digest)),
                ("Energy", energy(digest.energy_mj, "estimated")),
                ("Booked late", late_blocks(digest.late)),
                ("This month", month_blocks(digest.months)),
                ("Confirmed by bills", map(confirmed_figure, digest.confirmed)),
                ("What costs money now", _now(digest)),
                ("Near the limit", _near(digest)),
                ("Runs that look dead", _dead(digest)),
                ("What would save most", _savings(digest)),
                ("Warnings", _warnings(digest)),
                ("Spend logs", _spend_logs(digest)),
            ],
            whole=_WIDE,
        ),
    )


def _verdict(digest: Digest) -> str:
    totals = digest.totals()
    if not totals:
        return "Nothing was spent."
    parts = []
    for unit, total in totals.items():
        productive = money_text(digest.by_phase(unit).get(ph.STEP, total * 0))
        spent = f"{money_text(total)} were spent"
        if digest.before:
            spent += f" ({_against(digest.change(unit))})"
        parts.append(f"{spent}, of which {productive} on productive steps")
    length = duration_text(digest.period.length_ns)
    since = "" if digest.before else f" Nothing is known of the {length} before."
    return f"{'; '.join(parts)}. Amounts are estimates until a bill confirms them.{since}"


def _against(change: CostChange) -> str:
    """Return a change in words: ``+12% against 40.00 USD before``."""
    if not change.before:
        return "nothing before"
    return f"{change.text} against {money_text(change.before)} before"


def _amount(money: Money, decimals: int | None = None) -> Cell:
    """Return a rounded amount."""
    text = money_text(money, decimals)
    return Cell(text=text, value=money, title=str(money), is_number=True)


def _share(percent: float, digits: int) -> Cell:
    return Cell(text=f"{percent:.{digits}f}%", value=percent, is_number=True)


def _over_time(digest: Digest) -> Iterator[Block]:
    """Yield a chart per unit: the period, and the one before."""
    edges = _edges(digest.period)
    if len(edges) <= _LEAST_SLICES:
        return
    is_daily = edges[1] - edges[0] >= DAY_NS
    for unit, total in digest.totals().items():
        shift_ns = digest.period.length_ns
        rows = [("this period", _slices(digest.parts, unit, edges))]
        if any(part.unit == unit for part in digest.before):
            earlier = [edge - shift_ns for edge in edges]
            rows.append(("the period before", _slices(digest.before, unit, earlier)))
        yield ChartBlock(
            LineChart(
                name=f"spent-{unit.currency.lower()}-{unit.kind}",
                title=f"{money_text(total)} by {_slice_text(edges[1] - edges[0])}",
                x_title="day" if is_daily else "hours since the start",
                y_title=str(unit),
                curves=tuple(
                    Curve(label=label, points=tuple(_points(micros, edges)), look=look)
                    for look, (label, micros) in enumerate(rows)
                ),
                labels=tuple(label for label, _ in rows) if len(rows) > 1 else (),
                in_days=is_daily,
            )
        )


_LEAST_SLICES = 2


def _slice_text(length_ns: int) -> str:
    return {DAY_NS: "day", NS_PER_HOUR: "hour"}.get(length_ns) or duration_text(length_ns)


def _edges(period: Window) -> list[int]:
    """Return the edges of the parts of a period that the chart shows: days, or hours of few."""
    unit_ns = DAY_NS if period.length_ns >= 2 * DAY_NS else NS_PER_HOUR
    length_ns = unit_ns * -(-period.length_ns // (_SLICES * unit_ns))
    return [*range(period.start_ns, period.end_ns, length_ns), period.end_ns]


def _slices(parts: Iterable[SpentPart], unit: Unit, edges: Sequence[int]) -> list[int]:
    """Return what was spent between edges, in proportion to time; it sums to the parts."""
    found = [0] * (len(edges) - 1)
    for part in parts:
        if part.unit != unit:
            continue
        start_ns, end_ns = part.window.start_ns, part.window.end_ns
        first = min(bisect_right(edges, start_ns), len(found)) - 1
        overlaps = {max(first, 0): 1}
        if start_ns < end_ns:
            within = range(max(first, 0), len(found))
            cut = {n: min(end_ns, edges[n + 1]) - max(start_ns, edges[n]) for n in within}
            overlaps = {n: ns for n, ns in cut.items() if ns > 0} or overlaps
        for place, micros in share_out(part.micros, overlaps).items():
            found[place] += micros
    return found


def _points(micros: Sequence[int], edges: Sequence[int]) -> Iterator[tuple[float, float]]:
    is_daily = edges[1] - edges[0] >= DAY_NS
    for start_ns, amount in zip(edges, micros, strict=False):
        x = start_ns / DAY_NS if is_daily else (start_ns - edges[0]) / NS_PER_HOUR
        yield x, amount / MICROS


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLine:
    """What an owner's runs of a model cost, and what they cost in the period before."""

    who: str
    model: str
    amounts: tuple[Money, ...]
    before: Money

    @property
    def whole(self) -> Money:
        """The total of the period."""
        return self.amounts[0]


_PARTS = ("productive", "wasted", IN_NO_RUN, UNKNOWN)


def _owner_lines(digest: Digest) -> list[OwnerLine]:
    """Return the owners of both periods, the largest first."""
    found: dict[tuple[str, str, Unit], tuple[list[SpentPart], list[SpentPart]]] = {}
    for place, parts in enumerate((digest.parts, digest.before)):
        for part in parts:
            found.setdefault((part.user, part.model, part.unit), ([], []))[place].append(part)
    lines = []
    for (user, model, unit), (mine, earlier) in found.items():
        whole = _sum(mine, unit)
        productive, idle, unknown = (
            _sum((part for part in mine if part.phase == phase), unit)
            for phase in (ph.STEP, IN_NO_RUN, UNKNOWN)
        )
        wasted = whole - productive - idle - unknown
        lines.append(
            OwnerLine(
                who=user or "unknown", model=model, before=_sum(earlier, unit),
                amounts=(whole, productive, wasted, idle, unknown),
            )
        )  # fmt: skip
    return sorted(lines, key=lambda line: (-line.whole.micros, -line.before.micros, line.who))


def _with_others(lines: list[OwnerLine]) -> list[OwnerLine]:
    """Return the first lines, and by unit the sum of the others."""
    if len(lines) <= _ROWS:
        return lines
    kept, others = lines[: _ROWS - 1], lines[_ROWS - 1 :]
    for unit in sorted({line.before.unit for line in others}):
        mine = [line for line in others if line.before.unit == unit]
        if len(mine) == 1:
            kept += mine
            continue
        sums = [
            sum(column, start=unit.money(0))
            for column in zip(*(e.amounts for e in mine), strict=True)
        ]
        earlier = sum((line.before for line in mine), start=unit.money(0))
        kept.append(
            OwnerLine(who=f"{len(mine)} more", model="", amounts=tuple(sums), before=earlier)
        )
    return kept


def _owners(digest: Digest) -> Iterator[Block]:
    """Yield who spent what; a part that nobody has gets no column."""
    lines = _with_others(_owner_lines(digest))
    if not lines:
        return
    shown = [at for at in range(1, len(_PARTS) + 1) if any(line.amounts[at] for line in lines)]
    changed = ["change"] if digest.before else []
    rows = []
    for line in lines:
        decimals = decimals_of([line.whole])
        amounts = [_amount(line.amounts[at], decimals) for at in shown]
        change = [_change(line)] if changed else []
        rows.append((line.who, line.model, _amount(line.whole, decimals), *change, *amounts))
    headings = ("who", "model", "spent", *changed, *(_PARTS[at - 1] for at in shown))
    yield Table(headings, tuple(rows), is_list=True)


def _change(line: OwnerLine) -> Cell:
    """Return how much more or less it is than in the period before."""
    change = line.whole - line.before
    if not line.before:
        text = "new"
    elif not line.whole:
        text = f"-{money_text(line.before)}, none now"
    else:
        sign = "+" if change.micros > 0 else ""
        text = f"{sign}{figure_text(change, decimals_of([line.whole, line.before]))}"
    return Cell(text=text, value=change, title=f"{line.before} before", is_number=True)


def _phases(digest: Digest) -> Iterator[Block]:
    for unit, total in digest.totals().items():
        phases, decimals = digest.by_phase(unit), decimals_of([total])
        rows = tuple(
            (phase, _amount(money, decimals), _share(percent_used(money, total), 1))
            for phase, money in phases.items()
            if money
        )
        yield Table(("phase", "spent", "share of cost"), rows)


def late_blocks(spends: Iterable[SpendItem]) -> list[Block]:
    """Return what of closed months became known later; nothing if there is none."""
    late = [spend for spend in spends if spend.origin]
    rows = [(each.origin, each.name, each.user, each.cost) for each in late]
    if not rows:
        return []
    return [
        Table(("month of origin", "what", "who", "booked here"), rows, is_list=True),
        NoteBlock(BOOKED_LATE),
    ]


BOOKED_LATE = "These months were closed before this was known of them, so it is booked here."


def month_blocks(months: dict[Unit, Estimate], href: str = "") -> list[Block]:
    """Return what the present month will cost, with the interval; nothing without an estimate.

    ``href`` is where the amounts lead on a page.
    """
    found: list[Block] = []
    for unit, total in months.items():
        point = unit.money(round(total.point))
        text = money_text(point)
        if total.low is not None and total.high is not None:
            low, high = (unit.money(round(end)) for end in (total.low, total.high))
            text += f" ({range_text(low, high)} {unit.currency}, {total.confidence:.0%})"
        found.append(Figure("by the end of the month", point, text, "estimated", href=href))
    note = (
        "Spent so far, what runs now as long as it may last, and what begins later as in the last "
        f"{PAST_DAYS} days, or fewer; each charge counts on the days of its use."
    )
    return [*found, NoteBlock(note)] if found else []


def _now(digest: Digest) -> Iterator[Block]:
    if digest.now.places:
        yield NoteBlock(f"{digest.now.text}.")


def _near(digest: Digest) -> Iterator[Block]:
    """Yield the limits that are nearly or wholly used up, the most first."""
    near = [each for each in digest.limits if limit_percent(each) >= NEAR_PERCENT]
    if near:
        near.sort(key=lambda each: -limit_percent(each))
        rows = ((limit_name(e), e.used, e.limit, _share(limit_percent(e), 0)) for e in near[:_ROWS])
        yield Table(("limit", "used", "of", "share"), tuple(rows), is_list=True)
        yield from _more(len(near) - _ROWS)


def _dead(digest: Digest) -> Iterator[Block]:
    if digest.dead:
        newest = sorted(digest.dead, key=lambda row: -row.last_seen_ns)[:_NOTES]
        rows = ((row.name, row.user, utc_text(row.last_seen_ns), row.dir) for row in newest)
        yield Table(("run", "who", "last seen", "directory"), tuple(rows), is_list=True)
        yield from _more(len(digest.dead) - _NOTES)


def _warnings(digest: Digest) -> Iterator[Block]:
    yield from (NoteBlock(str(finding)) for finding in digest.findings[:_NOTES])
    yield from _more(len(digest.findings) - _NOTES)


def _more(count: int) -> Iterator[Block]:
    """Yield how many are left out; ``outlay digest --json`` has all."""
    if count > 0:
        yield NoteBlock(f"{count} more: outlay digest --json")


def _savings(digest: Digest) -> Iterator[Block]:
    if digest.advice:
        rows = tuple(
            (
                line.best.title,
                Cell(text=amount_text(line.saves, line.unit), is_number=True),
                line.runs,
                line.best.action,
            )
            for line in digest.advice
        )
        yield Table(("advice", graded("saves", "estimated"), "runs", "how"), rows, is_list=True)


def _spend_logs(digest: Digest) -> Iterator[Block]:
    if digest.guards:
        wholes = tuple(
            (guard.log_path, each.limit, each.captured, each.held)
            for guard in digest.guards
            for each in guard.standings
            if each.scope == WHOLE
        )
        yield Table(("log", "ceiling", "spent", "held"), wholes, is_list=True)
        yield Table(("log", "hash of its last line"), tuple(digest.heads.items()))
        yield NoteBlock("outlay guard verify --expect HASH shows whether lines were removed.")
