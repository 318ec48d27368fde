"""A real Ray on this machine: a head and further nodes, each a host of its own.

The cluster has a pid and a network namespace, and in it each node has a network, a UTS and a mount
namespace: an address and a name of its own, a link that can be cut, and directories of its own
where a test wants them. All other files are common to the nodes and to the test, which uses the
dashboard at ``url`` with any HTTP client.

Everything ends with the first process of the pid namespace. ``ray stop`` is not used: it ends
processes by name, also those of others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import httpx2

from foster_parent import FosterParent
from network import RANGE, ip, require_hosts
from system_parts import missing
from waiting import until

HEAD = "head"
NODES = (HEAD, "w1", "w2")
_PROGRAM = Path(sys.executable).with_name("ray")
_GCS_PORT, _DASHBOARD_PORT = 6379, 8265
_OBJECT_STORE_BYTES = 80_000_000  # Ray wants 75 MB at least.
_APART = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
_KILL = """
import contextlib, ray, sys
ray.init(sys.argv[1], namespace="SUPERVISOR_ACTOR_RAY_NAMESPACE", log_to_driver=False)
for job in sys.argv[2:]:
    with contextlib.suppress(ValueError):  # It has ended.
        ray.kill(ray.get_actor(f"_ray_internal_job_actor_{job}"))
"""
_made = itertools.count()
_TRIES = 6


def require_ray() -> None:
    """Skip where Ray or namespaces are missing; fail in CI."""
    if importlib.util.find_spec("ray") is None or not _PROGRAM.exists():
        missing("Ray is not installed here: the group `test-integrations` has it")
    require_hosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node: a process that holds its namespaces, and what Ray runs in them.

    Attributes:
        holder: The pid of that process, seen from the test.
        inner_holder: The same, seen from the cluster.
    """

    name: str
    address: str
    holder: int
    inner_holder: int

    def pids(self) -> list[int]:
        """Return the live processes of this node: Ray's and those of its jobs."""
        network = _namespace(self.holder, "net")
        found = [pid for pid in _all_pids() if _namespace(pid, "net") == network]
        return [pid for pid in found if pid != self.holder and _state(pid) not in "ZX"]

    def runs(self, program: str) -> bool:
        """Return whether one of Ray's daemons lives."""
        return any(_program(pid) == program for pid in self.pids())

    def pid_of(self, program: str) -> int:
        """Return the pid of one of Ray's daemons: ``raylet``, ``gcs_server``."""
        (found,) = [pid for pid in self.pids() if _program(pid) == program]
        return found


