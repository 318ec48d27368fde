"""A question has one answer on every screen, to the micro-unit and the nanosecond."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import outlay
from amounts import captured_in
from command_line import in_process
from ledgers import START_NS, Segment, dollars
from outlay.cli.execute import last_line
from outlay.clock import ManualClock, utc_text
from outlay.cost.charges import month_window
from outlay.export.live_runs import LiveReading, polled_logs, read_guards
from outlay.export.prometheus import exposition
from outlay.guard.entries import Rental, Vendor
from outlay.guard.rental.watch import remember_log
from outlay.ledger import Metric, Price, PriceChanged, SlicesChanged
from outlay.runs.collect import collect
from outlay.runs.figures import flat
from outlay.store import open_store
from outlay.units import Money
from outlay.units.shown import graded
from outlay.web.book_reader import BookReader
from outlay.web.guard import guard_page
from outlay.web.money import money_page
from outlay.web.now import now_page
from outlay.web.page import PageQuery
from outlay.web.runs import compare_page, run_page, runs_page

NOVEMBER = month_window("2023-11")
MONTHS = ("2023-11", "2023-12")
HOUR, SECOND = 3600 * 10**9, 10**9
WORK = {"tokens": 1000, "samples": 7}


def about(run_id: str, price: Price | None = None, **facts: Any) -> dict[str, Any]:
    named = {"run_id": run_id, "name": run_id, "model": "bert", "user": "ada", "gpu": "H100"}
    return named | {"nodes": 1, "gpus": 1, "gpus_source": "stated", "price": price} | facts


def write_gaps(root: Path) -> None:
    """Kept, given back, stopped at a price, unknown, idle; a killed attempt, a price for a while.

    The second price is in force only for a while: the run ends at the first.
    """
    every = about("gaps", dollars(1.234567), gpus=3, tags={"team": "nlp"})
    kept = Segment(about=every | {"instance_id": "i-1"}).step(100.123456789, wait=1.1, **WORK)
    kept.step(50, **WORK).step(51, wait=0.3, **WORK).checkpoint().span("evaluation", 33.3)
    kept.price(2.5, gpus=2, after=5).step(49, **WORK).end("failed").write(root)
    killed = Segment(start=700.7, about=every | {"instance_id": "i-1"})
    killed.step(52, number=3, **WORK).step(50, **WORK).heartbeat(after=20)
    killed.add(Metric(t_ns=killed.now_ns, name="accuracy", value=0.7)).write(root)
    stopped = {"instance_id": "i-2", "stopped_machine_price": dollars(0.37)}
    moved = Segment(start=2000.3, about=every | stopped).step(60, number=5, **WORK)
    moved.step(50, **WORK).end("failed").write(root)
    unknown = Segment(start=9000.3, about=every | {"user": "bob"}).step(60, number=6, **WORK)
    unknown.step(55, **WORK).end("failed").write(root)
    last = Segment(start=12345.678901234, about=every).step(60, number=8, **WORK)
    last.step(50.000000001, **WORK).step(700, **WORK).checkpoint().end().write(root)
    again = Segment(start=22345.678901234, about=every).step(60, number=11, **WORK)
    again.step(50.000000001, **WORK).end().write(root)


def write_nodes(root: Path) -> None:
    """Two nodes with different GPUs, of which one starts later and ends later."""
    every = about("nodes", dollars(3.333333), user="bob", nodes=2, world_size=2, gpus=4)
    every |= {"gpus_source": "visible", "model": "gpt"}
    first = every | {"host": "n0", "node": 0, "node_gpus": 2, "instance_id": "a"}
    Segment(start=100, about=first).step(200, wait=3).step(201).step(202).end().write(root)
    second = every | {"host": "n1", "node": 1, "node_gpus": 1, "instance_id": "b"}
    late = Segment(start=103.3, rank=1, about=second).step(200).step(201).step(202)
    late.after(11.1).end().write(root)


def write_share(root: Path) -> None:
    """A seventh of a GPU that is owned, and time between attempts of which nothing is known."""
    price = Price(micros_per_hour=2_718_281, kind="showback")
    every = about("share", price, gpus="1/7", user="cy")
    Segment(start=300, about=every).step(200.5, wait=3).step(201).step(202).end("failed").write(
        root
    )
    Segment(start=3000, about=every).step(200.5, number=2).step(201).end().write(root)


def write_euro(root: Path) -> None:
    every = about("euro", Price(micros_per_hour=1_999_999, currency="EUR"), gpus=5)
    story = Segment(start=400, about=every).step(200.5, wait=3).step(201)
    changed = Price(micros_per_hour=2_100_001, currency="EUR")
    story.add(PriceChanged(t_ns=story.now_ns, price=changed, gpus=4))
    story.span("my own", 40).step(200).end().write(root)


def write_slices(root: Path) -> None:
    story = Segment(start=500, about=about("slices", dollars(1.1), gpus=8, model="gpt"))
    story.step(100).step(101)
    story.add(SlicesChanged(t_ns=story.now_ns, active=3, total=4, available=3))
    story.span("elastic_slice_down", 30).step(130).step(131)
    story.add(SlicesChanged(t_ns=story.now_ns, active=4, total=4, available=4))
    story.step(100).step(100).end().write(root)


def write_month(root: Path) -> None:
    """Across midnight at the end of a month, and on the same machine again in the next."""
    every = about("month", dollars(1.777777), gpus=2, model="gpt", user="eve", instance_id="z")
    for start_s in (-3000.123, 5000):
        story = Segment(start=(NOVEMBER.end_ns - START_NS) / 1e9 + start_s, about=every)
        for _ in range(8):
            story.step(500.5, wait=1)
        story.end("failed" if start_s < 0 else "completed").write(root)


def write_dead(root: Path) -> None:
    Segment(start=600, about=about("dead", dollars(7.7))).step(11).step(10).heartbeat(5).write(root)


def write_free(root: Path) -> None:
    Segment(start=600, about=about("free")).step(10).step(10).end().write(root)


RUNS = {
    "gaps": write_gaps, "nodes": write_nodes, "share": write_share, "euro": write_euro,
    "slices": write_slices, "month": write_month, "dead": write_dead, "free": write_free,
}  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("answers")
    for name, write in RUNS.items():
        write(root / "logs" / name)
    (root / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(root / "home"))
        collect(open_store(), sorted((root / "logs").iterdir()), NOVEMBER.end_ns + 48 * HOUR)
    return root / "logs"


@pytest.fixture
def registered(logs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTLAY_HOME", str(logs.parent / "home"))
    return logs


def said(*words: object) -> Any:
    done = in_process(*words, "--json")
    assert done.code == 0, done.err
    return done.json


def plain(value: object) -> Any:
    """Return a value as a reader of its JSON gets it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def micros(amount: object) -> int | None:
    """Return an amount in currency units as micro-units; a float means its shortest text."""
    if amount is None:
        return None
    exact = Decimal(str(amount)) * 10**6
    assert exact == int(exact), amount
    return int(exact)


