"""A spend log that was deleted, rolled back or written anew: refused until a person accepts it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from command_line import in_process
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import NOTHING, Head, encode_slot, link_entries, scan
from outlay.guard.entries import AnyEntry, Held, Simple
from outlay.guard.errors import BudgetGuardExceeded, SpendLogAltered, SpendLogRolledBack
from outlay.guard.index.head_file import head_path
from outlay.guard.spend_log import (
    FileSpendLog,
)
from outlay.store import outlay_home

TS = "2026-11-15T10:00:00.000000Z"
MANIFEST = '{"currency": "USD", "ceiling_usd": 5.00, "team": "nlp"}'


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """A log of five dollars of which four are held."""
    path = tmp_path / "books" / "spend.jsonl"
    guard = BudgetGuard(5, path, environ={})
    guard.authorize("a", 1)
    guard.authorize("b", 3)
    return path


def ask(path: Path) -> None:
    BudgetGuard(5, path, environ={}).authorize("more", 2)


def forget_seen_heads() -> None:
    shutil.rmtree(outlay_home() / "heads", ignore_errors=True)


def rewrite(path: Path, entries: Iterable[AnyEntry]) -> None:
    """Write a log and its head as if these entries were all there ever was."""
    blob = link_entries(NOTHING, entries, ts=TS).blob
    path.write_bytes(blob)
    link = scan(str(path), blob, NOTHING.link).link
    head_path(path).write_bytes(encode_slot(Head(link.offset, link.hash)))


def entries_of(path: Path) -> list[AnyEntry]:
    return [line for line in FileSpendLog(path).lines() if not isinstance(line, Simple)]


def delete_both(path: Path) -> None:
    path.unlink()
    head_path(path).unlink()


def roll_back_both(path: Path) -> None:
    rewrite(path, entries_of(path)[:1])


def rewrite_with_less(path: Path) -> None:
    first, second = entries_of(path)
    rewrite(path, [first, msgspec.structs.replace(second, estimated=Decimal("0.01"))])


def rewrite_longer(path: Path) -> None:
    entries = [msgspec.structs.replace(entry, estimated=Decimal(0)) for entry in entries_of(path)]
    more = [msgspec.structs.replace(entries[0], hold=f"{number:012x}") for number in range(5)]
    rewrite(path, [*entries, *more])


CHANGES = [delete_both, roll_back_both, rewrite_with_less, rewrite_longer]


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_behind_what_this_machine_has_seen_is_refused(log_path: Path, change: object) -> None:
    assert callable(change)
    change(log_path)
    for _ in range(2):
        with pytest.raises(SpendLogRolledBack, match="outlay guard accept --reason"):
            ask(log_path)
    with pytest.raises(SpendLogRolledBack):
        _ = BudgetGuard(5, log_path, environ={}).remaining


@pytest.mark.parametrize("change", CHANGES)
def test_verify_exits_with_3(log_path: Path, change: object) -> None:
    assert callable(change)
    change(log_path)
    assert in_process("guard", "verify", "--log", log_path).code == 3


def test_a_refused_log_is_left_as_it_is(log_path: Path) -> None:
    delete_both(log_path)
    with pytest.raises(SpendLogRolledBack):
        ask(log_path)
    assert list(log_path.parent.iterdir()) == []


def test_the_message_names_git_as_a_cause(log_path: Path) -> None:
    roll_back_both(log_path)
    with pytest.raises(SpendLogRolledBack, match=r"kept in git.*checkout of an older commit"):
        ask(log_path)


def test_reading_the_log_remembers_what_was_seen(log_path: Path) -> None:
    forget_seen_heads()
    assert in_process("guard", "status", "--log", log_path).code == 0
    roll_back_both(log_path)
    with pytest.raises(SpendLogRolledBack):
        ask(log_path)


def test_a_link_is_the_same_log_to_what_was_seen(log_path: Path, tmp_path: Path) -> None:
    roll_back_both(log_path)
    link = tmp_path / "link.jsonl"
    link.symlink_to(log_path)
    with pytest.raises(SpendLogRolledBack):
        ask(link)


def test_a_hard_link_elsewhere_has_no_head_and_is_refused(log_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.hardlink_to(log_path)
    with pytest.raises(SpendLogRolledBack, match=r"spend\.head.*missing"):
        ask(other)


def test_a_home_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "file"))
    guard = BudgetGuard(5, tmp_path / "spend.jsonl", environ={})
    guard.authorize("a", 1)
    assert guard.verify().sound


class TestTheManifest:
    """It names the log's first line, for machines that have never seen the log."""

    @pytest.fixture
    def log_path(self, tmp_path: Path) -> Path:
        path = tmp_path / "spend.jsonl"
        (tmp_path / "manifest.json").write_text(MANIFEST)
        BudgetGuard(5, path, environ={}).authorize("a", 4)
        forget_seen_heads()
        return path

    def test_it_keeps_every_other_key_as_it_was(self, log_path: Path) -> None:
        manifest = json.loads((log_path.parent / "manifest.json").read_text())
        (first,) = manifest.pop("first_lines").items()
        assert first == ("spend.jsonl", FileSpendLog(log_path).head())
        assert manifest == json.loads(MANIFEST)

    @pytest.mark.parametrize("change", [delete_both, rewrite_longer])
    def test_a_restarted_log_is_refused(self, log_path: Path, change: object) -> None:
        assert callable(change)
        change(log_path)
        forget_seen_heads()
        with pytest.raises(SpendLogRolledBack, match=r"manifest\.json names another first line"):
            ask(log_path)

    def test_once_accepted_it_names_the_new_first_line(self, log_path: Path) -> None:
        delete_both(log_path)
        BudgetGuard(5, log_path, environ={}).accept("started over")
        ask(log_path)
        forget_seen_heads()
        ask(log_path)

    def test_a_second_log_beside_it_has_a_first_line_of_its_own(self, log_path: Path) -> None:
        other = log_path.with_name("other.jsonl")
        ask(other)
        ask(other)
        manifest = json.loads((log_path.parent / "manifest.json").read_text())
        assert set(manifest["first_lines"]) == {"spend.jsonl", "other.jsonl"}


