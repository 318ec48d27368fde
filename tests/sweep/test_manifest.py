"""The manifest in memory: its file has every event and every plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from outlay.sweep.state.manifest import ManifestRun, SweepManifest
from outlay.sweep.state.outcomes import Event


def written(manifest: SweepManifest) -> dict[str, tuple[str, object]]:
    """Return the status and the parameters of each run in the file."""
    manifest.write()
    document = json.loads((manifest.root / "sweep_manifest.json").read_text())
    return {run["id"]: (run["status"], run["params"]) for run in document["runs"]}


def test_a_file_that_is_written_again_has_what_changed_and_what_did_not(tmp_path: Path) -> None:
    runs = {name: ManifestRun.of({"id": name, "params": {"x": name}}) for name in ("a", "b", "c")}
    manifest = SweepManifest(tmp_path, {"name": "demo"}, runs)
    before = written(manifest)
    manifest.apply("b", Event(t_ns=1, run="b", status="completed"))
    manifest.runs["c"] = ManifestRun.of({"id": "c", "params": {"x": 3}})
    assert written(manifest) == before | {
        "b": ("completed", {"x": "b"}),
        "c": ("pending", {"x": 3}),
    }
    assert written(manifest) == written(replace(manifest, _encoded={}))
