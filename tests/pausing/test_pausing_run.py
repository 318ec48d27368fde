"""A training that a price pauses and resumes is the training that was never disturbed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import command_line
import outlay
from fake_vendor import FakeVendor, as_json, serving
from offer_builder import store_without_prices
from outlay.clock import SYSTEM, utc_datetime
from outlay.pausing.price_readings import PriceUnreadable, price_of_offer, stored_history
from outlay.record.supervision import PAUSES, STARTS, SupervisedRun, Supervision
from outlay.report.document import Table
from outlay.report.run_document import run_document, verdict
from outlay.units import Rate, Unit
from paused_training import ABOVE, DOUBLE, FIXED, STEPS, THRESHOLDS, PausedTraining, ended
from vendor_shapes import lambda_answer, lambda_type
from waiting import until

OFFER = "lambda:2xA6000"


@pytest.mark.parametrize(
    ("pauses", "stopped", "micros", "policy"),
    [(5, None, 0, FIXED), (2, "3.6 USD/h", 3_600_000, FIXED), (2, None, 0, DOUBLE)],
    ids=["pay-per-use", "stopped-price", "double-threshold"],
)
def test_a_training_that_was_paused_and_resumed_is_the_one_that_was_not(
    pauses: int, stopped: str | None, micros: int, policy: tuple[str, ...], tmp_path: Path
) -> None:
    undisturbed = PausedTraining(tmp_path / "undisturbed", slow_starts=0)
    undisturbed.run_undisturbed()
    paused = PausedTraining(tmp_path / "paused", slow_starts=pauses, stopped=stopped, policy=policy)
    paused.root.mkdir()
    paused.price("36 USD/h")
    with ended(paused):
        process = paused.start()
        for start in range(pauses):
            paused.pause_and_resume(start, f"{35 - start} USD/h")
        assert process.wait() == 0
    once, again = undisturbed.figures(), paused.figures()
    assert np.array_equal(paused.weights(), undisturbed.weights())
    assert (again.figures.steps, again.figures.tokens) == (STEPS, once.figures.tokens)
    statuses = [attempt.end.status for attempt in again.view.timeline.attempts]
    assert statuses == ["paused"] * pauses + ["completed"]
    assert again.cost.cost.micros == paused.cost_by_hand(micros)
    assert again.cost.cost.micros == paused.captured_micros()
    assert paused.open_holds() == set()
    assert not paused.is_doubled()
    assert paused.decisions().count("pause") == pauses
    assert paused.decisions().count("run") == pauses + 1
    at_most = f"36.00 USD/h is at most the threshold of {THRESHOLDS[policy]}"
    assert paused.decided()[0] == ("starts", at_most)


def check_one_pause(training: PausedTraining) -> None:
    """Have it paused once; each attempt costs what its price was at its start."""
    training.price("36 USD/h")
    with ended(training):
        process = training.start()
        training.pause_and_resume(0, "35 USD/h")
        assert process.wait() == 0
    attempts = training.figures().view.timeline.attempts
    assert [attempt.end.status for attempt in attempts] == ["paused", "completed"]
    prices = [attempt.header.price.micros_per_hour for attempt in attempts]
    assert prices == [36 * 10**6, 35 * 10**6]
    assert training.captured_micros() == training.cost_by_hand()
    assert training.figures().figures.steps == STEPS


def test_a_command_says_its_price(tmp_path: Path) -> None:
    options = ("--price-command", shlex.join(["cat", str(tmp_path / "price")]))
    check_one_pause(PausedTraining(tmp_path, slow_starts=1, price_options=options))


@dataclass
class VendorPricedTraining(PausedTraining):
    """A training whose price is asked from the source of its offer."""

    vendor: FakeVendor = field(kw_only=True)

    def price(self, text: str) -> None:
        cents = round(Rate.parse(text).micros_per_hour / 10_000)
        self.vendor.answers = [as_json(lambda_answer(lambda_type(price_cents_per_hour=cents)))]


def test_the_source_of_its_offer_says_its_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMBDA_API_KEY", "key")
    store_without_prices()
    with serving() as vendor:
        monkeypatch.setenv("OUTLAY_LAMBDA_URL", vendor.url)
        training = VendorPricedTraining(
            tmp_path, slow_starts=1, vendor=vendor, offer=OFFER, price_options=(), policy=DOUBLE
        )
        check_one_pause(training)


def test_a_timeline_shows_what_was_waited_for_before_each_attempt(tmp_path: Path) -> None:
    paused = PausedTraining(tmp_path / "paused", slow_starts=1)
    paused.root.mkdir()
    paused.price(ABOVE)
    with ended(paused):
        process = paused.start()
        until(lambda: paused.decisions()[-1:] == ["wait"], "it to wait for its price")
        paused.price("36 USD/h")
        until(lambda: paused.has_stepped(0), "it to train")
        paused.price(ABOVE)
        until(lambda: paused.waits_after("pause"), "it to wait again")
        paused.price("35 USD/h")
        assert process.wait() == 0
    timeline = paused.timeline()
    shown = [decision for decision, _ in groupby(decision for decision, _ in timeline)]
    assert shown == ["waits", "starts", "pauses", "waits", "starts"]
    assert timeline == paused.decided()


def test_below_the_timeline_of_a_report_stands_why_it_started_and_paused(tmp_path: Path) -> None:
    run = SupervisedRun(run_dir=tmp_path, name="x", command=["true"])
    log = Supervision(run, {})
    log.note(f"{STARTS}it is cheap")
    log.recorder.note(f"{PAUSES}it is dear")
    log.end("paused", f"{PAUSES}it is dear")
    report = run_document(outlay.read_run(tmp_path))
    timeline = next(section for section in report.sections if section.title == "Timeline")
    (table,) = (block for block in timeline.blocks if isinstance(block, Table))
    assert [row[1:] for row in table.rows] == [("starts", "it is cheap"), ("pauses", "it is dear")]
    assert "It was paused: it is dear; it can continue." in verdict(outlay.read_run(tmp_path))


def started_late(root: Path, *command: str) -> command_line.Outcome:
    """Run a command that is due in minutes of which all but seconds are work.

    However slow its start is, the deadline is ahead and soon leaves no time to wait.
    """
    deadline = utc_datetime(SYSTEM.wall_ns() + 600 * 10**9).isoformat()
    return command_line.outlay(
        "guard", "run", "--act", "--label", "lab02-x", "--log", root / "spend.jsonl",
        "--ceiling", "9", "--dir", root / "run", "--offers", "acme:1xH100",
        "--below", "40 USD/h", "--price-file", root / "price", "--deadline", deadline,
        "--work", "597s", "--poll", "100ms", "--pay-per-use", "--", *command,
    )  # fmt: skip


def test_at_the_last_moment_it_starts_at_whatever_price(tmp_path: Path) -> None:
    (tmp_path / "price").write_text(ABOVE)
    ran = started_late(tmp_path, "sh", "-c", "exit 5")
    assert ran.code == 5
    assert "starting it at 72.00 USD/h: the last moment at which it can finish in time" in ran.err
    (tmp_path / "price").unlink()
    again = started_late(tmp_path, "true")
    assert again.code == 0
    assert "its price cannot be read (No such file or directory): counting 72.00" in again.err
    attempts = outlay.read_run(tmp_path / "run").view.timeline.attempts
    prices = [each.header.price.micros_per_hour for each in attempts if each.header.price]
    assert prices == [72 * 10**6] * 2


def test_the_named_source_is_asked_for_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMBDA_API_KEY", "key")
    store_without_prices()
    cents = (160, 120)
    for price in cents:
        answer = lambda_answer(lambda_type(price_cents_per_hour=price))
        with serving(as_json(answer)) as vendor:
            monkeypatch.setenv("OUTLAY_LAMBDA_URL", vendor.url)
            before_ns = SYSTEM.wall_ns()
            read = price_of_offer(OFFER, Unit(), {}, fetch=True)
        assert read.price == Unit().rate(price * 10_000)
        assert read.at_ns >= before_ns
    with pytest.raises(PriceUnreadable):  # The vendor is gone.
        price_of_offer(OFFER, Unit(), {}, fetch=True)
    assert price_of_offer(OFFER, Unit(), {}, fetch=False) == read
    history = stored_history(OFFER, Unit(), {}, since_ns=0)
    assert [change.price for change in history] == [Unit().rate(c * 10_000) for c in cents]