class TestExpecting:
    """A hash from any old report finds out what this machine never saw."""

    def head(self, path: Path) -> str:
        said = in_process("guard", "status", "--log", path, "--json")
        return str(said.json["head"])

    def test_status_and_verify_show_the_head(self, log_path: Path) -> None:
        head = FileSpendLog(log_path).head()
        assert self.head(log_path) == head
        shown = f"head {head[:12]} ("
        assert shown in in_process("guard", "status", "--log", log_path).out
        assert shown in in_process("guard", "verify", "--log", log_path).out
        assert in_process("guard", "verify", "--log", log_path, "--json").json["head"] == head

    def test_the_head_of_an_old_report_is_still_there(self, log_path: Path) -> None:
        old = self.head(log_path)
        BudgetGuard(5, log_path, environ={}).authorize("c", 1)
        words = ("guard", "verify", "--log", log_path, "--expect")
        assert in_process(*words, old).code == 0
        assert in_process(*words, old[:12]).code == 0

    @pytest.mark.parametrize("change", CHANGES[1:])
    def test_a_rollback_is_detected_on_a_machine_that_never_saw_the_log(
        self, log_path: Path, change: object
    ) -> None:
        assert callable(change)
        old = self.head(log_path)
        change(log_path)
        forget_seen_heads()
        assert in_process("guard", "verify", "--log", log_path).code == 0
        said = in_process("guard", "verify", "--log", log_path, "--expect", old)
        assert said.code == 3
        assert "rolled back or rewritten" in said.out + said.err

    @pytest.mark.parametrize("hash_", ["abc", "not a hash at all"])
    def test_an_invalid_hash_is_a_wrong_argument(self, log_path: Path, hash_: str) -> None:
        assert in_process("guard", "verify", "--log", log_path, "--expect", hash_).code == 2


class TestAccepting:
    """A person may take the log for what it is; a line says who and why."""

    def test_a_line_names_who_why_and_what_was_missing(self, log_path: Path) -> None:
        lost = FileSpendLog(log_path).head()
        roll_back_both(log_path)
        said = in_process("guard", "accept", "--reason", "restored from Monday", "--log", log_path)
        assert said.code == 0
        line = json.loads(log_path.read_text().splitlines()[-1])
        assert (line["event"], line["detail"]["reason"]) == ("accepted", "restored from Monday")
        assert " on " in line["detail"]["by"]
        assert "the file ends at byte" in line["detail"]["found"]
        assert line["detail"]["instead_of"] == lost

    @pytest.mark.parametrize("change", CHANGES)
    def test_the_log_is_usable_and_sound_again(self, log_path: Path, change: object) -> None:
        assert callable(change)
        change(log_path)
        BudgetGuard(5, log_path, environ={}).accept("restored")
        ask(log_path)
        assert FileSpendLog(log_path).verify().sound

    def test_without_its_head_it_is_accepted_too(self, log_path: Path) -> None:
        head_path(log_path).unlink()
        guard = BudgetGuard(5, log_path, environ={})
        guard.accept("git leaves it out")
        guard.authorize("c", 1)
        assert guard.held == 5.0

    def test_every_status_shows_it(self, log_path: Path) -> None:
        roll_back_both(log_path)
        guard = BudgetGuard(5, log_path, environ={})
        guard.accept("restored from Monday")
        assert "accepted the log at" in str(guard.findings()[0])
        assert "restored from Monday" in str(guard.findings()[0])

    def test_it_changes_no_ceiling(self, log_path: Path) -> None:
        roll_back_both(log_path)
        in_process("guard", "accept", "--reason", "restored", "--log", log_path)
        assert BudgetGuard.of_log(log_path, environ={}).remaining == 4.0

    def test_a_process_that_saw_the_lost_lines_accepts_the_log(self, log_path: Path) -> None:
        live = BudgetGuard(5, log_path, environ={})
        assert live.held == 4.0
        roll_back_both(log_path)
        BudgetGuard(5, log_path, environ={}).accept("restored")
        assert live.held == 1.0

    def test_a_machine_that_saw_further_lines_still_refuses(self, log_path: Path) -> None:
        kept = log_path.read_bytes(), head_path(log_path).read_bytes()
        BudgetGuard(5, log_path, environ={}).authorize("c", 1)
        seen = shutil.copytree(outlay_home() / "heads", outlay_home() / "other")
        roll_back_both(log_path)
        forget_seen_heads()
        log_path.write_bytes(kept[0])
        head_path(log_path).write_bytes(kept[1])
        assert BudgetGuard(5, log_path, environ={}).held == 4.0
        roll_back_both(log_path)
        BudgetGuard(5, log_path, environ={}).accept("restored")
        forget_seen_heads()
        seen.rename(outlay_home() / "heads")
        with pytest.raises(SpendLogRolledBack):
            ask(log_path)

    def test_a_log_in_order_has_nothing_to_accept(self, log_path: Path) -> None:
        before = log_path.read_bytes()
        with pytest.raises(InvalidValue, match="a log in order"):
            BudgetGuard(5, log_path, environ={}).accept("just so")
        assert log_path.read_bytes() == before

    def test_an_empty_reason_is_refused(self, log_path: Path) -> None:
        roll_back_both(log_path)
        assert in_process("guard", "accept", "--reason", " ", "--log", log_path).code == 2

    def test_an_edited_line_cannot_be_accepted(self, log_path: Path) -> None:
        log_path.write_bytes(
            log_path.read_bytes().replace(b'"estimated":3.00', b'"estimated":0.10')
        )
        with pytest.raises(SpendLogAltered, match="hash does not match"):
            BudgetGuard(5, log_path, environ={}).accept("please")


