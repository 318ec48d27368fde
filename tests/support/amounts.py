"""What every book of a sweep says that each of its runs cost, in micro-units."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from command_line import in_process
from outlay.sweep.state.manifest import read_events

MICROS = 1_000_000


def captured_in(spend_log: Path, label: str) -> int:
    """Return what a spend log captured for a label, corrections included."""
    lines = [json.loads(line) for line in spend_log.read_text().splitlines()]
    paid = [line for line in lines if line.get("op_label") == label and line.get("actual")]
    return round(MICROS * float(sum(line["actual"] for line in paid)))


def logged_cost(run_dir: Path) -> int:
    """Return what ``outlay cost show`` says of a run, which ``outlay report`` must say, too."""
    shown: int = in_process("cost", "show", run_dir, "--json").json["cost"]["cost"]["micros"]
    assert in_process("report", run_dir, "--json").json["cost"]["cost"]["micros"] == shown
    phases = in_process("goodput", run_dir, "--json").json["phases"]
    assert sum(row["cost"]["micros"] for row in phases) == shown
    return shown


def amounts_of(root: Path) -> dict[str, dict[str, int]]:
    """Return, for each run of a sweep that was started, its cost by where that stands."""
    status = in_process("sweep", "status", root, "--json").json
    assert in_process("sweep", "aggregate", root, "--allow-missing").code == 0
    assert in_process("report", root, "--html").code == 0
    (table,) = (root / "reports").glob("summary_*.csv")
    with table.open(newline="") as stream:
        rows = {row["run_id"]: row for row in csv.DictReader(stream)}
    page = (root / "reports" / "report.html").read_text()
    manifest = json.loads((root / "sweep_manifest.json").read_text())
    journal: dict[str, int] = {}
    for event in read_events(root):
        journal[event.run] = journal.get(event.run, 0) + (event.cost_micros or 0)
    stands = {run["id"]: run for run in status["runs"]}
    return {
        run["id"]: {
            "spend log": captured_in(root / "spend.jsonl", run["id"]),
            "manifest": round(run["cost"] * MICROS),
            "journal": journal[run["id"]],
            "status": stands[run["id"]]["cost"]["micros"],
            "summary": round(float(rows[run["id"]]["cost"]) * MICROS),
            "page": _on_page(page, rows[run["id"]]),
            "log": logged_cost(root / run["id"]),
        }
        for run in manifest["runs"]
        if run["attempts"]
    }


def _on_page(page: str, row: dict[str, Any]) -> int:
    """Return the cost in a run's row of the page's table: the first of its exact amounts."""
    (cells,) = re.findall(
        rf"<tr[^>]*><td[^>]*>(?:<a[^>]*>)?{row['run_id']}(?:</a>)?</td>(.*?)</tr>", page
    )
    shown = re.findall(r'<td[^>]* title="([\d,.]+) [A-Z]', cells)
    return round(float(shown[0].replace(",", "")) * MICROS)


def assert_one_cost(root: Path) -> dict[str, int]:
    """Check that every book says the same of every run, and that their sum was captured."""
    found = amounts_of(root)
    assert {run: set(amounts.values()) for run, amounts in found.items()} == {
        run: {amounts["log"]} for run, amounts in found.items()
    }, found
    whole = [json.loads(line) for line in (root / "spend.jsonl").read_text().splitlines()]
    captured = round(sum(line.get("actual") or 0 for line in whole) * MICROS)
    assert captured == sum(amounts["log"] for amounts in found.values())
    return {run: amounts["log"] for run, amounts in found.items()}
