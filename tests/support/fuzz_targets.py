"""Every reader of outlay as a function of bytes, with good bytes to begin from, and mutations.

A target may raise an ``OutlayError``, which is documented, and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec

from ledgers import START_NS, Segment, dollars, numbered, scratch_dir, to_lines
from outlay.bills.bill_readers import read_bill
from outlay.budget import snapshots
from outlay.budget.config import read_budget
from outlay.budget.display import read_document
from outlay.budget.usage import Usage
from outlay.compat.cost_module.analyzer import CostAnalyzer, import_costs
from outlay.compat.cost_module.data_directory import HISTORY
from outlay.compat.cost_module.price_history import read_history
from outlay.compat.ml_goodput_measurement.goodput_cache import GoodputCache, import_payloads
from outlay.decoding import decode_text
from outlay.goodput.follower import GoodputFollower
from outlay.guard.ceilings import read_manifest as read_guard_manifest
from outlay.guard.chain import START, position_of, scan
from outlay.guard.chain import parse_slots as parse_head
from outlay.guard.index.head_file import head_path
from outlay.guard.index.index_file import index_path, write_index
from outlay.guard.rental.vendor_commands import PRESETS, parse_id, parse_page
from outlay.guard.spend_log import (
    FileSpendLog,
)
from outlay.ledger import Metric, Note, RunIdentity, read_identity, read_run
from outlay.ledger.segments import run_file
from outlay.prices.current import rates_file, read_rates
from outlay.prices.sources import catalogs as csv_catalogs
from outlay.prices.sources.vendors import parse_lambda, parse_runpod, parse_vast
from outlay.proc.exit_record import ExitRecord, exit_path, read_exit
from outlay.runs.accounting.sacct import read_accounts
from outlay.runs.inbox import notices
from outlay.runs.reading import read_figures
from outlay.slurm import parse_limits
from outlay.store import outlay_home
from outlay.sweep.aggregate.aggregator import read_artefacts
from outlay.sweep.engines.remote.job_spec import read_times
from outlay.sweep.engines.slurm.queue import Batch, read_batches
from outlay.sweep.grid.files import plan_file
from outlay.sweep.state.manifest import JOURNAL, read_events, read_manifest
from outlay.sweep.state.manifest import NAME as MANIFEST
from vendor_shapes import lambda_answer, runpod_answer, vast_answer

NOW_NS = START_NS + 10**12
BILLS = [
    b"BilledCost,BillingCurrency,BillingPeriodStart,ChargeCategory,ChargePeriodStart,"
    b"ChargePeriodEnd,ProviderName,Tags\n"
    b'1.5,USD,2026-10-01,Usage,2026-10-01T00:00:00Z,2026-10-02,us,"{""a"": ""b""}"\n',
    b'{"usage_start_time": "2026-10-01", "usage_end_time": "2026-10-02", "cost": 1.5,'
    b' "currency": "EUR", "invoice": {"month": "202610"}, "labels": [{"key": "a", "value": "b"}],'
    b' "credits": [{"amount": -0.5, "type": "PROMOTION"}]}\n',
    b'[{"amount": 1, "time": "2026-10-01T00:00:00Z", "podId": "p", "timeBilledMs": 3600000}]',
]
DATA = Path(__file__).parents[1] / "data"
GOLDEN_LOG, GOLDEN_HEAD = (
    (DATA / "spend-log-v1" / f"spend.{end}").read_bytes() for end in ("jsonl", "head")
)


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        seeds: Good inputs.
        read: Reads bytes, in a directory that nobody else uses.
    """

    seeds: Sequence[bytes]
    read: Callable[[bytes, Path], object]


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Return a reader of bytes from one of a file in a directory, which it is given."""

    def read_bytes(raw: bytes, where: Path) -> object:
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        return read(where)

    return read_bytes


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


STORY = Segment(about={"price": dollars(2), "model": "m", "name": "n"})
for _number in range(4):
    STORY.step(1, tokens=5, wait=0.1)
STORY.span("evaluation", 1).checkpoint()
STORY.add(Metric(t_ns=STORY.now_ns, name="acc", value=0.5, step=3))
STORY.add(Note(t_ns=STORY.now_ns, text="note", data={"a": [1, 2]})).price(3, after=1).end()
WRITTEN = numbered(STORY.records)


def read_segment(raw: bytes, where: Path) -> None:
    """Read a segment in every way; a record that was not written so must not be among them."""
    path = where / "ledger" / "1-node-7-r0.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    altered = [record for record in read_run(where).records if record not in WRITTEN]
    assert altered == []
    read_figures(where, NOW_NS)
    GoodputFollower(where).view(NOW_NS).break_down()


def read_budget_document(where: Path) -> None:
    """Read a run's budget.json and take over what it says."""
    document = read_document(where)
    if document is not None:
        snapshots.usage_in(document, otherwise=Usage())


