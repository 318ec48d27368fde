"""The Ray cluster that tests use: what runs on which node, what fails, and that nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from process_trees import alive
from ray_cluster import RayCluster, ray_cluster
from waiting import until

pytestmark = pytest.mark.slow  # Every test of sweeps on Ray needs what these show.


def on(name: str) -> dict[str, object]:
    """Return what puts a job onto a node."""
    return {"entrypoint_num_cpus": 1, "entrypoint_label_selector": {"node": name}}


@pytest.mark.parametrize("name", ["head", "w2"])
def test_a_job_runs_on_the_node_of_its_label(ray: RayCluster, tmp_path: Path, name: str) -> None:
    said = tmp_path / "said"
    ended = ray.ended(ray.submit(f"hostname > {said}", **on(name)))
    assert ended["status"] == "SUCCEEDED"
    assert ray.node_of(ended["driver_node_id"]) == name
    assert said.read_text() == f"{name}\n"


def test_a_resource_names_a_node(ray: RayCluster) -> None:
    ended = ray.ended(ray.submit("true", entrypoint_resources={"node-w1": 1}))
    assert ray.node_of(ended["driver_node_id"]) == "w1"


def test_a_node_that_was_killed_comes_back(ray: RayCluster) -> None:
    raylet = ray.nodes["w1"].pid_of("raylet")
    os.kill(raylet, signal.SIGKILL)
    ray.kill_node("w2")
    ray.clear()
    ray.ready()
    assert not alive(raylet)
    assert ray.alive() == {"head", "w1", "w2"}
    assert ray.ended(ray.submit("true", **on("w1")))["status"] == "SUCCEEDED"


def test_no_job_of_a_test_is_there_in_the_next(ray: RayCluster, tmp_path: Path) -> None:
    first = ray.submit(
        f"touch {tmp_path}/runs; sleep 1000", **on("w2") | {"entrypoint_num_cpus": 2}
    )
    until((tmp_path / "runs").exists, lambda: f"{ray.job(first)}")
    waits = ray.submit(f"touch {tmp_path}/ran", **on("w2"))
    never = ray.submit(f"touch {tmp_path}/ran", entrypoint_resources={"of no node": 1})
    ray.clear()
    assert {ray.job(job)["status"] for job in (first, waits, never)} <= {"STOPPED", "FAILED"}
    assert not (tmp_path / "ran").exists()


def test_a_cluster_of_ones_own_with_secrets_and_private_files(tmp_path: Path) -> None:
    """One cluster for several claims, as it takes half a minute to start."""
    own = tmp_path / "own"
    own.mkdir()
    with ray_cluster(
        names=("head", "w1"), token="t" * 32, private={"w1": [own]}, persistent=True
    ) as ray:
        here, directory = ray.pids(), ray.directory
        # A token is asked for.
        assert ray.request(
            "GET", "/api/jobs/", headers={"Authorization": "Bearer no"}
        ).status_code in {401, 403}
        # Files of a private directory are those of one node.
        ended = ray.ended(ray.submit(f"touch {own}/file && test -e {own}/file", **on("w1")))
        assert ended["status"] == "SUCCEEDED"
        assert not list(own.iterdir())
        # A head that comes back knows its jobs.
        os.kill(ray.nodes["head"].pid_of("gcs_server"), signal.SIGKILL)
        ray.kill_node("head")
        ray.start_head()
        assert ray.job(ended["submission_id"])["status"] == "SUCCEEDED"
        until(lambda: ray.alive() == {"head", "w1"}, ray.explain)
        link = ray.link
    assert not any(map(alive, here))
    assert not directory.exists()
    until(lambda: not Path(f"/sys/class/net/{link}").exists(), f"{link} stays")


def test_a_cluster_ends_with_the_test_process() -> None:
    """A test process that is killed leaves no process of the cluster."""
    program = (
        "import sys; from ray_cluster import RayCluster\n"
        "cluster = RayCluster(names=('head',)); cluster.start()\n"
        "print(cluster.directory, *cluster.pids(), flush=True); sys.stdin.read()\n"
    )
    support = str(Path(__file__).parent / "support")
    environ = os.environ | {"PYTHONPATH": f"{support}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        directory, *pids = process.stdout.readline().decode().split()
        process.kill()
    assert len(pids) > 5
    until(lambda: not any(alive(int(pid)) for pid in pids), f"left behind: {pids}")
    shutil.rmtree(directory)
