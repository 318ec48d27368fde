"""Fixtures that every test may use; anything narrower lives beside its tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

import leftovers
from homes import move_home
from outlay.clock import ManualClock
from pooler import Pooler
from postgres import PostgresServer, TeamDatabase
from slurm_cluster import Cluster, require_programs

if TYPE_CHECKING:
    from ray_cluster import RayCluster

# Hundreds of processes start: without compiled files, each would compile outlay anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A size that readline exported in pytest's first process: commands would take it for a terminal's.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)
sys.dont_write_bytecode = False

# Modules of tests that copy the environment when they are imported get no home of the caller's.
_imported_home = tempfile.TemporaryDirectory(prefix="outlay-home-", ignore_cleanup_errors=True)
os.environ["OUTLAY_HOME"] = _imported_home.name
os.environ["XDG_CONFIG_HOME"] = f"{_imported_home.name}/config"  # Nor the caller's settings.

# Threads of a linear algebra library that wait for each other take the processors from the tests.
for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(library, "1")

# The tree of all commands takes ten times as long to build as a command takes to run.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

# How long an example takes, to draw or to run, says more about the machine than about the code.
settings.register_profile("outlay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outlay")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background deaf to Ctrl-C, and all that it starts inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


SLURM, RAY, POSTGRES = "cluster", "ray", "postgres"
"""Groups of tests that share a server."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the seed of another order, the same in all processes."""
    text = "run tests in the random order of this seed; those of a group stay together"
    parser.addoption("--order-seed", type=int, metavar="N", help=text)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Show the seed, with which the order can be repeated."""
    seed = config.getoption("--order-seed")
    return [] if seed is None else [f"order: --order-seed {seed}"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the hook for all fixtures: one of this file is not called for a session's."""
    config.pluginmanager.register(leftovers)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that share something into one process, where it is made once.

    That is a fixture of their module; the cluster, on which tests wait more than they work: one
    process waits there while the others work; Ray's cluster; and the database server.
    """
    for item in items:
        assert isinstance(item, pytest.Function)
        made = item._fixtureinfo.name2fixturedefs.values()
        if item.get_closest_marker("xdist_group"):
            continue
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group(SLURM))
        elif "ray_cluster" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(RAY))
        elif "postgres_server" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(POSTGRES))
        elif any(each[-1].scope == "module" for each in made):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if (seed := config.getoption("--order-seed")) is not None:
        items[:] = shuffled(items, random.Random(seed))


def shuffled(items: list[pytest.Item], chance: random.Random) -> list[pytest.Item]:
    """Return the tests in random order, but those of a group and module one after another.

    A fixture of a module is then set up once. Groups that share a server come first: each takes
    minutes in one process, for which the others would wait at the end.
    """
    places: defaultdict[tuple[str, ...], float] = defaultdict(chance.random)
    places.update({(group,): -chance.random() for group in (SLURM, RAY, POSTGRES)})

    def place(item: pytest.Item) -> tuple[float, float, float]:
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else item.nodeid
        return places[group,], places[group, str(item.path)], chance.random()

    return sorted(items, key=place)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collector's later work."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves something behind; set up before, and ended after all others."""
    with leftovers.nothing_stays() if leftovers.IS_LINUX else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def private_home(
    nothing_left: None,  # noqa: ARG001 - to be set up before all others
    homes: Iterator[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Give every test an outlay home of its own and none of the caller's settings."""
    return move_home(next(homes), monkeypatch)


@pytest.fixture(autouse=True, scope="session")
def shared_home(homes: Iterator[Path]) -> Iterator[None]:
    """Give fixtures of whole modules a home that is not the caller's: they come before tests."""
    with pytest.MonkeyPatch.context() as patch:
        move_home(next(homes), patch)
        yield


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names for homes, without pytest's look at every directory there is for the next number."""
    directory = tmp_path_factory.mktemp("homes")
    return (directory / str(number) for number in itertools.count())


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Slurm, started once for all tests of a process."""
    require_programs()
    apart = {"preempted": ["p1"], "lost": ["l1"], "disturbed": ["d1", "d2"]}
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), cpus=16, apart=apart)
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
def ray_cluster() -> Iterator[RayCluster]:
    """A real Ray, a head and two nodes, started once for all tests of a process."""
    import ray_cluster

    with ray_cluster.ray_cluster() as cluster:
        yield cluster


@pytest.fixture
def ray(ray_cluster: RayCluster) -> Iterator[RayCluster]:
    """The cluster with no job of another test and every node up."""
    ray_cluster.ready()
    yield ray_cluster
    ray_cluster.clear()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started once for all tests of a process."""
    server = PostgresServer()
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def team(postgres_server: PostgresServer) -> Iterator[TeamDatabase]:
    """A database with books, in which every test takes a book of its own."""
    database = TeamDatabase(postgres_server)
    database.create()
    yield database
    database.remove()


@pytest.fixture(scope="session")
def pooler(team: TeamDatabase) -> Iterator[Pooler]:
    """A real PgBouncer in front of that database."""
    pooler = Pooler(team)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.remove()


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An MLflow database with an experiment; the first use of one takes MLflow some seconds."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(uri).create_experiment("outlay", artifact_location="unused")
    return uri
