"""``outlay sweep status`` with ``budget.json`` files written by other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import in_process
from sweep_on_disk import Sweep


@pytest.mark.parametrize(
    ("document", "used"),
    [
        ({"limits": {"max_tokens": 50, "max_minutes": 10}, "totals": {"tokens": 20}}, "40%"),
        ({"limits": {"max_minutes": 10}, "totals": {"time_minutes": 9}}, "90%"),
        ({"limits": {"max_cost_usd": 4.0}, "totals": {"cost_usd": 1.0}}, "25%"),
        ({"limits": {"max_cost_eur": 4.0}, "totals": {"cost_eur": 3.0}}, "75%"),
        ({"limits": {"max_tokens": 50}, "totals": []}, ""),
        ({"limits": [50], "totals": {}}, ""),
        ({"limits": {"max_tokens": 50}, "totals": {"tokens": "many"}}, ""),
        ({"limits": {"max_tokens": "50k"}, "totals": {"tokens": 20}}, ""),
    ],
    ids=json.dumps,
)
def test_the_budget_that_was_used_is_read_from_any_file_of_that_name(
    tmp_path: Path, document: dict[str, object], used: str
) -> None:
    (Sweep(tmp_path).add("001_a") / "budget.json").write_text(json.dumps(document))
    shown = in_process("sweep", "status", tmp_path, "--all", columns=120)
    assert shown.code == 0, shown.err
    (row,) = (line.split() for line in shown.out.splitlines() if line.startswith("001_a"))
    assert row == ["001_a", "completed", *[used][: len(used)]]
