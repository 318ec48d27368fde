"""Slurm's own limits of accounts: parsed, and from a real cluster on the screens."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import in_process
from outlay import slurm
from outlay.slurm import SlurmLimit, own_limits, parse_limits
from slurm_cluster import ACCOUNTING_PROGRAMS, AccountedCluster, require_programs
from waiting import until

ASSOCIATIONS = (Path(__file__).parent / "data" / "slurm-associations.txt").read_text()
"""In the form of Slurm 22.05; the accounts, users and numbers are made up."""
ADA, BOB = 1000, 1001
OF_VISION = ["vision cpu 1/50000", "vision gres/gpu 1200/10000"]
OF_ADA = ["ada@speech main gres/gpu 7/50", "ada@speech main gres/gpu:a100 3/20"]


def briefly(limits: list[SlurmLimit]) -> list[str]:
    return [
        " ".join(
            [
                f"{each.user}@{each.account}".removeprefix("@"), *filter(None, [each.partition]),
                each.resource, f"{each.used_minutes}/{each.limit_minutes}",
            ]
        )
        for each in limits
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uid", "accounts", "expected"),
    [
        (ADA, (), OF_ADA + OF_VISION),
        (ADA, ("vision",), OF_VISION),
        (ADA, ("",), OF_VISION),
        (ADA, ("speech",), OF_ADA + OF_VISION),
        (ADA, ("text",), ["text gres/gpu 9/3"]),
        (BOB, ("",), ["bob@vision gres/gpu 1/77", *OF_VISION]),
        (BOB, ("none of that name",), []),
        (1002, (), []),
    ],
)
def test_the_limits_of_a_user_are_those_of_the_user_the_account_and_all_above_it(
    uid: int, accounts: tuple[str, ...], expected: list[str]
) -> None:
    assert briefly(parse_limits(ASSOCIATIONS, uid, accounts)) == expected


def test_a_limit_says_whose_it_is_how_much_is_used_and_what_slurm_calls_it() -> None:
    of_ada, typed, _, of_vision = map(str, parse_limits(ASSOCIATIONS, ADA))
    assert of_vision == (
        "Slurm's own limit for account vision: 1,200 of 10,000 GPU-minutes used "
        "(GrpTRESMins gres/gpu)"
    )
    assert "for ada in account speech on main: 7 of 50 GPU-minutes used" in of_ada
    assert "3 of 20 a100 GPU-minutes used (GrpTRESMins gres/gpu:a100)" in typed


WORDS = st.sampled_from(
    ["Account=a", "Account=b", "UserName=", "UserName=x(7)", "ParentAccount=a(1)", "DefAssoc=Yes",
     "ParentAccount=b(2)", "GrpTRESMins=cpu=1(0)", "GrpTRESMins=gres/gpu=", "=", "(7)", "\n",
     "GrpTRESMins=" + "9" * 5000 + "=" + "9" * 5000 + "(" + "9" * 5000 + ")"]
)  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=9)), st.sets(st.sampled_from(["", "a", "b"])))
def test_any_text_has_limits_or_none(words: list[str], accounts: set[str]) -> None:
    for limit in parse_limits(" ".join(words), 7, accounts):
        assert str(limit)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a ``scontrol`` that tests write."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "scontrol").touch(mode=0o755)
    return tmp_path / "scontrol"


@pytest.mark.parametrize("script", ["exit 1", "echo Account=", "exec sleep 60", "printf '\\377'"])
def test_a_slurm_that_gives_no_answer_shows_nothing_and_is_no_error(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(slurm, "_LOOK_S", 0.5)
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    assert own_limits() == []
    done = in_process("guard", "status", "--ceiling", "5", "--json")
    assert (done.code, done.json["slurm_limits"]) == (0, [])


def test_without_slurm_there_are_no_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_limits() == []


def test_slurm_is_asked_once_and_only_for_a_grid_that_runs_there(
    scontrol: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scontrol.write_text('#!/bin/sh\necho "$@" >> asked.txt\n')
    assert "slurm_limits" not in plan_of("process", "")
    assert not Path("asked.txt").exists()
    assert plan_of("slurm", "vision")["slurm_limits"] == []
    (asked,) = Path("asked.txt").read_text().splitlines()
    assert asked.startswith("--oneliner show assoc_mgr flags=assoc users=")


def plan_of(engine: str, account: str) -> Any:
    Path("train.py").touch()
    options = f"slurm: {{account: {account}}}\n" if account else ""
    Path("grid.yaml").write_text(
        f"name: g\nentrypoint: train.py\narguments: flags\nengine: {engine}\n{options}"
        "grid:\n  - params: {lr: [1]}\n"
    )
    done = in_process("sweep", "plan", "grid.yaml", "--json")
    assert done.code == 0, done.err
    return done.json


class LimitedCluster(AccountedCluster):
    """A cluster that counts what its accounts use; without a decay it needs a reset."""

    def _conf_text(self) -> str:
        more = (
            "PriorityType=priority/multifactor", "PriorityDecayHalfLife=0",
            "PriorityUsageResetPeriod=YEARLY", "AccountingStorageEnforce=limits",
        )  # fmt: skip
        return super()._conf_text() + "\n".join(more) + "\n"

    def manage(self, *command: str) -> None:
        """Change the accounts as an administrator does."""
        done = self.run("sacctmgr", "--immediate", *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedCluster]:
    """A cluster with the account vision, of 2,000 GPU-minutes, and speech below it."""
    require_programs(*ACCOUNTING_PROGRAMS)
    found = LimitedCluster(tmp_path_factory.mktemp("limited"), cpus=64, gpus=64)
    user = getpass.getuser()
    try:
        found.start()
        found.manage("add", "account", "vision")
        found.manage("add", "account", "speech", "parent=vision")
        found.manage("add", "user", user, "account=vision", "defaultaccount=vision")
        found.manage("add", "user", user, "account=speech")
        found.manage("modify", "account", "vision", "set", "GrpTRESMins=gres/gpu=2000,cpu=50000")
        yield found
    finally:
        found.stop()


@pytest.mark.cluster
@pytest.mark.xdist_group("accounts")
def test_limit_and_use_of_a_real_account_stand_on_both_screens(
    cluster: LimitedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    before = _gpu_limit()
    assert (before.account, before.user, before.limit_minutes) == ("vision", "", 2000)
    done = cluster.run(
        "sbatch", "--wait", "--account=speech", "--gres=gpu:64", "--time=5", "--output=/dev/null",
        "--wrap=sleep 4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    until(lambda: _gpu_limit().used_minutes > before.used_minutes, cluster.explain)
    used = _gpu_limit().used_minutes
    assert used >= 4 * 64 // 60
    text = f"Slurm's own limit for account vision: {used} of 2,000 GPU-minutes used"
    status = in_process("guard", "status", "--ceiling", "5")
    assert text in " ".join(status.out.split())
    shown = in_process("guard", "status", "--ceiling", "5", "--json").json["slurm_limits"]
    assert {
        "account": "vision", "user": "", "partition": "", "resource": "gres/gpu",
        "limit_minutes": 2000, "used_minutes": used,
    } in shown  # fmt: skip
    for account in ("speech", "vision", ""):
        assert plan_of("slurm", account)["slurm_limits"] == shown
    assert text in " ".join(in_process("sweep", "plan", "grid.yaml").out.split())
    cluster.manage("modify", "account", "vision", "set", "GrpTRESMins=gres/gpu=-1,cpu=-1")
    until(lambda: not own_limits(), cluster.explain)
    assert "Slurm" not in in_process("guard", "status", "--ceiling", "5").out


def _gpu_limit() -> SlurmLimit:
    (limit,) = (each for each in own_limits() if each.resource == "gres/gpu")
    return limit
