"""Fetching shipped runs, and ``outlay import runs URL``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import in_process as outlay
from object_store_stand_in import ObjectStoreStandIn
from outlay import run
from outlay.clock import SYSTEM
from outlay.files import open_own
from outlay.ledger import segment_paths
from outlay.locks import FileLock
from outlay.runs.reading import read_figures
from outlay.shipping import storage
from outlay.shipping.parts import Part
from outlay.shipping.shipper import Shipper
from outlay.shipping.storage import DirectoryStorage, fetch_runs

FILE = "ledger/00000000000000000001-h-7-r0.jsonl"
FLUSH_S = 240


@pytest.fixture
def kept(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "kept")


def put(kept: DirectoryStorage, start: int, content: bytes, file: str = FILE) -> Part:
    part = Part.of("abc", file, start, content)
    kept.put(part.key, content)
    return part


def fetch(tmp_path: Path) -> tuple[bytes, list[str]]:
    """Return the file that came home, and what was found."""
    fetched = fetch_runs(str(tmp_path / "kept"), tmp_path / "home")
    content = (tmp_path / "home" / "abc" / FILE).read_bytes()
    return content, [finding.message for finding in fetched.findings]


def test_a_gap_is_a_finding_and_closes_when_its_part_comes(
    kept: DirectoryStorage, tmp_path: Path
) -> None:
    put(kept, 0, b"one\n")
    put(kept, 8, b"three\n")
    content, found = fetch(tmp_path)
    assert content == b"one\n"
    assert found == [
        "bytes 4 to 8 have not come home: what was recorded after them is left out until they do"
    ]
    put(kept, 4, b"two\n")
    assert fetch(tmp_path) == (b"one\ntwo\nthree\n", [])


def test_parts_that_overlap_and_agree_are_joined(kept: DirectoryStorage, tmp_path: Path) -> None:
    put(kept, 0, b"one\ntwo\n")
    put(kept, 4, b"two\nth")
    put(kept, 2, b"e\ntwo")
    put(kept, 8, b"three\n")
    assert fetch(tmp_path) == (b"one\ntwo\nthree\n", [])
    put(kept, 0, b"one\ntwo\nthree\nfour\n")
    assert fetch(tmp_path) == (b"one\ntwo\nthree\nfour\n", [])


@pytest.mark.parametrize(
    ("start", "content"),
    [(0, b"oNe\n"), (4, b"tWo\n"), (4, b"tWo\nthree\nfour\n"), (2, b"e\ntwo\nthrEe\nfour\n")],
    ids=["beginning", "middle", "longer", "overlapping"],
)
@pytest.mark.parametrize("was_home", [True, False])
def test_parts_that_disagree_are_refused_and_nothing_is_written(
    kept: DirectoryStorage, tmp_path: Path, start: int, content: bytes, was_home: bool
) -> None:
    put(kept, 0, b"one\n")
    put(kept, 4, b"two\nthree\n")
    before = fetch(tmp_path)[0] if was_home else b""
    put(kept, start, content)
    after, (found,) = fetch(tmp_path)
    assert after == before
    assert f"it was left as it was, with {len(before)} bytes" in found


def test_an_object_whose_content_is_not_what_its_name_says_is_refused(
    kept: DirectoryStorage, tmp_path: Path
) -> None:
    part = put(kept, 0, b"one\n")
    kept.put(part.key, b"0ne\n")
    content, (found,) = fetch(tmp_path)
    assert (content, "contradict" in found) == (b"", True)


def test_one_file_that_cannot_be_fetched_does_not_keep_the_others(
    kept: DirectoryStorage, tmp_path: Path
) -> None:
    whole = Part.of("abc", "budget.json", 5, b"{}", is_whole=True)
    kept.put(whole.key, b"[]")
    put(kept, 0, b"one\n")
    content, found = fetch(tmp_path)
    assert content == b"one\n"
    assert ["could not be fetched" in each for each in found] == [True]


def test_a_file_is_joined_some_parts_at_a_time(
    kept: DirectoryStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_JOINED_BYTES", 8)
    lines = [b"%d\n" % number for number in range(200)]
    for number, line in enumerate(lines):
        put(kept, len(b"".join(lines[:number])), line)
    assert fetch(tmp_path) == (b"".join(lines), [])


def test_names_that_lead_elsewhere_are_left_alone(kept: DirectoryStorage, tmp_path: Path) -> None:
    put(kept, 0, b"one\n")
    digest = Part.of("abc", FILE, 0, b"x").digest
    for key in ("..~..~evil", "ledger~..", ".bashrc", "~evil", "fetched.keys"):
        kept.put(f"abc/{key}/{0:020d}-1-{digest}.part", b"x")
    assert fetch(tmp_path) == (b"one\n", [])
    assert {path.name for path in (tmp_path / "home" / "abc").iterdir()} == {
        "ledger", "fetched.keys",
    }  # fmt: skip
    assert b"x" not in (tmp_path / "home" / "abc" / "fetched.keys").read_bytes().splitlines()


# The command


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run that has ended."""
    with run("bert", dir=tmp_path / "node", price="1.50 USD/h", gpus=8) as training:
        for _ in training.steps(range(3), tokens=5):
            pass
    return tmp_path / "node"


