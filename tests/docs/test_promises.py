"""`docs/promises.md`: the public interface of a release, its logs, and former names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from command_line import outlay
from ledgers import numbered
from outlay.cli.app import app
from outlay.cli.output import DEFAULT
from outlay.ledger import AttemptStarted, KnownRecord, Price, PriceChanged, encode_line, read_run
from outlay.store import StoreTooNew, open_store, outlay_home, schema
from outlay.store.connection import writing
from papers import ROOT
from surface import DATA, surface

T = 1_800_000_000_000_000_000


def test_the_public_interface_of_0_2_is_complete() -> None:
    kept = set((DATA / "surface-0.2.txt").read_text().splitlines())
    assert len(kept) > 2_000
    assert kept - surface() == set(), "what is removed is deprecated first: docs/promises.md"


# -- logs -----------------------------------------------------------------------------------------

PRICE = Price(1_500_000, "USD", "lambda", "showback", "lambda:8xH100", T - 1)
# Fields that version 0.2 added to the log of version 1 (test_ledger_golden).
GAINED: list[KnownRecord] = [
    AttemptStarted(
        t_ns=T,
        run_id="7a31",
        gpus="1/7",
        price=PRICE,
        nodes=2,
        node=1,
        node_gpus="1/14",
        gpus_source="stated",
        process_start_ns=T - 5,
        agent_start_ns=T - 9,
        init_start="4711",
        slurm_restart="1",
        stopped_machine_price=PRICE,
        config={"lr": 0.1},
        command=("python", "train.py"),
    ),
    PriceChanged(t_ns=T + 1, price=PRICE, gpus="1/7"),
]


def test_a_log_of_0_2_is_read_and_written_exactly() -> None:
    log = read_run(DATA / "ledger-0.2")
    assert (log.records, log.findings) == (numbered(GAINED), [])
    (segment,) = (DATA / "ledger-0.2" / "ledger").iterdir()
    written = b"".join(encode_line(record, seq) for seq, record in enumerate(GAINED))
    assert segment.read_bytes() == written


def test_records_of_unknown_kinds_are_counted_and_listed() -> None:
    verified = outlay("log", "verify", DATA / "ledger-v1")
    assert "1 record of unknown kind: moon_phase\n" in verified.out
    assert outlay("log", "verify", DATA / "ledger-v1", "--json").json["unknown"] == {
        "moon_phase": 1
    }
    assert "moon_phase" in outlay("log", DATA / "ledger-v1").out


def test_a_store_of_a_newer_outlay_is_not_changed() -> None:
    with writing(open_store()) as connection:
        connection.execute(schema.versions.insert().values(version=999, applied_ns=0))
    before = store_bytes()
    with pytest.raises(StoreTooNew):
        open_store()
    assert store_bytes() == before


def store_bytes() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in outlay_home().glob("*.db*") if path.is_file()}


# -- former names ---------------------------------------------------------------------------------

# Not former names of outlay, but of the scripts that it replaces; moving.md lists them.
OF_OTHERS = {"--enable-sweeps", "--enable-aggregator", "--root", "--manifest"}


def hidden(command: Any, path: str) -> Iterator[str]:
    """Yield the hidden commands and options."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            yield from (each for each in parameter.opts if each.startswith("--"))
    for name, child in getattr(command, "commands", {}).items():
        if child.hidden and name != DEFAULT:
            yield f"{path} {name}".strip()
        elif not child.hidden:
            yield from hidden(child, f"{path} {name}".strip())


def test_the_changelog_has_the_new_name_of_every_former_name() -> None:
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    moving = (ROOT / "docs" / "howto" / "moving.md").read_text()
    former = set(hidden(typer.main.get_command(app), "")) - {"cost-report", "log cat"}
    assert former > OF_OTHERS
    for name in former - OF_OTHERS:
        assert re.search(rf"{re.escape(name)}`,? is\b", changes), name
    for name in OF_OTHERS:
        assert name in moving, name