def read_limits(text: str) -> None:
    """Read Slurm's limits for the user of the associations, and word them."""
    for accounts in ((), ("",), ("vision",)):
        for limit in parse_limits(text, 1000, accounts):
            assert isinstance(str(limit), str)


def read_notices(raw: bytes, where: Path) -> object:
    """Read the inbox with one notice in it."""
    del where
    path = outlay_home() / "inbox" / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return notices()


def read_partition_rates(raw: bytes, where: Path) -> object:
    """Read the rates of partitions."""
    del where
    rates_file().parent.mkdir(parents=True, exist_ok=True)
    rates_file().write_bytes(raw)
    return read_rates()


def spend_index() -> bytes:
    """Return an index of the golden spend log."""
    with scratch_dir() as where:
        log = Path(where) / "spend.jsonl"
        log.write_bytes(GOLDEN_LOG)
        head_path(log).write_bytes(GOLDEN_HEAD)
        books = FileSpendLog(log, indexed=False).books()
        position = position_of(scan("spend.jsonl", GOLDEN_LOG, START).link)
        write_index(index_path(log), None, books, position, mode=0o644)
        return index_path(log).read_bytes()


def read_spend_index(raw: bytes, where: Path) -> None:
    """Read a spend log with an index, which must not change what the log says."""
    log = where / "spend.jsonl"
    log.write_bytes(GOLDEN_LOG)
    head_path(log).write_bytes(GOLDEN_HEAD)
    index_path(log).write_bytes(raw)
    books, whole = FileSpendLog(log).books(), FileSpendLog(log, indexed=False).books()
    assert books.state() == whole.state()
    for table in whole.tables():
        assert dict(books.rows(table)) == dict(whole.rows(table))


def read_listing(raw: bytes, where: Path) -> None:
    """Read what a vendor's own program printed."""
    del where
    text = raw.decode(errors="replace")
    for vendor in PRESETS.values():
        try:
            parse_page(vendor, text)
        finally:
            parse_id(vendor.id_from, text, "pod")


def read_costs(raw: bytes, where: Path) -> object:
    """Import a history of costs."""
    (where / HISTORY).write_bytes(raw)
    return import_costs(CostAnalyzer(), where)