@dataclass(slots=True)
class RayCluster:
    """The nodes of one cluster, by name.

    Every node has the label ``node`` with its name, and the resource ``node-NAME``.

    Attributes:
        names: Of the nodes; the first is the head.
        cpus: Of every node; jobs share those of this machine.
        private: Directories that some nodes see empty, with files that nobody else sees, by node.
        token: What requests must have as bearer token, unless it is empty.
        persistent: Whether a head that is started again knows nodes and jobs of before.
        variables: Further variables of Ray's daemons, and thereby of jobs.
        started: Inside of the cluster, the pid of ``ray start`` of each node.
        starts: How often each was started; the label ``start`` of a node.
        revived: The nodes that ``clear`` had to start again, since the last ``ready``.
    """

    names: Sequence[str] = NODES
    cpus: int = 2
    private: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    token: str = ""
    persistent: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    # The paths of sockets are below it, and may have 107 bytes: pytest's directories are too long.
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ray-")))
    nodes: dict[str, RayNode] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    started: dict[str, int] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    revived: Counter[str] = field(default_factory=Counter)
    parent: FosterParent = field(init=False)
    init: int = field(init=False)
    link: str = field(init=False)
    gateway: str = field(init=False)
    subnet: IPv4Network = field(init=False)

    @property
    def url(self) -> str:
        """Of the dashboard, which has the REST API of jobs."""
        return f"http://{self.nodes[self.names[0]].address}:{_DASHBOARD_PORT}"

    @property
    def address(self) -> str:
        """What ``ray.init`` takes on a node."""
        return f"{self.nodes[self.names[0]].address}:{_GCS_PORT}"

    @property
    def _hosts(self) -> Path:
        """The addresses of all nodes by name, which collectives of torch look up."""
        return self.directory / "hosts"

    @property
    def headers(self) -> dict[str, str]:
        """What requests need."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def environ(self) -> dict[str, str]:
        """What a shell on a node has: nothing of the test's own, such as a home or a proxy."""
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
        path = f"{_PROGRAM.parent}:{os.environ.get('PATH', os.defpath)}"
        home = {"PATH": path, "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token} if self.token else {}
        return kept | home | {"RAY_USAGE_STATS_ENABLED": "0"} | token | dict(self.variables)

    # -- the whole

    def start(self) -> None:
        """Start everything, and wait until every node is alive."""
        self.parent = FosterParent(*_APART)
        until(lambda: len(_children(self.parent.pid)) == 1, "no pid namespace")
        (self.init,) = _children(self.parent.pid)
        until(lambda: _program(self.init) != "unshare", "the namespace has no first process")
        self._make_network()
        _, *free = map(str, self.subnet.hosts())
        addresses = dict(zip(self.names, free, strict=False))
        known = {"localhost": "127.0.0.1"} | addresses
        self._hosts.write_text("".join(f"{where} {name}\n" for name, where in known.items()))
        self.nodes |= {name: self._make_node(name, where) for name, where in addresses.items()}
        self._start_all(self.names)
        until(lambda: self._are_up(*self.names), self.explain)

    def _start_all(self, names: Iterable[str]) -> None:
        for name in names:
            if name == self.names[0]:
                self.start_head(wait=False)
                until(self._takes_nodes, self.explain)
            else:
                self.start_node(name, wait=False)

    def stop(self) -> None:
        """End everything at once; nothing is left."""
        if hasattr(self, "parent"):
            self.parent.end()  # The kernel kills the rest, and then takes the network away.
        shutil.rmtree(self.directory)

    def pids(self) -> list[int]:
        """Return the live processes in the pid namespace, its first one included."""
        mine = _namespace(self.init, "pid")
        return [pid for pid in _all_pids() if mine and _namespace(pid, "pid") == mine]

    def _make_network(self) -> None:
        """Make a switch for all nodes, with a link to it from here."""
        upper = list(RANGE.subnets())[1]
        blocks = list(upper.subnets(new_prefix=28))
        self.subnet = blocks[(os.getpid() * 4 + next(_made)) % len(blocks)]
        self.gateway, self.link = str(next(self.subnet.hosts())), f"ray{self.init}"
        peer = ("peer", "name", "eth0", "netns", str(self.init))
        ip("link", "add", self.link, "type", "veth", *peer)
        ip("address", "add", f"{self.gateway}/28", "dev", self.link)
        ip("link", "set", self.link, "up")
        self._ip("link", "add", "switch", "type", "bridge")
        self._ip("link", "set", "eth0", "master", "switch")
        for name in ("eth0", "switch", "lo"):
            self._ip("link", "set", name, "up")

    def _ip(self, *words: str) -> None:
        ip(*words, inside=("nsenter", f"--target={self.init}", "--net", "--pid", "--mount"))

    # -- nodes

    def _make_node(self, name: str, address: str) -> RayNode:
        apart = ("unshare", "--net", "--uts", "--mount", "sleep", "infinity")
        inner = self.parent.start(*apart, env=os.environ, output=self.directory / "holder.out")
        until(lambda: _program(self._outer(inner)) == "sleep", "the node has no namespaces")
        outer = self._outer(inner)
        peer = ("peer", "name", "eth0", "netns", str(inner))
        self._ip("link", "add", name, "type", "veth", *peer)
        self._ip("link", "set", name, "master", "switch", "up")
        node = RayNode(name=name, address=address, holder=outer, inner_holder=inner)
        inside = self.inside(node)
        ip("address", "add", f"{address}/28", "dev", "eth0", inside=inside)
        ip("link", "set", "eth0", "up", inside=inside)
        ip("link", "set", "lo", "up", inside=inside)
        # By the route to the rest of the world, which is not there, Ray finds its own address.
        ip("route", "add", "default", "dev", "eth0", inside=inside)
        subprocess.run([*inside, "hostname", name], check=True)
        subprocess.run([*inside, "mount", "--bind", self._hosts, "/etc/hosts"], check=True)
        for directory in self.private.get(name, ()):
            subprocess.run([*inside, "mount", "-t", "tmpfs", "tmpfs", directory], check=True)
        return node

    @contextlib.contextmanager
    def hiding(self, *directories: Path) -> Iterator[None]:
        """Have every node see directories empty, with files that nobody else sees."""
        for node, directory in itertools.product(self.nodes.values(), directories):
            mount = ("mount", "-t", "tmpfs", "tmpfs", str(directory))
            subprocess.run([*self.inside(node), *mount], check=True)
        try:
            yield
        finally:
            for node, directory in itertools.product(self.nodes.values(), directories):
                subprocess.run([*self.inside(node), "umount", "-l", directory], check=True)

    def path_on(self, name: str, path: str) -> Path:
        """Return where the test sees a file of a node."""
        return Path(f"/proc/{self.nodes[name].holder}/root{path}")

    @staticmethod
    def inside(node: RayNode) -> tuple[str, ...]:
        """Return the words that put a command of the test onto a node."""
        return ("nsenter", f"--target={node.holder}", "--net", "--uts", "--mount", "--pid")

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a node as a user would, and wait for it."""
        return subprocess.run(
            [*self.inside(self.nodes[name]), *command], env=self.environ, capture_output=True,
            text=True, check=False, cwd=self.directory,
        )  # fmt: skip

    def start_head(self, *, wait: bool = True) -> None:
        """Start the head, or start it again."""
        self._start(self.names[0], "--head", f"--port={_GCS_PORT}", "--dashboard-host=0.0.0.0",
                    f"--dashboard-port={_DASHBOARD_PORT}")  # fmt: skip
        if wait:
            until(lambda: self._are_up(self.names[0]), self.explain)

    def _takes_nodes(self) -> bool:
        """Return whether the head listens to nodes, which it does long before its dashboard."""
        self._start_ended(self.names[0])
        host, _, port = self.address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
            return True
        return False

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Start a node, or start it again."""
        self._start(name, f"--address={self.address}")
        if wait:
            until(lambda: self._are_up(name), self.explain)

    def _are_up(self, *names: str) -> bool:
        self._start_ended(*names)
        if not self.alive() >= set(names):
            return False
        self.tries.clear()
        return True

    def _start_ended(self, *names: str) -> None:
        """Start nodes again that ended while they started: Ray gives up on a busy machine.

        A node that waits for the others for half a minute ends with all its daemons.
        """
        for name in names:
            if self._outer(self.started[name]):
                continue
            self.tries[name] += 1
            assert self.tries[name] < _TRIES, f"{name} ended\n{self.explain()}"
            self.kill_node(name)
            if name == self.names[0]:
                self.start_head(wait=False)
            else:
                self.start_node(name, wait=False)

    def _start(self, name: str, *words: str) -> None:
        node, temporary = self.nodes[name], self.directory / name
        temporary.mkdir(exist_ok=True)
        (temporary / "ray_current_cluster").unlink(missing_ok=True)  # As a reboot does.
        self.starts[name] += 1
        labels = f"node={name},start={self.starts[name]}"
        enter = ("nsenter", f"--target={node.inner_holder}", "--net", "--uts", "--mount")
        store = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": f"{self.directory}/gcs"}
        self.started[name] = self.parent.start(
            *enter, str(_PROGRAM), "start", "--block", "--disable-usage-stats",
            f"--node-ip-address={node.address}", f"--num-cpus={self.cpus}", "--num-gpus=0",
            f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--temp-dir={temporary}",
            f"--labels={labels}", f"--resources={json.dumps({f'node-{name}': 100})}", *words,
            env=self.environ | (store if self.persistent else {}),
            output=self.directory / f"{name}.out",
        )  # fmt: skip

    def kill_node(self, name: str) -> None:
        """Kill all processes of a node, of Ray and of jobs, as a power cut would."""

        def killed() -> bool:
            found = self.nodes[name].pids()
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        until(killed, lambda: f"left on {name}: {self.nodes[name].pids()}")

    def cut(self, name: str) -> None:
        """Cut a node's link: nothing gets through, and nobody is told."""
        self._ip("link", "set", name, "down")

    def restore(self, name: str) -> None:
        """Mend the link."""
        self._ip("link", "set", name, "up")

    # -- what the dashboard says

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> httpx2.Response:
        """Send a request to the dashboard."""
        with httpx2.Client(base_url=self.url, trust_env=False, timeout=60) as client:
            return client.request(method, path, headers=headers or self.headers, **more)

    def alive(self) -> set[str]:
        """Return the names of nodes whose last start the head has seen alive."""
        found = [each["labels"] for each in self.states() if each["state"] == "ALIVE"]
        return {each["node"] for each in found if each["start"] == str(self.starts[each["node"]])}

    def states(self) -> list[dict[str, Any]]:
        """Return what the head knows of nodes, dead ones included; nothing while it starts."""
        with contextlib.suppress(httpx2.TransportError):
            answer = self.request("GET", "/api/v0/nodes", params={"detail": "true"})
            if answer.status_code == 200:
                return list(answer.json()["data"]["result"]["result"])
        return []

    def node_of(self, node_id: str) -> str:
        """Return the name of a node by Ray's id."""
        (found,) = [each for each in self.states() if each["node_id"] == node_id]
        return str(found["labels"]["node"])

    def submit(self, entrypoint: str, **more: Any) -> str:
        """Submit a job; return its id."""
        answer = self.request("POST", "/api/jobs/", json={"entrypoint": entrypoint, **more})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["submission_id"])

    def job(self, job: str) -> dict[str, Any]:
        """Return what the head knows of a job."""
        return dict(self.request("GET", f"/api/jobs/{job}").json())

    def ended(self, job: str) -> dict[str, Any]:
        """Wait for a job's end; return what the head knows of it."""
        until(lambda: self.job(job)["status"] in _ENDED, lambda: f"{self.job(job)}")
        return self.job(job)

    def logs(self, job: str) -> str:
        """Return what a job printed so far."""
        return str(self.request("GET", f"/api/jobs/{job}/logs").json()["logs"])

    def clear(self) -> None:
        """End every job, and wait until all nodes are alive; what a test cut or killed is back.

        Before another job, call ``ready``.
        """
        for name in self.names:
            self.restore(name)
        before = Counter(self.starts)
        until(self._are_revived, self.explain)
        self.revived |= self.starts - before
        jobs = self._open_jobs()
        # First those that wait: the others' room would let them start. Ray does not stop them.
        if pending := [job for job in jobs if self.job(job)["status"] == "PENDING"]:
            self._kill_supervisors(pending)
        for job in jobs:
            self.request("POST", f"/api/jobs/{job}/stop")
        if any(self.job(job)["status"] == "PENDING" for job in jobs):
            self._kill_supervisors(jobs)
        until(lambda: not self._open_jobs(), lambda: f"{self._open_jobs()}\n{self.explain()}")

    def ready(self) -> None:
        """Wait until nodes that were revived take jobs: the head may send them to the old node."""
        for name in self.revived:
            until(partial(self._takes_jobs, name), self.explain)
        self.revived.clear()

    def _takes_jobs(self, name: str) -> bool:
        wanted = {"entrypoint_num_cpus": 1, "entrypoint_label_selector": {"node": name}}
        return bool(self.ended(self.submit("true", **wanted))["status"] == "SUCCEEDED")

    def _are_revived(self) -> bool:
        """Start nodes again that have ended; return whether all are alive."""
        dead = [name for name in self.names if not self._outer(self.started[name])]
        if self.names[0] in dead and not self.persistent:
            dead = list(self.names)  # The new head does not know the other nodes.
        for name in dead:
            self.kill_node(name)
        self._start_all(dead)
        # The head hears a little later that a raylet has ended.
        whole = all(node.runs("raylet") for node in self.nodes.values())
        return whole and self.alive() == set(self.names)

    def _open_jobs(self) -> list[str]:
        found = self.request("GET", "/api/jobs/").json()
        mine = [each for each in found if each["type"] == "SUBMISSION"]
        return [each["submission_id"] for each in mine if each["status"] not in _ENDED]

    def _kill_supervisors(self, jobs: Sequence[str]) -> None:
        done = self.run(self.names[0], sys.executable, "-c", _KILL, self.address, *jobs)
        assert done.returncode == 0, done.stderr

    def explain(self) -> str:
        """Return what nodes had to say, for a test that gives up."""
        said = sorted(self.directory.glob("*.out"))
        return "\n".join(f"== {each.name}\n{each.read_text()[-2000:]}" for each in said)

    def _outer(self, inner: int) -> int:
        """Return the pid for the test of a process of the cluster; 0 if there is none."""
        return next((pid for pid in self.pids() if _pids_in_namespaces(pid)[-1] == inner), 0)


@contextlib.contextmanager
def ray_cluster(**options: Any) -> Iterator[RayCluster]:
    """Start a cluster with the arguments of ``RayCluster``; it is gone after the block."""
    require_ray()
    cluster = RayCluster(**options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _namespace(pid: int, kind: str) -> str:
    """Return which namespace a process is in; "" where it has ended."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return ""


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _pids_in_namespaces(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return [int(each) for each in status.partition("NSpid:")[2].partition("\n")[0].split()]
    return [0]
