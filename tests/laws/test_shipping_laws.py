"""Laws of shipping: parts cover a file, join byte for byte, and survive growth, cuts and kills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers import scratch_dir
from outlay.clock import ManualClock
from outlay.ledger import RunIdentity, claim_identity
from outlay.shipping.parts import Part, chain, join, parse_key, plan
from outlay.shipping.shipper import Shipper
from outlay.shipping.storage import DirectoryStorage, fetch_runs

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.,=+@-]{0,20}", fullmatch=True)
OFFSETS = st.integers(0, 10**19)


@given(
    st.dictionaries(NAMES, st.integers(0, 300)),
    st.dictionaries(NAMES, st.integers(0, 300)),
    st.integers(1, 50),
)
def test_what_is_due_are_all_bytes_that_are_not_shipped(
    sizes: dict[str, int], shipped: dict[str, int], most: int
) -> None:
    dues = list(plan(sizes, shipped, most))
    for file, size in sizes.items():
        mine = [due for due in dues if due.file == file]
        assert [at for due in mine for at in range(due.start, due.end)] == list(
            range(shipped.get(file, 0), size)
        )
    assert all(0 < due.end - due.start <= most for due in dues)


@given(NAMES, st.lists(NAMES, min_size=1, max_size=2), OFFSETS, st.binary(), st.booleans())
def test_a_part_is_read_from_its_name(
    run: str, file: list[str], start: int, content: bytes, is_whole: bool
) -> None:
    part = Part.of(run, "/".join(file), start, content, is_whole=is_whole)
    assert parse_key(part.key) == part


@given(st.text())
def test_no_other_name_is_a_part_or_leads_out_of_a_directory(key: str) -> None:
    part = parse_key(key)
    assert part is None or part.key == key
    assert parse_key(f"../{key}") is None


@st.composite
def cut_files(draw: st.DrawFn) -> tuple[bytes, list[Part]]:
    """A file, and some of the parts into which several starts of a node cut it."""
    content = draw(st.binary(max_size=200))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted({0, len(content), *draw(st.sets(st.integers(0, len(content)), max_size=8))})
        for start, end in pairwise(cuts):
            parts.append(Part.of("r", "f", start, content[start:end]))
    return content, draw(st.lists(st.sampled_from(parts), unique=True)) if parts else []


def contents(content: bytes, parts: Sequence[Part]) -> list[tuple[Part, bytes]]:
    return [(part, content[part.start : part.end]) for part in parts]


@given(cut_files(), st.integers(0, 200), st.integers(1, 300))
def test_parts_that_agree_give_the_longest_beginning_that_they_cover(
    cut: tuple[bytes, list[Part]], have: int, most: int
) -> None:
    content, parts = cut
    have = min(have, len(content))
    covered = set(range(have)).union(*(range(part.start, part.end) for part in parts))
    expected = next(at for at in range(len(content) + 1) if at not in covered)
    at = have
    while (found := chain(at, parts, most)).parts:
        start = min(part.start for part in found.parts)
        start = min(start, at)
        assert (
            join(content[start:at], start, contents(content, found.parts))
            == (content[start : found.end])
        )
        at = found.end
    assert at == expected
    beyond = [part.start for part in parts if part.start > expected]
    assert found.beyond == min(beyond, default=None)


@given(cut_files(), st.data())
def test_a_chain_with_a_byte_that_differs_is_refused(
    cut: tuple[bytes, list[Part]], data: st.DataObject
) -> None:
    content, parts = cut
    found = chain(0, parts)
    if not found.parts:
        return
    wrong = data.draw(st.sampled_from(found.parts))
    at = data.draw(st.integers(0, wrong.length - 1))
    changed = bytearray(content[wrong.start : wrong.end])
    changed[at] ^= 1
    delivered = [
        (p, bytes(changed) if p is wrong else c) for p, c in contents(content, found.parts)
    ]
    assert join(b"", 0, delivered) == wrong
    # Its name states the changed bytes: whoever overlaps it contradicts it.
    renamed = Part.of("r", "f", wrong.start, bytes(changed))
    known = content[: wrong.end]
    assert join(known, 0, [(renamed, bytes(changed))]) == renamed


# The whole way: a node that grows files, ships, is killed and loses its state; a home that fetches

SEGMENT, OTHER, LOG = "ledger/00000000000000000001-h-1-r0.jsonl", "ledger/2.jsonl", "sweep.log"
FILES = (SEGMENT, OTHER, LOG)
LINES = st.lists(st.binary(min_size=1, max_size=12), min_size=1).map(b"\n".join)
ACTIONS = st.one_of(
    st.tuples(st.just("grow"), st.sampled_from(FILES), LINES),
    st.tuples(st.just("replace"), st.just("budget.json"), st.binary(max_size=40)),
    st.tuples(st.sampled_from(["poll", "fetch", "restart", "forget"]), st.just(""), st.just(b"")),
    st.tuples(st.sampled_from(["fail", "fail after"]), st.just(""), st.binary(max_size=3)),
)


class FailingStorage(DirectoryStorage):
    """A directory in which the next uploads fail, before or after the object was written."""

    failing: list[bool]

    def put(self, key: str, content: bytes) -> None:
        fails = self.failing.pop() if self.failing else None
        if fails is not False:
            super().put(key, content)
        if fails is not None:
            raise ConnectionError


@dataclass
class Way:
    """A node's directory, its storage, and the home's copy."""

    root: Path
    failing: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node, self.kept, self.home = (self.root / name for name in ("node", "kept", "home"))
        identity = RunIdentity(run_id="run", model="m", name="m", created_ns=1)
        claim_identity(self.node, identity)
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.shipper = Shipper(self.node, str(self.kept), clock=self.clock)
        storage = FailingStorage(self.kept)
        storage.failing = self.failing
        self.shipper._storage = storage

    def act(self, what: str, file: str, content: bytes) -> None:
        match what:
            case "grow":
                with (self.node / file).open("ab") as stream:
                    stream.write(content)
            case "replace":
                (self.node / file).write_bytes(content)
            case "poll":
                self.clock.advance(10**12)
                self.shipper.poll()
                self.wait()
            case "fetch":
                self.fetch()
            case "restart":
                self.shipper.close()
                self.start()
            case "forget":
                self.shipper.close()
                (self.node / "ledger" / "shipping.json").unlink(missing_ok=True)
                self.start()
            case _:
                self.failing += [what == "fail after"] * len(content)

    def wait(self) -> None:
        assert self.shipper._thread is not None
        self.shipper._thread.join()

    def fetch(self) -> None:
        if not any(self.kept.rglob("*.part")) and not any(self.kept.rglob("*.whole")):
            return
        fetched = fetch_runs(str(self.kept), self.home)
        assert fetched.findings == []
        for file in FILES:
            there, here = self.node / file, self.home / "run" / file
            if here.exists():
                assert there.read_bytes().startswith(here.read_bytes())


def files_of(run_dir: Path) -> dict[str, bytes]:
    """Return the files that are shipped, except empty ones that only grow."""
    files = [
        f for f in run_dir.rglob("*") if f.is_file() and f.suffix in (".json", ".jsonl", ".log")
    ]
    content = {f.relative_to(run_dir).as_posix(): f.read_bytes() for f in files}
    own = {"ledger/shipping.json", "shipped.json"}
    return {n: c for n, c in content.items() if n not in own and (c or n == "budget.json")}


@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=25))
def test_files_come_home_byte_for_byte(actions: list[tuple[str, str, bytes]]) -> None:
    with scratch_dir() as directory:
        way = Way(Path(directory))
        for action in actions:
            way.act(*action)
        assert way.shipper.flush(10**6) == ()
        way.shipper.close()
        way.fetch()
        assert files_of(way.home / "run") == files_of(way.node)
        (run,) = fetch_runs(str(way.kept), way.home).runs
        assert run.is_complete == bool({*FILES} & files_of(way.node).keys())
        assert run.fetched_bytes == 0