GRID = b"""name: demo
price: 1 USD/h
ceiling: 5 USD
env: {A: "1"}
grid:
- name: one
  params: {lr: [0.1, 1e-3], model: &m [a, b]}
  budget: {mode: iso_time, limit: 2}
  seeds: [1, 2]
- params: {model: *m, rev: [5e3a9c1]}
  timeout: 1h
"""
BUDGET = {
    "mode": "iso_tokens", "limits": {"max_tokens": 5}, "totals": {"tokens": 3, "time_ms": 1.5},
    "clocks_ms": {"training": 1.0}, "stop_reason": None,
}  # fmt: skip
EVENT = {
    "t_ns": START_NS, "run": "001_a", "status": "completed", "elapsed_ns": 5, "cost_micros": 7,
    "currency": "USD", "command": ["a"], "env": {"A": "b"},
}  # fmt: skip
SACCT = (
    b"JobID|JobIDRaw|JobName|User|Account|Partition|State|Start|End|AllocTRES|NodeList|Cluster|"
    b"Submit|Eligible\n"
    b"7|7|train|ada|lab|gpu|COMPLETED|2026-01-01T00:00:00|2026-01-01T02:00:00|gres/gpu=2|n1|c|"
    b"2025-12-31T23:00:00|2025-12-31T23:30:00\n"
)
ASSOCIATIONS = (DATA / "slurm-associations.txt").read_bytes()
PAYLOADS = b"".join(
    _json(entry) + b"\n"
    for entry in (
        {"job_name": "j", "job_start_time": 1.7e9}, {"job_name": "j", "step_start_time": 1.7e9 + 1,
         "step_count": 1}, {"job_name": "j", "job_end_time": 1.7e9 + 9},
    )
)  # fmt: skip
HISTORY_ROW = {
    "model_name": "m", "gpu_hours": 2.0, "total_cost": 3.0, "timestamp": "2026-01-01T00:00:00",
}  # fmt: skip
CATALOGS = (
    b"instance_name,location,price,gpu_count,gpu_name,gpu_memory,spot\na,eu,1.5,2,A100,80,True\n",
    b"InstanceType,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice\na,A100,2,eu,1.5,0.5\n",
)
MOMENT = {"ticket": "t", "restart": 0, "what": "started", "t_ns": START_NS}

TARGETS: dict[str, Target] = {
    "bill": Target(BILLS, _file("bill", lambda where: read_bill(where / "bill"))),
    "segment": Target([b"".join(to_lines(STORY.records))], read_segment),
    "identity": Target(
        [msgspec.json.encode(RunIdentity(run_id="a", model="m", name="n", created_ns=1))],
        lambda raw, where: _file(str(run_file(Path())), read_identity)(raw, where),
    ),
    "budget document": Target([_json(BUDGET)], _file("budget.json", read_budget_document)),
    "budget text": Target(
        [b"iso_time=2h,max_cost_usd=5", b'{"mode": "iso_time", "max_minutes": 2}',
         b"mode: iso_tokens\nmax_tokens: 50k\n"],
        lambda raw, _: read_budget(raw.decode(errors="replace")),
    ),
    "budget file": Target(
        [b"runtime:\n  budget: {enabled: true, mode: iso_time, max_minutes: 2}\n"],
        _file("b.yaml", lambda where: read_budget(where / "b.yaml")),
    ),
    "notice": Target([b'{"dir": "/runs/a"}'], read_notices),
    "partition rates": Target([b'{"gpu": "1.20 USD/h"}'], read_partition_rates),
    "grid": Target(
        [GRID, _json({"name": "g", "grid": [{"params": {"a": [1, 2]}}]})],
        _file("grid.yaml", lambda where: plan_file(where / "grid.yaml")),
    ),
    "sweep manifest": Target(
        [_json({"name": "g", "runs": [{"id": "001_a", "params": {}, "fingerprint": "x"}]})],
        _file(MANIFEST, lambda where: read_manifest(where).document()),
    ),
    "sweep journal": Target(
        [_json(EVENT) + b"\n" + _json(EVENT) + b"\n"], _file(JOURNAL, read_events)
    ),
    "slurm times": Target(
        [_json(MOMENT) + b"\n" + _json(MOMENT | {"what": "ended"}) + b"\n"],
        _file("slurm_times.jsonl", lambda where: read_times(where, "slurm/r/t").ran_ns(NOW_NS)),
    ),
    "slurm batch": Target(
        [msgspec.json.encode(Batch(name="b", tickets=("t",)))],
        _file("slurm/b/batch.json", read_batches),
    ),
    "exit": Target(
        [msgspec.json.encode(ExitRecord(ticket="t", returncode=0))],
        _file(exit_path(Path()).name, lambda where: read_exit(where, "t")),
    ),
    "artefacts": Target(
        [b"step,t_step_ms,ips_step\n1,2.5,100\n2,2.6,99\n"],
        _file("timings.csv", read_artefacts),
    ),
    "payloads": Target(
        [PAYLOADS], _file("p.jsonl", lambda where: import_payloads(where / "p.jsonl", where / "r"))
    ),
    "goodput cache": Target(
        [PAYLOADS],
        _file("j_timeline.jsonl", lambda where: GoodputCache("j", where).get_cached_entries()),
    ),
    "cost history": Target([_json({"r1": HISTORY_ROW})], read_costs),
    "price history": Target(
        [_json({"A100|lambda": [[1.5, "2026-01-01T00:00:00"]]})],
        _file("h.json", lambda where: read_history(where / "h.json")),
    ),
    "catalog": Target(
        CATALOGS, _file("c.csv", lambda where: csv_catalogs.CsvSource(where / "c.csv").load(0))
    ),
    "vast": Target([_json(vast_answer())], lambda raw, _: parse_vast(raw, 0)),
    "runpod": Target([_json(runpod_answer())], lambda raw, _: parse_runpod(raw, 0)),
    "lambda": Target([_json(lambda_answer())], lambda raw, _: parse_lambda(raw, 0)),
    "sacct": Target(
        [SACCT], lambda raw, _: read_accounts(decode_text(raw), source="s", zone=UTC)
    ),
    "slurm limits": Target([ASSOCIATIONS], lambda raw, _: read_limits(decode_text(raw))),
    "spend log": Target([GOLDEN_LOG], lambda raw, _: scan("spend.jsonl", raw, START)),
    "spend head": Target([GOLDEN_HEAD], lambda raw, _: parse_head(raw)),
    "spend index": Target([spend_index()], read_spend_index),
    "guard manifest": Target(
        [_json({"currency": "USD", "ceiling_usd": 5, "ceiling_per_lab": {"01": 2}})],
        _file("manifest.json", lambda where: read_guard_manifest(where / "manifest.json")),
    ),
    "vendor listing": Target([b'[{"id": "a", "name": "n"}]', b'{"data": []}'], read_listing),
}  # fmt: skip