class TestRecheckedDecisions:
    """Verify judges every hold again, under the policy that its own line states."""

    def verify(self, path: Path, entries: Iterable[AnyEntry]) -> list[tuple[int, str]]:
        path.parent.mkdir(exist_ok=True, parents=True)
        rewrite(path, entries)
        forget_seen_heads()
        findings = FileSpendLog(path).verify().findings
        return [(finding.line, finding.message) for finding in findings]

    def held(self, hold: str, amount: str, **more: object) -> Held:
        stated: dict[str, object] = {"day": "2026-11-15", "ceiling": Decimal(5)} | more
        return msgspec.convert(
            {
                "kind": "hold", "v": 1, "ts": TS, "op_label": "a", "currency": "USD", "lab": "02",
                "estimated": Decimal(amount), "hold": hold, **stated,
            },
            Held,
        )  # fmt: skip

    def test_a_hold_that_passed_its_ceiling_is_a_finding(self, tmp_path: Path) -> None:
        entries = [self.held("h", "4"), self.held("i", "1.5"), self.held("j", "0")]
        (first, _) = self.verify(tmp_path / "spend.jsonl", entries)
        assert first == (2, "it should have been refused: whole came to 5.50 USD of 5")

    @pytest.mark.parametrize("scope", ["project 02", "day 2026-11-15", "month 2026-11"])
    def test_a_hold_that_passed_a_cap_is_a_finding(self, tmp_path: Path, scope: str) -> None:
        caps = {scope: Decimal(1)}
        entries = [self.held("h", "1", caps=caps), self.held("i", "0.5", caps=caps)]
        found = self.verify(tmp_path / "spend.jsonl", entries)
        assert found == [(2, f"it should have been refused: {scope} came to 1.50 USD of 1")]

    def test_a_ceiling_above_the_recorded_one_is_a_finding(self, tmp_path: Path) -> None:
        entries = [self.held("h", "1"), self.held("i", "1", ceiling=Decimal(50))]
        found = self.verify(tmp_path / "spend.jsonl", entries)
        assert found == [(2, "its ceiling is 50 after one of 5.00, which nobody raised")]

    def test_a_day_that_was_over_is_a_finding(self, tmp_path: Path) -> None:
        entries = [self.held("h", "1"), self.held("i", "1", day="2026-11-14")]
        found = self.verify(tmp_path / "spend.jsonl", entries)
        assert found == [(2, "it counts on 2026-11-14, after 2026-11-15 had begun")]

    def test_whatever_the_guard_itself_allowed_is_no_finding(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(
            5, tmp_path / "spend.jsonl", caps={"02": 3, "buffer": 5}, day_usd=4, clock=clock,
            environ={},
        )  # fmt: skip
        guard.extend(guard.authorize("lab02-a", 1), 1)
        guard.record_actual("lab02-a", 7)
        with pytest.raises(BudgetGuardExceeded):
            guard.authorize("b", 1)
        BudgetGuard(20, tmp_path / "spend.jsonl", clock=clock, environ={}).authorize("b", 1)
        assert guard.verify().findings == ()
