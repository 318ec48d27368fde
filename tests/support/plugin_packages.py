"""Packages as a stranger would install them: a module, and metadata that announces it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(site: Path, group: str, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package ``stranger`` into a directory of packages that Python then knows.

    Its module announces ``code``'s ``entry`` in the group, for this process and its children.
    """
    about = site / "stranger-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "stranger.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = stranger:entry\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