TOKENS = [
    b"\xff", b"\x00", b"\x1b[2J", b"\xed\xa0\x80", b"\\ud800", b'"', b"{", b"[", b"]", b"}", b",",
    b":", b"\n", b"-", b"1e999", b"9" * 40, b"9" * 30, b"-1", b"NaN", b"null", b"true", b"[]",
    b"{}", b"0.1", b"2" * 19, b"e5", b"&a ", b"*a", b"!!binary ", b"${x}", b"${oc.env:HOME}",
    b"<<: ", b"\xd9\xa1", b"'", b"|", b"1__0", b"[" * 100, b"../../x", b"\r", b"\t",
]  # fmt: skip


def edited(raw: bytes, kind: int, place: float, token: bytes) -> bytes:
    """Return bytes with one change at a place, 0 to 1 of their length."""
    at = int(place * len(raw))
    end = min(len(raw), at + 1 + len(token))
    match kind % 7:
        case 0:  # A bit.
            return raw[:at] + bytes([raw[at] ^ (1 << kind % 8)]) + raw[at + 1 :] if raw else token
        case 1:
            return raw[:at] + token + raw[at:]
        case 2:
            return raw[:at] + token + raw[end:]
        case 3:  # Cut off.
            return raw[:at]
        case 4:  # A part of it again.
            return raw[:at] + raw[at // 2 : at] + raw[at:]
        case 5:  # A part of it gone.
            return raw[:at] + raw[end + len(raw) // 10 :]
        case _:  # A number or a word in a token's stead.
            begin = max(raw.rfind(b":", 0, at), raw.rfind(b"=", 0, at)) + 1
            rest = raw[begin:]
            cut = min((rest.find(c) % (len(rest) + 1) for c in (b",", b"}", b"\n")), default=0)
            return raw[:begin] + token + rest[cut:]


def mutated(seed: bytes, source: random.Random) -> bytes:
    """Return good bytes after one change or a few."""
    raw = seed
    for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
        token = (
            source.choice(TOKENS) if source.randrange(4) else source.randbytes(source.randrange(7))
        )
        raw = edited(raw, source.randrange(56), source.random(), token)
    return raw
