"""The shipper on the node: what it ships when, and what it does when storage fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from object_store_stand_in import ObjectStoreStandIn
from outlay import run
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, MissingExtra
from outlay.ledger import RunIdentity, claim_identity, segment_paths
from outlay.proc.exit_record import ExitRecord, exit_path, write_exit
from outlay.shipping import storage
from outlay.shipping.parts import parse_key
from outlay.shipping.shipper import NotHome, Shipper, ShippingTask
from outlay.shipping.storage import fetch_runs, leave_probe, remove_probe, sees_probe
from relay import Relay

SEGMENT = "ledger/00000000000000000001-h-7-r0.jsonl"
FLUSH_S = 240


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A run's directory with a segment of two lines and a half."""
    directory = tmp_path / "node"
    claim_identity(directory, RunIdentity(run_id="abc", model="m", name="m", created_ns=1))
    (directory / SEGMENT).write_bytes(b"one\ntwo\nthr")
    return directory


@pytest.fixture
def shipper(node: Path, store: ObjectStoreStandIn, clock: ManualClock) -> Iterator[Shipper]:
    opened = Shipper(node, store.url, interval_s=30, clock=clock)
    yield opened
    opened.close()


def wait(shipper: Shipper) -> None:
    assert shipper._thread is not None
    shipper._thread.join()


def home(store: ObjectStoreStandIn, tmp_path: Path) -> Path:
    """Fetch the only run, and return its directory."""
    (fetched,) = fetch_runs(store.url, tmp_path / "home").runs
    return fetched.dir