# One run

Answers = dict[str, object]


def of_figures(found: Any) -> Answers:
    """Return the answers of a row or of figures, as JSON."""
    money = "cost" in found
    cost, assumed = found.get("cost") or {}, found.get("assumed") or {}
    known = {
        "cost": cost.get("micros") if money else found["cost_micros"],
        "assumed": (assumed.get("micros") or 0) if money else found["assumed_micros"],
        "currency": cost.get("currency") if money else found["currency"],
    }
    names = ("kind", "status", "attempts", "steps", "tokens", "goodput", "metric_value")
    more = ("wall_ns", "samples", "gpus") if money else ()
    return known | {name: found[name] for name in (*names, *more)} | {"ended": found["ended_ns"]}


def of_cost(found: Any) -> Answers:
    cost, assumed = found["cost"] or {}, found["assumed"] or {}
    return {
        "cost": cost.get("micros"), "assumed": assumed.get("micros", 0),
        "currency": cost.get("currency"), "kind": found["kind"], "wall_ns": found["wall_ns"],
        "tokens": found["tokens"], "samples": found["samples"], "executed": found["steps"],
        "gpu_ns": found["gpu_ns"], "accuracy": found["accuracy"],
        "phase costs": {name: part["micros"] for name, part in found["by_phase"].items()},
    }  # fmt: skip


