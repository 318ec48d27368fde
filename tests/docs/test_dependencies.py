"""Dependencies: what is installed with outlay, version bounds, and tools/system-packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from installed import needed_by

ROOT = Path(__file__).parents[2]
ADR = (ROOT / "docs" / "adr" / "0005-core-dependencies.md").read_text()
CORE, _, RULES = ADR.partition("## Rules")


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS: dict[str, list[str]] = PYPROJECT["dependency-groups"]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    stated: dict[str, Any] = PYPROJECT["project"]
    return stated


@pytest.fixture(scope="module")
def core(project: dict[str, Any]) -> dict[str, int]:
    """The size of every library that outlay needs, and of those that they need, in bytes."""
    sizes: dict[str, int] = {}
    for name, found in needed_by(project["dependencies"]).items():
        files = [Path(str(file.locate())) for file in found.files or [] if file.suffix != ".pyc"]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
    return sizes


def listed(marker: str) -> set[str]:
    """Return the libraries that the page lists in the item that begins so."""
    (item,) = re.findall(rf"^- {marker}: (.*?)\n(?:-|\n)", CORE, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([\w-]+)`", item))


def test_the_page_lists_every_indirect_dependency_and_no_other(
    core: dict[str, int], project: dict[str, Any]
) -> None:
    brought = set(core) - {Requirement(each).name for each in project["dependencies"]}
    newest, older = listed("indirect"), listed("required by older versions only")
    assert brought - newest - older == set()
    assert newest - brought <= {"truststore"}  # httpx2 had certifi in its place.


def test_the_page_states_number_and_size_of_the_libraries(
    core: dict[str, int], project: dict[str, Any]
) -> None:
    said = re.search(r"they are (\d+) libraries of (\d+) MB", CORE)
    assert said is not None
    count, megabytes = int(said[1]), int(said[2])
    assert count == len(project["dependencies"]) + len(listed("indirect"))
    assert sum(core.values()) / 1e6 == pytest.approx(megabytes, rel=0.15)  # Versions differ.


def test_the_page_has_a_row_for_every_dependency_and_no_other(project: dict[str, Any]) -> None:
    names = {Requirement(each).name for each in project["dependencies"]}
    assert set(re.findall(r"^\| `([\w-]+)` \|", CORE, flags=re.MULTILINE)) == names


def test_no_dependency_requires_pydantic_or_attrs(core: dict[str, int]) -> None:
    assert not {"pydantic", "pydantic-core", "attrs"} & set(core)


def test_the_lowest_versions_are_those_of_the_project(project: dict[str, Any]) -> None:
    said = subprocess.check_output([sys.executable, ROOT / "tools" / "lowest-versions"], text=True)
    stated = dict(line.split("==") for line in said.splitlines())
    for each in map(Requirement, project["dependencies"]):
        assert each.specifier.contains(stated[each.name]), each


def test_a_library_has_the_same_bounds_wherever_it_is_named(project: dict[str, Any]) -> None:
    groups = (*project["optional-dependencies"].values(), *GROUPS.values())
    stated = chain(project["dependencies"], *groups)
    bounds: dict[str, set[str]] = {}
    for each in map(Requirement, stated):
        bounds.setdefault(each.name, set()).add(str(each.specifier))
    bounds["torch"].remove("==2.13.0")  # The CPU build that the tests pin.
    assert {name: each for name, each in bounds.items() if len(each) > 1} == {}


def test_the_dev_group_has_no_trainers_and_no_trackers(project: dict[str, Any]) -> None:
    extras = {
        extra: {Requirement(each).name for each in stated}
        for extra, stated in (project["optional-dependencies"] | GROUPS).items()
    }
    heavy = {
        "accelerate", "alerts", "lightning", "mcp", "mlflow", "one-logger", "optuna", "otlp",
        "ray", "transformers", "wandb", "web",
    }  # fmt: skip
    for extra in heavy:
        assert not extras[extra] & extras["dev"], extra
        assert extras[extra] <= extras["test-integrations"], extra


# -- tools/system-packages -------------------------------------------------------------------------

APT = """#!/bin/sh
echo "$@" >> "$CALLS"
if [ "$(grep -c update "$CALLS")" -lt "$TRIES" ]; then
  echo "E: $TROUBLE" >&2
  exit 100
fi
"""


def install(tmp_path: Path, *, tries: int, trouble: str) -> tuple[int, list[str], str]:
    """Run the tool as root with a fake apt; return exit code, calls of apt and stderr."""
    programs = {"apt-get": APT, "id": "#!/bin/sh\necho 0\n", "dpkg-query": "#!/bin/sh\nexit 1\n"}
    for name, text in (programs | {"sleep": "#!/bin/sh\n"}).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"),
        "TRIES": str(tries), "TROUBLE": trouble,
    }  # fmt: skip
    done = subprocess.run(
        [ROOT / "tools" / "system-packages"], env=os.environ | environ, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    calls = (tmp_path / "calls").read_text().splitlines()
    return done.returncode, [call.split()[0] for call in calls], done.stderr


def test_system_packages_wait_for_the_lock_of_apt(tmp_path: Path) -> None:
    lock = "Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"
    code, calls, said = install(tmp_path, tries=3, trouble=lock)
    assert (code, calls) == (0, ["update", "update", "update", "install"])
    assert said == "waiting for another program to finish with apt\n"


def test_system_packages_fail_at_once_for_another_reason(tmp_path: Path) -> None:
    code, calls, said = install(tmp_path, tries=3, trouble="Unable to locate package")
    assert (code, calls) == (1, ["update"])
    assert "Unable to locate package" in said
