"""The README, the tutorial and an example run as printed, in fresh virtual environments.

One has outlay's own dependencies and nothing else, as after ``pip install``; the other has torch
and everything else that is installed here. Both link to installed packages, so that nothing is
downloaded. Every command runs in a shell, in the order of the page, in one empty directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from installed import needed_by
from papers import ROOT, Block, blocks

pytestmark = pytest.mark.xdist_group("tutorial")

BEFORE, FILE = "before\n", "file: "
SCRIPT = "#!{python}\nimport sys\nfrom outlay.cli import main\nsys.exit(main())\n"


Environ = dict[str, str]


@pytest.fixture(scope="module")
def environs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environ]:
    """The variables of two fresh environments, as their ``activate`` sets them."""
    core, everything = (tmp_path_factory.mktemp(name) for name in ("core", "everything"))
    requirements = distribution("outlay").requires or []
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    return {
        "without torch": fresh(core, packages=needed_by(requirements).values()),
        "with torch": fresh(everything, paths=packages),
    }


def fresh(
    place: Path, *, paths: Iterable[str] = (), packages: Iterable[Distribution] = ()
) -> Environ:
    """Make a virtual environment with outlay, everything in ``paths``, and these packages."""
    venv.create(place / "venv", symlinks=True)
    bin_dir = place / "venv" / "bin"
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    (site / "shared.pth").write_text("\n".join([str(ROOT / "src"), *paths]))
    for package in packages:
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(package.locate_file(top))))
    (bin_dir / "outlay").write_text(SCRIPT.format(python=bin_dir / "python"))
    (bin_dir / "outlay").chmod(0o755)
    return {
        "PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(place), "TERM": "dumb",
        "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip


class Follower:
    """Runs the blocks of pages; ``printed`` has the output of each command."""

    def __init__(self, directory: Path, environ: Environ) -> None:
        self.directory = directory
        self.printed: dict[str, str] = {}
        self._environ = environ

    def follow(self, page: Path) -> None:
        for block in blocks(page.read_text()):
            if block.comment.startswith(FILE):
                name = block.comment.removeprefix(FILE).strip()
                (self.directory / name).write_text(block.text)
            elif block.language == "python":
                self._run(["python", "-c", _whole(block)], block.text)
            elif block.language == "console":
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        self._run(["bash", "-c", line[2:]], line[2:])

    def _run(self, command: list[str], shown: str) -> None:
        done = subprocess.run(
            command, cwd=self.directory, env=self._environ, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{shown}\n{done.stdout}"
        self.printed[shown] = done.stdout


def _whole(block: Block) -> str:
    before = block.comment[len(BEFORE) :] if block.comment.startswith(BEFORE) else ""
    return f"import warnings\nwarnings.simplefilter('error')\n{before}\n{block.text}"


BOTH = pytest.mark.parametrize("has", ["without torch", "with torch"])


@pytest.fixture(
    scope="module", params=["without torch", pytest.param("with torch", marks=pytest.mark.slow)]
)
def tutorial(
    request: pytest.FixtureRequest,
    environs: dict[str, Environ],
    tmp_path_factory: pytest.TempPathFactory,
) -> Follower:
    follower = Follower(tmp_path_factory.mktemp("tutorial"), environs[request.param])
    follower.follow(ROOT / "docs" / "tutorial.md")
    return follower


def last_line(follower: Follower, run: str) -> str:
    (printed,) = (text for line, text in follower.printed.items() if f"exec --dir {run} " in line)
    return printed.splitlines()[-1]


def pattern_of(line: str) -> str:
    """Return what matches a line that a page shows, whatever its figures are."""
    return re.sub(r"\d[\d.]*", r"[\\d.]+", re.escape(line).replace(r"\.", "."))


@BOTH
def test_a_fresh_environment_has_what_it_is_said_to_have(
    environs: dict[str, Environ], tmp_path: Path, has: str
) -> None:
    asked = "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('outlay', 'torch')])"
    done = subprocess.run(
        ["python", "-c", asked], cwd=tmp_path, env=environs[has], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == f"[True, {has == 'with torch'}]\n"


@BOTH
def test_the_readme_runs_as_printed(environs: dict[str, Environ], tmp_path: Path, has: str) -> None:
    follower = Follower(tmp_path, environs[has])
    follower.follow(ROOT / "README.md")
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^outlay: cost .*$", readme, re.MULTILINE)
    assert re.fullmatch(pattern_of(shown), last_line(follower, "runs/wrapped"))


@BOTH
def test_an_example_runs_as_its_readme_prints_it(
    environs: dict[str, Environ], tmp_path: Path, has: str
) -> None:
    shutil.copytree(ROOT / "examples" / "while_true", tmp_path, dirs_exist_ok=True)
    (typed,) = (b for b in blocks((tmp_path / "README.md").read_text()) if b.language == "console")
    done = subprocess.run(
        ["bash", "-e"], input=typed.text, cwd=tmp_path, env=environs[has], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^█ step ", done.stdout, re.MULTILINE)


def test_the_readme_shows_the_real_refusal(environs: dict[str, Environ], tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    first, second = re.findall(r"^\$ (outlay guard authorize .*)$", readme, re.MULTILINE)
    (error,) = re.findall(r"^error: .*$", readme, re.MULTILINE)
    shell = ["bash", "-c", f"{first} && {second}"]
    done = subprocess.run(
        shell,
        cwd=tmp_path,
        env=environs["without torch"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, f"{error}\n")


def test_a_script_without_outlay_has_a_cost_and_no_goodput(
    tutorial: Follower,
) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (shown,) = re.findall(r"^outlay: cost .*$", page, re.MULTILINE)
    assert re.fullmatch(pattern_of(shown), last_line(tutorial, "runs/plain"))


def test_a_script_with_recorded_steps_has_a_goodput(tutorial: Follower) -> None:
    assert re.search(r"goodput [\d.]+%", last_line(tutorial, "runs/linear"))


def test_the_budget_stops_the_same_script(tutorial: Follower) -> None:
    assert "stopped by" in tutorial.printed["outlay budget runs/short"]


def test_every_run_of_the_sweep_was_paid_for_below_its_ceiling(tutorial: Follower) -> None:
    assert "4 completed" in tutorial.printed["outlay sweep status runs/rates"]
    status = tutorial.printed["outlay guard status --log runs/rates"]
    assert re.search(r"whole +1\.00 USD +0\.\d+ USD +0\.00 USD", status)


def test_the_report_shows_the_best_configuration(tutorial: Follower) -> None:
    page = tutorial.directory / "runs/rates/reports/report.html"
    assert "rate=0.05" in page.read_text()
    assert (tutorial.directory / "runs/linear/report.html").exists()
