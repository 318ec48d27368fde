"""Fixtures that every test may use; anything narrower lives beside its tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from outlay.clock import ManualClock
from slurm_cluster import Cluster, require_programs

# How long an example takes, to draw or to run, says more about the machine than about the code.
settings.register_profile("outlay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outlay")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background deaf to Ctrl-C, and all that it starts inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an outlay home of its own and none of the caller's settings."""
    return move_home(tmp_path_factory, monkeypatch)


@pytest.fixture(autouse=True, scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give fixtures of whole modules a home that is not the caller's: they come before tests."""
    with pytest.MonkeyPatch.context() as patch:
        move_home(tmp_path_factory, patch)
        yield


def move_home(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("OUTLAY_")]:
        patch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    patch.setenv("OUTLAY_HOME", str(home))
    if (Path.home() / ".context" / "training").exists():
        patch.setenv("HOME", str(home))  # It would be kept up to date with what tests analyse.
    return home


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Slurm of four nodes, started once for all tests of a process."""
    require_programs()
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster as a user's shell has it, with no job of another test and every node up."""
    for name, value in slurm_cluster.environ.items():
        monkeypatch.setenv(name, value)
    yield slurm_cluster
    slurm_cluster.clear()


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An MLflow database with an experiment; the first use of one takes MLflow some seconds."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(uri).create_experiment("outlay", artifact_location="unused")
    return uri