def ship(run_dir: Path, to: str) -> None:
    shipper = Shipper(run_dir, to)
    assert shipper.flush(FLUSH_S) == ()
    shipper.close()


def test_shipped_runs_are_registered_with_the_same_figures(
    trained: Path, store: ObjectStoreStandIn, tmp_path: Path
) -> None:
    ship(trained, store.url)
    there = outlay("runs", trained, "--json").json["runs"][0]
    said = outlay("import", "runs", store.url, "--to", tmp_path / "home", "--json").json
    (here,) = said["shipped"]
    assert (said["registered"], said["findings"]) == (1, [])
    assert (here["is_complete"], here["name"]) == (True, there["run_id"])
    (row,) = outlay("runs", here["dir"], "--json").json["runs"]
    assert row | {"dir": ""} == there | {"dir": ""}


def test_importing_again_fetches_only_what_is_new(trained: Path, store: ObjectStoreStandIn) -> None:
    ship(trained, store.url)
    first = outlay("import", "runs", store.url)
    assert "Fetched" in first.out
    assert "Registered 1 run." in first.out
    with run("bert", dir=trained) as again:
        again.note("resumed")
    ship(trained, store.url)
    store.requests.clear()
    new = sum(path.stat().st_size for path in segment_paths(trained)[1:])
    said = outlay("import", "runs", store.url, "--json").json["shipped"][0]
    assert said["fetched_bytes"] - new < 300  # And which files are home.
    parts = [path for path in store.asked("GET") if path.endswith(".part")]
    assert len(parts) == 1
    assert outlay("import", "runs", store.url, "--json").json["shipped"][0]["fetched_bytes"] == 0


def test_by_default_runs_of_each_url_have_a_directory_in_the_home(
    trained: Path, tmp_path: Path, private_home: Path
) -> None:
    for place in ("a", "b"):
        ship(trained, str(tmp_path / place))
    said = outlay("import", "runs", (tmp_path / "a").as_uri(), tmp_path / "b", "--json").json
    said = said["shipped"]
    assert len({run["dir"] for run in said}) == 2
    assert all(Path(run["dir"]).is_relative_to(private_home / "shipped") for run in said)


def test_a_run_that_died_unshipped_is_a_finding(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = segment_paths(trained)
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:2]) + lines[2][:10])
    shipper = Shipper(trained, str(tmp_path / "kept"), interval_s=45)
    shipper.poll()
    assert shipper._thread is not None
    shipper._thread.join()
    shipper.close()
    url = (tmp_path / "kept").as_uri()
    assert outlay("import", "runs", url, "--json").json["findings"] == []  # It may be running.
    later_ns = SYSTEM.wall_ns() + 10**13
    monkeypatch.setattr("outlay.cli.importing.SYSTEM.wall_ns", lambda: later_ns, raising=False)
    (found,) = outlay("import", "runs", url, "--json").json["findings"]
    assert "is missing, at most the last 45 s" in found["message"]
    ship(trained, str(tmp_path / "kept"))  # It was only killed: its node is there.
    (found,) = outlay("import", "runs", url, "--json").json["findings"]
    assert "the last line is torn" in found["message"]


def test_errors_say_what_to_do(
    store: ObjectStoreStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = outlay("import", "runs", store.url)
    assert (nothing.code, "OUTLAY_SHIP_TO" in nothing.err) == (1, True)
    store.is_write_only = True
    refused = outlay("import", "runs", store.url)
    assert (refused.code, "may list and get" in refused.err) == (1, True)
    assert "s3://bucket" in outlay("import", "runs", "s3://").err
    unknown = outlay("import", "runs", "nosuch://x/y")
    assert (unknown.code, "nosuch" in unknown.err) == (1, True)
    monkeypatch.setattr(storage, "_PATIENCE_S", 0.0)
    put(DirectoryStorage(tmp_path / "kept"), 0, b"one\n")
    (tmp_path / "home").mkdir()
    with FileLock(open_own(tmp_path / "home" / "fetching.lock", 0o102)):
        url = (tmp_path / "kept").as_uri()
        busy = outlay("import", "runs", url, "--to", tmp_path / "home")
    assert (busy.code, "--to DIR" in busy.err) == (1, True)


# -- a sweep ------------------------------------------------------------------------------------


def test_runs_of_a_sweep_ship_themselves_to_where_the_grid_says(tmp_path: Path) -> None:
    training = Path(__file__).parents[1] / "programs" / "cluster_run.py"
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": [str(training), "{x}", "0"],
        "output_dir": str(tmp_path / "sweep"), "budget": {"mode": "iso_tokens", "limit": 300},
        "ship": {"to": str(tmp_path / "kept"), "every": "10s"}, "grid": [{"params": {"x": [1, 2]}}],
    }  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    assert outlay("sweep", "run", "--yes", tmp_path / "grid.json").code == 0
    fetched = fetch_runs(str(tmp_path / "kept"), tmp_path / "home")
    assert [read_figures(one.dir, SYSTEM.wall_ns()).tokens for one in fetched.runs] == [300, 300]