def of_goodput(found: Any) -> Answers:
    cost, assumed = found["cost"] or {}, found["assumed"] or {}
    costs = {row["phase"]: (row["cost"] or {}).get("micros") for row in found["phases"]}
    return {
        "cost": cost.get("micros"), "assumed": assumed.get("micros", 0), "kind": found["kind"],
        "wall_ns": found["wall_ns"], "goodput": found["goodput"],
        "phases": {row["phase"]: row["ns"] for row in found["phases"]},
        "phase costs": {name: part for name, part in costs.items() if part},
    }  # fmt: skip


def of_report(figures: Any) -> Answers:
    """Return the answers of the labelled figures of a report."""
    found = {each["label"]: each["value"] for each in figures}
    steps, cost = found.get("steps"), found.get("cost") or {}
    answers = {
        "cost": cost.get("micros"), "currency": cost.get("currency"),
        "assumed": (found.get("of which assumed") or {}).get("micros", 0), "steps": steps,
        "executed": found.get("steps executed", steps), "wall_ns": found["wall time"],
        "goodput": found["goodput"], "status": found["status"], "attempts": found["attempts"],
        "gpu_ns": found["GPU time"], "accuracy": found.get("best accuracy"),
        "tokens": found.get("tokens", 0), "samples": found.get("samples", 0),
    }  # fmt: skip
    texts = [each["text"] for each in figures if each["label"] == "GPU"]
    return answers | {"gpus": texts[0].partition(" x ")[0]}


def of_row(found: Any) -> Answers:
    """Return the answers of a row for a CSV file."""
    names = ("kind", "status", "attempts", "steps", "tokens", "goodput", "metric_value", "currency")
    known = {"cost": micros(found["cost"]), "assumed": micros(found["assumed"]) or 0}
    return known | {name: found[name] for name in names}