def test_a_round_ships_whole_lines_and_the_identity(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    shipper.poll()
    wait(shipper)
    here = home(store, tmp_path)
    assert (here / SEGMENT).read_bytes() == b"one\ntwo\n"
    assert (here / "ledger/run.json").read_bytes() == (node / "ledger/run.json").read_bytes()


def test_a_flush_ships_a_torn_line_and_states_that_all_is_home(
    shipper: Shipper, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    assert shipper.flush(FLUSH_S) == ()
    (fetched,) = fetch_runs(store.url, tmp_path / "home").runs
    assert fetched.is_complete
    assert (fetched.dir / SEGMENT).read_bytes() == b"one\ntwo\nthr"


def test_what_grows_after_a_flush_is_not_complete_until_the_next(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, clock: ManualClock, tmp_path: Path
) -> None:
    shipper.flush(FLUSH_S)
    with (node / SEGMENT).open("ab") as stream:
        stream.write(b"ee\nfour\n")
    clock.advance(30 * 10**9)
    shipper.poll()
    wait(shipper)
    (fetched,) = fetch_runs(store.url, tmp_path / "home").runs
    assert not fetched.is_complete
    assert (fetched.dir / SEGMENT).read_bytes() == b"one\ntwo\nthree\nfour\n"
    shipper.flush(FLUSH_S)
    (fetched,) = fetch_runs(store.url, tmp_path / "home").runs
    assert fetched.is_complete


def test_a_round_is_due_once_per_interval(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, clock: ManualClock
) -> None:
    shipper.poll()
    wait(shipper)
    asked = len(store.requests)
    with (node / SEGMENT).open("ab") as stream:
        stream.write(b"ee\n")
    clock.advance(29 * 10**9)
    shipper.poll()
    wait(shipper)
    assert len(store.requests) == asked
    clock.advance(10**9)
    shipper.poll()
    wait(shipper)
    assert len(store.requests) == asked + 1


def test_without_news_nothing_is_asked(shipper: Shipper, store: ObjectStoreStandIn) -> None:
    shipper.flush(FLUSH_S)
    asked = len(store.requests)
    shipper.flush(FLUSH_S)
    assert len(store.requests) == asked


def test_a_restarted_shipper_continues_where_the_last_one_was(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    shipper.flush(FLUSH_S)
    shipper.close()
    with (node / SEGMENT).open("ab") as stream:
        stream.write(b"ee\n")
    again = Shipper(node, store.url)
    again.flush(FLUSH_S)
    again.close()
    parts = [parse_key(path.removeprefix("/books/")) for path in store.asked("PUT")]
    ranges = [(part.start, part.end) for part in parts if part and part.file == SEGMENT]
    assert ranges == [(0, 11), (11, 14)]
    assert (home(store, tmp_path) / SEGMENT).read_bytes() == b"one\ntwo\nthree\n"


def test_to_another_place_everything_is_shipped(
    shipper: Shipper, node: Path, tmp_path: Path
) -> None:
    shipper.flush(FLUSH_S)
    shipper.close()
    again = Shipper(node, str(tmp_path / "kept"), name="my-run")
    again.flush(FLUSH_S)
    again.close()
    (fetched,) = fetch_runs(str(tmp_path / "kept"), tmp_path / "home").runs
    assert (fetched.name, fetched.is_complete) == ("my-run", True)


def test_every_file_that_reading_a_run_needs_is_shipped(
    store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    write_exit(exit_path(node), ExitRecord(ticket="t", returncode=0))
    write_exit(exit_path(node, 1), ExitRecord(ticket="t", returncode=0))
    (node / "budget.json").write_text("{}")
    (node / "slurm_times.jsonl").write_text("{}\n")
    (node / "sweep.log").write_text("epoch 1")
    (node / "output.txt").write_text("more")
    (node / "checkpoint.pt").write_bytes(b"large")
    shipper = Shipper(node, store.url, also=("output.*",))
    shipper.flush(FLUSH_S)
    shipper.close()
    here = home(store, tmp_path)
    files = {f.relative_to(here).as_posix() for f in here.rglob("*") if f.is_file()}
    assert files - {"shipped.json", "fetched.keys"} == {
        "budget.json", "ledger/run.json", SEGMENT, "output.txt", "slurm_times.jsonl",
        "sweep.log", "sweep_exit.json", "sweep_exit.node1.json",
    }  # fmt: skip


def test_the_last_version_of_a_file_that_is_replaced_counts(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    for text in ("1", "2", "1"):
        (node / "budget.json").write_text(text)
        shipper.flush(FLUSH_S)
        assert (home(store, tmp_path) / "budget.json").read_text() == text


def test_a_clock_that_was_set_back_does_not_bring_an_old_version_home(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    for seconds, text in ((2000, "1"), (1000, "2")):
        (node / "budget.json").write_text(text)
        os.utime(node / "budget.json", (seconds, seconds))
        shipper.flush(FLUSH_S)
    assert (home(store, tmp_path) / "budget.json").read_text() == "2"


def test_a_segment_that_was_deleted_and_written_anew_comes_home_beside_it(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    shipper.flush(FLUSH_S)
    (node / SEGMENT).unlink()
    (node / SEGMENT).write_bytes(b"one\ngap after the loss\n")
    shipper.flush(FLUSH_S)
    fetched = fetch_runs(store.url, tmp_path / "home")
    contents = sorted(path.read_bytes() for path in segment_paths(fetched.runs[0].dir))
    assert contents == [b"one\ngap after the loss\n", b"one\ntwo\nthr"]
    assert (fetched.findings, fetched.runs[0].is_complete) == ([], True)


# When storage fails


def test_a_failure_is_kept_logged_once_and_tried_again_later_and_later(
    shipper: Shipper,
    store: ObjectStoreStandIn,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.is_down = True
    tries: list[int] = []
    for second in range(300):
        shipper.poll()
        wait(shipper)
        tries += [second] if len(store.requests) > len(tries) else []
        clock.advance(10**9)
    assert tries == [0, 30, 90, 210]
    assert "503" in shipper.trouble
    assert shipper.failures == 4
    assert len(caplog.records) == 1
    store.is_down = False
    assert shipper.flush(FLUSH_S) == ()
    assert (shipper.trouble, shipper.failures) == ("", 0)


def test_a_flush_says_what_is_not_home(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shipper.poll()
    wait(shipper)
    store.is_down = True
    write_exit(exit_path(node), ExitRecord(ticket="t", returncode=0))
    size = exit_path(node).stat().st_size
    left = [
        NotHome(file=SEGMENT, shipped_bytes=8, size_bytes=11),
        NotHome(file="sweep_exit.json", shipped_bytes=0, size_bytes=size),
    ]
    assert shipper.flush(3) == tuple(left)
    assert f"{SEGMENT} (8 of 11 bytes)" in caplog.text


def test_uploads_that_are_cut_in_the_middle_lose_nothing(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    content = b"".join(b"%d\n" % number for number in range(300_000))
    (node / SEGMENT).write_bytes(content)
    store.to_cut = 5
    assert shipper.flush(FLUSH_S) == ()
    assert store.to_cut == 0
    assert (home(store, tmp_path) / SEGMENT).read_bytes() == content


def test_a_storage_that_is_silent_holds_up_neither_poll_nor_flush(
    node: Path, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    with Relay(store.port) as relay:
        shipper = Shipper(node, relay.url(store.url), interval_s=0.001)
        relay.silence()
        shipper.poll()
        assert [each.file for each in shipper.flush(0.1)] == [SEGMENT, "ledger/run.json"]
        shipper.poll()
        assert store.requests == []
        relay.answer()
        assert shipper.flush(FLUSH_S) == ()
        shipper.close()
    assert (home(store, tmp_path) / SEGMENT).read_bytes() == b"one\ntwo\nthr"


def test_credentials_that_may_only_write_suffice(
    shipper: Shipper, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    store.is_write_only = True
    assert shipper.flush(FLUSH_S) == ()
    assert {method for method, _ in store.requests} == {"PUT"}
    store.is_write_only = False
    assert (home(store, tmp_path) / SEGMENT).read_bytes() == b"one\ntwo\nthr"


def test_only_one_shipper_of_a_directory_works(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    shipper.flush(FLUSH_S)
    other = Shipper(node, str(tmp_path / "kept"))
    assert other.flush(FLUSH_S) == ()
    assert not (tmp_path / "kept").exists()
    shipper.close()
    other.flush(FLUSH_S)
    other.close()
    assert (tmp_path / "kept" / "abc").is_dir()
    assert store.asked("PUT")


@pytest.mark.parametrize(
    "damage", ["{torn", '{"to": "", "files": {"x": {"name": "x", "mark": "zz"}}}']
)
def test_damaged_progress_ships_everything_again(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path, damage: str
) -> None:
    shipper.flush(FLUSH_S)
    shipper.close()
    (node / "ledger/shipping.json").write_text(damage)
    again = Shipper(node, store.url)
    assert again.flush(FLUSH_S) == ()
    again.close()
    assert fetch_runs(store.url, tmp_path / "home").findings == []


def test_progress_that_cannot_be_kept_holds_nothing_up(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    (node / "ledger" / "shipping.json").mkdir()
    (node / "ledger" / "shipping.lock").mkdir()
    assert shipper.flush(FLUSH_S) == ()
    assert fetch_runs(store.url, tmp_path / "home").runs[0].is_complete


def test_a_run_on_two_nodes_is_complete_when_both_have_shipped(
    shipper: Shipper, store: ObjectStoreStandIn, node: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    claim_identity(other, RunIdentity(run_id="abc", model="m", name="m", created_ns=1))
    segment = other / "ledger" / "00000000000000000002-i-8-r1.jsonl"
    segment.write_bytes(b"one\ntwo")
    second = Shipper(other, store.url, node=1)
    second.poll()
    wait(second)
    assert shipper.flush(FLUSH_S) == ()
    (run,) = fetch_runs(store.url, tmp_path / "home").runs
    assert not run.is_complete
    assert second.flush(FLUSH_S) == ()
    second.close()
    (run,) = fetch_runs(store.url, tmp_path / "home").runs
    assert run.is_complete
    assert (run.dir / "ledger" / segment.name).read_bytes() == b"one\ntwo"
    assert (run.dir / SEGMENT).read_bytes() == (node / SEGMENT).read_bytes()


# What a caller states


@pytest.mark.parametrize("to", ["", " ", "s3:bucket", "s3://", "s3://a b"])
def test_a_destination_that_is_none_is_refused(to: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="s3://bucket/runs"):
        Shipper(tmp_path, to)


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a b", "x" * 201])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="letters, digits"):
        Shipper(tmp_path, str(tmp_path), name=name)


def test_without_fsspec_a_url_is_refused_and_a_directory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"outlay\[ship\]"):
        Shipper(tmp_path, "s3://bucket/runs")
    Shipper(tmp_path, tmp_path.as_uri())


def test_an_invalid_variable_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OUTLAY_SHIP_EVERY": "0s", "OUTLAY_SHIP_TO": "s3:bucket"}.items():
        monkeypatch.setenv("OUTLAY_SHIP_TO", str(tmp_path / "kept"))
        monkeypatch.setenv(name, value)
        with pytest.raises(InvalidValue, match=name):
            run("m", dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_variables_state_destination_and_interval() -> None:
    assert ShippingTask.of({}) is None
    stated = ShippingTask.of({"OUTLAY_SHIP_TO": "memory://x", "OUTLAY_SHIP_EVERY": "2m"})
    assert stated == ShippingTask(to="memory://x", interval_s=120)


def test_a_login_in_a_url_is_neither_logged_nor_kept(
    node: Path, store: ObjectStoreStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    store.is_down = True
    url = store.url.replace("//", "//ana:secret@")
    shipper = Shipper(node, url)
    assert shipper.flush(0.5) != ()
    shipper.close()
    caplog.set_level(logging.DEBUG)
    kept = b"".join(path.read_bytes() for path in node.rglob("*") if path.is_file())
    assert "secret" not in caplog.text + shipper.trouble
    assert b"secret" not in kept


def test_a_probe_is_seen_where_the_directory_is_shared(tmp_path: Path) -> None:
    name = leave_probe(tmp_path / "shared")
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    assert sees_probe(tmp_path / "link", name)
    assert not sees_probe(tmp_path / "other", name)
    (tmp_path / "other").mkdir()
    assert not sees_probe(tmp_path / "other", name)
    remove_probe(tmp_path / "shared", name)
    assert not sees_probe(tmp_path / "link", name)


def test_the_format_of_progress_is_stable(shipper: Shipper, node: Path) -> None:
    shipper.flush(FLUSH_S)
    kept = msgspec.json.decode((node / "ledger/shipping.json").read_bytes())
    assert kept.keys() == {"v", "to", "files"}
    assert kept["files"][SEGMENT] == {
        "name": SEGMENT, "offset": 11, "mark": b"one\ntwo\nthr".hex(),
    }  # fmt: skip