def of_metrics(run_dir: Path) -> Answers:
    """Return the answers of the lines for Prometheus, were the run still live."""
    reading = LiveReading(t_ns=1, runs=(outlay.read_run(run_dir),), guards=(), findings=())
    lines = exposition(reading).splitlines()
    found = dict(line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
    name = run_dir.name
    unit = "eur" if name == "euro" else "usd"
    phases = re.compile(rf'outlay_run_phase_cost_{unit}_total{{run="{name}",phase="(.*)"}}')
    costs = {match[1]: micros(found[each]) for each in found if (match := phases.match(each))}

    def value(figure: str) -> Any:
        text = found.get(f'outlay_run_{figure}{{run="{name}"}}')
        return None if text is None else float(text)

    return {
        "cost": micros(value(f"cost_{unit}_total")), "phase costs": costs,
        "wall_ns": round(value("wall_seconds_total") * 1e9), "goodput": value("goodput_ratio"),
        "steps": value("steps"), "tokens": value("tokens_total"),
        "samples": value("samples_total"), "attempts": value("attempts_total"),
    }  # fmt: skip


def screens(logs: Path, name: str) -> Iterator[tuple[str, Answers]]:
    run_dir = logs / name
    reading = outlay.read_run(run_dir)
    yield "read_run figures", of_figures(plain(reading.figures))
    yield "read_run goodput", of_goodput(plain(reading.goodput))
    yield "read_run cost", of_cost(plain(reading.cost))
    yield "cost", of_cost(said("cost", run_dir)["cost"])
    yield "goodput", of_goodput(said("goodput", run_dir))
    report = said("report", run_dir)
    yield "report", of_report(report["figures"])
    yield "report goodput", of_goodput(report["goodput"])
    yield "report cost", of_cost(report["cost"])
    for where in ([], [logs]):
        (found,) = [row for row in said("runs", *where)["runs"] if row["run_id"] == name]
        yield f"runs {where}", of_figures(found)
    (row,) = [row for row in outlay.list_runs().rows if row.run_id == name]
    yield "list_runs", of_figures(plain(row))
    yield "Prometheus", of_metrics(run_dir)
    books = BookReader()
    page = run_page(PageQuery(path="/run", name=name), books)
    yield "page", of_figures(plain(page.document["figures"]))
    yield "page goodput", of_goodput(plain(page.document["goodput"]))
    yield "page cost", of_cost(plain(page.document["cost"]))
    yield "page csv", of_report(plain(page.rows))
    compared = compare_page(PageQuery(path="/compare", query=[("run", name)]), books)
    yield "compare", of_figures(plain(compared.document[0]))
    yield "compare csv", of_row(compared.rows[0])
    (listed,) = [r for r in runs_page(PageQuery(path="/runs"), books).rows if r["run_id"] == name]
    yield "list csv", of_row(listed)
    if reading.cost.cost is not None:
        model = said("cost", "model", reading.figures.model)["runs"]
        (found,) = [row for row in model if row["run_id"] == name]
        booked = {"cost": found["cost_micros"], "assumed": found["assumed_micros"]}
        yield "cost model", booked | {n: found[n] for n in ("kind", "currency", "accuracy")}


@pytest.mark.parametrize("name", RUNS)
def test_every_screen_says_the_same_of_a_run(registered: Path, name: str) -> None:
    answers: dict[str, dict[str, object]] = {}
    for screen, found in screens(registered, name):
        for question, answer in found.items():
            answers.setdefault(question, {})[screen] = answer
    assert len(answers["cost"]) >= 16
    for question, by_screen in answers.items():
        shown = {screen: str(v) if question == "gpus" else v for screen, v in by_screen.items()}
        first = next(iter(shown.values()))
        assert shown == dict.fromkeys(shown, first), question


@pytest.mark.parametrize("name", RUNS)
def test_texts_have_the_amount_with_its_kind_and_assumed_part(registered: Path, name: str) -> None:
    reading = outlay.read_run(registered / name)
    figures = reading.figures
    total = "no price" if figures.cost is None else str(figures.cost)
    (line,) = [
        line for line in in_process("runs").out.splitlines()
        if line.startswith(f"{name} ")
    ]  # fmt: skip
    shown = (in_process(word, registered / name).out for word in ("cost", "goodput"))
    for text in (line, *shown, last_line(reading, name)):
        assert total in text
        assert ("assumed" in text and str(figures.assumed) in text) or not figures.assumed
        assert ("showback" in text) is (figures.kind == "showback")


@pytest.mark.parametrize("name", ["gaps", "share", "euro"])
def test_report_and_cost_list_the_same_prices(registered: Path, name: str) -> None:
    shown = [
        line.removeprefix("price ").strip()
        for line in in_process("cost", registered / name, columns=200).out.splitlines()
        if line.startswith("price ")
    ]
    figures = said("report", registered / name)["figures"]
    assert [each["text"] for each in figures if each["label"] == "price"] == shown
    assert len(shown) == (1 if name == "share" else 2)


@pytest.mark.parametrize("name", RUNS)
def test_commands_word_figures_as_the_report_does(registered: Path, name: str) -> None:
    shared = ("Reliability", "Step times", "Checkpoints", "What a unit cost")
    figures = [e for e in said("report", registered / name)["figures"] if e["section"] in shared]
    shown = (in_process(word, registered / name, columns=200).out for word in ("goodput", "cost"))
    lines = {" ".join(line.split()) for text in shown for line in text.splitlines()}
    assert {each["section"] for each in figures} >= {"Step times", "Checkpoints"}
    assert {f"{e['label']} {graded(e['text'], e['grade'])}" for e in figures} <= lines


@pytest.mark.usefixtures("registered")
def test_pages_mark_a_cost_with_an_assumed_part() -> None:
    page = "".join(runs_page(PageQuery(path="/runs"), BookReader()).parts)
    marked = re.findall(r'title="([^"]*)">[^<]*<span class="grade">assumed</span>', page)
    assumed = [row for row in outlay.list_runs().rows if row.assumed]
    assert sorted(marked) == sorted(str(row.cost) for row in assumed)


# All runs


Sums = dict[tuple[str, str], int]


def by_unit(rows: Iterable[Mapping[str, Any]], name: str) -> Sums:
    """Return the sums of a column by currency and kind, in micro-units."""
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        amount = row[name] if name.endswith("micros") else micros(row[name])
        sums[row["currency"], row["kind"]] += amount or 0
    return dict(sums)


def books_of_all(registered: Path) -> Iterator[tuple[str, Sums]]:
    """Yield what was spent in all by where that stands."""
    priced = [plain(row) for row in outlay.list_runs().rows if row.cost is not None]
    costs = [row["cost"] | {"kind": row["kind"]} for row in priced]
    yield "runs", by_unit(costs, "micros")
    summary = said("cost", "summary")
    for kind, name in (("cash", "totals"), ("showback", "showback_totals")):
        rows = [{"currency": c, "kind": kind, "total": v} for c, v in summary[name].items()]
        yield f"summary {kind}", by_unit(rows, "total")
    yield "models", by_unit(summary["models"].values(), "total_cost")
    yield "compare", by_unit(said("cost", "compare")["models"].values(), "total_cost")
    yield "digest", by_unit(said("digest", "--since", "2023-11-01T00:00Z")["parts"], "micros")
    for by in ("user", "model", "team"):
        asked = (PageQuery(path="/money", query=[("month", m), ("by", by)]) for m in MONTHS)
        pages = [money_page(query, BookReader()) for query in asked]
        yield f"money {by}", by_unit([row for page in pages for row in page.rows], "cost")
        yield f"allocate {by}", by_unit(allocated(by), "total")
    yield "focus", by_unit(focused(registered.parent), "EffectiveCost")


def allocated(by: str, months: Iterable[str] = MONTHS) -> Iterator[dict[str, Any]]:
    for month in months:
        for kind in ("cash", "showback"):
            words = ("--by", by, "--month", month, "--kind", kind)
            for row in said("cost", "allocate", *words)["rows"]:
                yield row | {"kind": kind}


def focused(directory: Path) -> Iterator[dict[str, Any]]:
    for month in MONTHS:
        for kind in ("cash", "showback"):
            path = directory / f"{month}-{kind}.csv"
            words = ("--by", "user", "--month", month, "--kind", kind, "--focus", path)
            said("cost", "allocate", *words)
            for row in csv.DictReader(io.StringIO(path.read_text())):
                yield row | {"currency": row["BillingCurrency"], "kind": kind}


def test_every_book_has_the_same_total(registered: Path) -> None:
    found = dict(books_of_all(registered))
    found["summary"] = found.pop("summary cash") | found.pop("summary showback")
    assert set(found["runs"]) == {("USD", "cash"), ("EUR", "cash"), ("USD", "showback")}
    assert found == dict.fromkeys(found, found["runs"])


@pytest.fixture
def with_machine(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same runs, most of them on a machine that is paid for in their currency."""
    shutil.copytree(logs.parent / "home", tmp_path / "home")
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "home"))
    words = ("--since", "2023-11-03", "--until", "2023-12-20T01:02:03Z", "--user", "ops")
    said("cost", "machines", "set", "node", "13.777777 USD/h cash", *words)
    return logs


def test_every_book_has_the_rest_of_a_machine(with_machine: Path) -> None:
    found = dict(books_of_all(with_machine))
    found["summary"] = found.pop("summary cash") | found.pop("summary showback")
    in_runs = Counter(found.pop("runs"))
    for without_machines in ("models", "compare"):
        assert found.pop(without_machines) == in_runs
    (machine,) = said("cost", "machines", "show")["machines"]
    assert machine["in_runs"]["micros"] > 0
    whole = dict(in_runs + Counter({("USD", "cash"): machine["in_no_run"]["micros"]}))
    assert found == dict.fromkeys(found, whole)


def test_every_book_has_the_same_total_after_a_month_was_closed(
    with_machine: Path, tmp_path: Path
) -> None:
    """A price is corrected after it: the closed month stays, and the open one has the rest."""
    november = {month: by_unit(allocated("user", [month]), "total") for month in MONTHS}
    said("books", "close", "2023-11", "--reason", "invoices seen")
    run = shutil.copytree(with_machine / "dead", tmp_path / "late")
    words = ("--price", "77 USD/h", "--reason", "typed 7.7")
    said("cost", "correct", run, *words)
    found = dict(books_of_all(with_machine))
    found["summary"] = found.pop("summary cash") | found.pop("summary showback")
    for without_machines in ("runs", "models", "compare"):
        found.pop(without_machines)
    assert found == dict.fromkeys(found, found["summary"])
    after = {month: by_unit(allocated("user", [month]), "total") for month in MONTHS}
    assert after["2023-11"] == november["2023-11"]
    late = said("cost", "allocate", "--by", "user", "--month", "2023-12")["late"]
    assert {(each["origin"], each["run"]) for each in late} == {
        ("2023-11", "dead"), ("2023-11", "node"),
    }  # fmt: skip
    assert sum(each["cost"]["micros"] for each in late) == 0, "a machine is what it is"


# A budget, a spend log, and a rental


@pytest.fixture
def guarded(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a budget that failed once, and a rental with two runs and time in no run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    log = tmp_path / "spend.jsonl"
    guard = outlay.BudgetGuard(50, log, clock=clock, environ={})
    remember_log(log)
    budget = outlay.iso_cost("5 USD", charge="training")
    for fails in (True, False):
        options: dict[str, Any] = {"price": "3.777777 USD/h", "gpus": 0.5, "guard": guard}
        with (
            suppress(ZeroDivisionError),
            outlay.run("m", dir=tmp_path / "m", budget=budget, clock=clock, **options) as run,
        ):
            clock.advance(10 * SECOND + 1)
            for number in run.steps(range(4), tokens=3):
                clock.advance((20 + number) * SECOND + 7)
            with run.span("evaluation"):
                clock.advance(33 * SECOND)
            if fails:
                _ = 1 / 0
        clock.advance(100 * SECOND)
    pod = Rental(
        name="pod", rate="2 USD/h", started=utc_text(clock.wall_ns()),
        deadline=utc_text(clock.wall_ns() + 10 * HOUR),
        vendor=Vendor(name="lambda", list=("true",), terminate=("true",)),
    )  # fmt: skip
    hold = guard.authorize("lab02-pod", "20 USD", rental=pod)
    guard.note("created", hold=hold, detail={"resource": "pod-1"})
    monkeypatch.setenv("INSTANCE_ID", "pod-1")
    for name in ("p1", "p2"):
        clock.advance(1000 * SECOND)
        with outlay.run("p", dir=tmp_path / name, price="2 USD/h", gpus=1, clock=clock) as run:
            for _ in run.steps(range(5)):
                clock.advance(301 * SECOND + 3)
    clock.advance(HOUR)
    guard.settle_rental(guard.holds()[0], Money.parse("3.456789 USD"), "its list is empty")
    collect(open_store(), [tmp_path / name for name in ("m", "p1", "p2")], clock.wall_ns())
    return tmp_path


def test_spend_log_and_cost_books_have_the_same_total(guarded: Path, clock: ManualClock) -> None:
    log = guarded / "spend.jsonl"
    costs = {n: outlay.read_run(guarded / n).figures.cost for n in ("m", "p1", "p2")}
    own, rented = captured_in(log, "m"), captured_in(log, "lab02-pod")
    assert costs["m"] == Money(own)
    month = utc_text(clock.wall_ns())[:7]
    books = BookReader(clock=clock)
    (standing,) = guard_page(PageQuery(path="/guard"), books).document["standings"]
    (shown,) = said("guard", "status", "--log", log)["scopes"]
    guards = tuple(read_guards(polled_logs([log]), []))
    reading = LiveReading(t_ns=1, runs=(), guards=guards, findings=())
    (line,) = [x for x in exposition(reading).splitlines() if x.startswith("outlay_guard_captured")]
    summary = said("cost", "summary")
    digest = said("digest", "--since", month + "-01T00:00Z")
    allocated = said("cost", "allocate", "--by", "user", "--month", month)
    money = money_page(PageQuery(path="/money", query=[("month", month)]), books)
    totals = {
        "guard status": shown["spent"]["micros"],
        "guard page": standing.captured.micros,
        "Prometheus": micros(line.rpartition(" ")[2]),
        "summary": micros(summary["totals"]["USD"]),
        "digest": digest["totals"]["USD"]["micros"],
        "allocate": allocated["totals"][0]["total"]["micros"],
        "money": sum(micros(row["cost"]) or 0 for row in money.rows),
    }
    assert totals == dict.fromkeys(totals, own + rented)
    in_runs = sum(cost.micros for n, cost in costs.items() if n != "m" and cost is not None)
    outside = [each["micros"] for each in digest["parts"] if each["phase"] == "in no run"]
    assert sum(outside) == rented - in_runs
    assert sum(each["micros"] for each in summary["rented_in_no_run"]) == rented - in_runs


def test_budget_states_the_runs_cost_and_what_of_it_is_charged(guarded: Path) -> None:
    figures = outlay.read_run(guarded / "m").figures
    assert figures.cost is not None
    stated = said("budget", guarded / "m")
    written = msgspec.json.decode((guarded / "m" / "budget.json").read_bytes())
    report = said("report", guarded / "m")["budget"]
    page = plain(run_page(PageQuery(path="/run", name=figures.run_id), BookReader()).document)
    for found in (stated, written, report, page["budget"]):
        assert micros(found["cost"]["cost_usd"]) == figures.cost.micros
        charged = micros(found["totals"]["cost_usd"])
        assert micros(found["cost"]["charged_usd"]) == charged
        assert charged == micros(stated["totals"]["cost_usd"])
    assert stated["forecast"] == report["forecast"] == page["budget"]["forecast"]


def test_run_says_of_itself_what_is_read_from_its_log(tmp_path: Path, clock: ManualClock) -> None:
    """While it runs: its summary, the page of what runs now, ``outlay runs --watch``."""
    price = "3.777777 USD/h showback"
    with outlay.run("m", dir=tmp_path, price=price, gpus="1/7", clock=clock) as run:
        for number in run.steps(range(4), tokens=3):
            clock.advance((20 + number) * SECOND + 7)
        summary = run.summary()
        collect(open_store(), [tmp_path], clock.wall_ns())
        now = now_page(PageQuery(path="/"), BookReader(clock=clock))
        figures = outlay.read_run(tmp_path, clock.wall_ns()).figures
    assert figures.cost is not None
    assert flat(figures).items() <= summary.items()
    assert plain(now.document["running"]) == [plain(figures)]
    (row,) = now.rows
    assert (micros(row["cost"]), row["kind"]) == (figures.cost.micros, "showback")
    (burn,) = now.document["burn_per_hour"]
    assert burn == {"kind": "showback", "money": figures.burn}
