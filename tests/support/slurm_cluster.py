"""A real Slurm on this machine: munge, a controller, and a slurmd for each of four or more nodes.

Everything lies under one directory and listens on its own ports. Nodes are names for the same
host, so that they share its processes and its loopback; what a cluster does with jobs is real.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foster_parent import FosterParent
from outlay.sweep.engines.ports import Ports
from process_trees import alive
from system_parts import missing
from waiting import until

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
SYSTEM_PATHS = "/usr/sbin:/usr/local/sbin:/sbin"

# With a short SlurmdTimeout nodes register every few seconds, and a slurmd that registers while a
# job starts may take its script for a leftover and remove it ("Purging vestigial job script").
_CONF = """\
ClusterName=fake
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={dir}/munge/socket,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=1
JobRequeue=1
KillWait=5
MinJobAge=300
MaxArraySize={tasks}
SlurmdParameters=config_overrides
SlurmdTimeout=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
GresTypes=gpu
{nodes}
{partitions}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_programs(*more: str) -> list[str]:
    """Return which of the programs that a cluster needs are not installed."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
    return [name for name in (*PROGRAMS, *more) if shutil.which(name, path=path) is None]


def require_programs(*more: str) -> None:
    """Skip on a machine without Slurm; fail where everything ought to be installed."""
    if lacking := missing_programs(*more):
        missing(f"Slurm is not installed here ({', '.join(lacking)}); see tools/system-packages")


@dataclass(slots=True)
class Cluster:
    """The daemons of one cluster, by name, and where they live.

    Attributes:
        cpus: Of every node; jobs share those of this machine.
        gpus: Of every node; they are counted and given out, and no device stands behind them.
        tasks: One more than the largest task of an array.
        apart: The nodes of further partitions, by name; ``clear`` leaves their jobs alone.
    """

    directory: Path
    cpus: int = 2
    gpus: int = 0
    tasks: int = 21
    apart: Mapping[str, Sequence[str]] = field(default_factory=dict)
    daemons: dict[str, int] = field(default_factory=dict)
    parent: FosterParent = field(init=False)
    ports: Ports = field(default_factory=Ports)
    reserved: list[int] = field(default_factory=list)
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def nodes(self) -> list[str]:
        return [*NODES, *itertools.chain(*self.apart.values())]

    @property
    def conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        """What a user's shell has on this cluster."""
        path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATHS}"
        # Everything that Slurm starts inherits the mark, and is found by it when all is over.
        return {"SLURM_CONF": str(self.conf), "PATH": path, "CLUSTER_UNDER_TEST": self.mark}

    def start(self) -> None:
        """Start everything, and wait until every node is idle."""
        self.parent = FosterParent()
        for name in ("munge", "state", "spool"):
            (self.directory / name).mkdir(parents=True)
        key = self.directory / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self.conf.write_text(self._conf_text())
        (self.directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.directory / "gres.conf").write_text(self._gres_text())
        self._start_munge()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        until(lambda: self.idle_nodes() == len(NODES), self.explain)

    def _gres_text(self) -> str:
        """Name a file for every GPU of a node: Slurm wants one, and looks no further."""
        if not self.gpus:
            return ""
        for number in range(self.gpus):
            (self.directory / f"gpu{number}").touch()
        return f"Name=gpu File={self.directory}/gpu[0-{self.gpus - 1}]\n"

    def _conf_text(self) -> str:
        host = socket.gethostname().partition(".")[0]
        controller, *of_nodes = self.reserved = [self.ports.reserve() for _ in ("", *self.nodes)]
        granted = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={self.cpus} RealMemory=4000{granted} State=UNKNOWN"
            for node, port in zip(self.nodes, of_nodes, strict=True)
        ]
        partitions = [
            f"PartitionName={name} Nodes={','.join(nodes)} MaxTime=INFINITE State=UP "
            "PriorityTier=1 GraceTime=20"
            for name, nodes in {"main Default=YES": NODES, **self.apart}.items()
        ]
        return _CONF.format(
            host=host, port=controller, user=getpass.getuser(), dir=self.directory,
            nodes="\n".join(nodes), partitions="\n".join(partitions), tasks=self.tasks,
        )  # fmt: skip

    def _start_munge(self) -> None:
        munge = self.directory / "munge"
        self._daemon(
            "munged", "munged", "--foreground", "--force", f"--key-file={munge / 'key'}",
            f"--socket={munge / 'socket'}", f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}", f"--seed-file={munge / 'seed'}",
        )  # fmt: skip
        until((munge / "socket").exists, self.explain)

    def start_controller(self) -> None:
        """Start the controller, or start it again: it reads its state from its directory."""
        self._daemon("slurmctld", "slurmctld", "-D")
        until(lambda: self.run("scontrol", "ping").returncode == 0, self.explain)

    def restart_controller(self) -> None:
        """End the controller as an administrator does, and start it again from what it saved."""
        daemon = self.daemons.pop("slurmctld")
        os.kill(daemon, signal.SIGTERM)
        until(lambda: not alive(daemon), self.explain)
        self.start_controller()

    def start_node(self, node: str) -> None:
        """Start a node, or start it again."""
        (self.directory / "spool" / node).mkdir(exist_ok=True)
        self._daemon(node, "slurmd", "-D", "-N", node)

    def revive_node(self, node: str) -> None:
        """Start a node that was killed, and let jobs have it again."""
        self.start_node(node)
        self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def _daemon(self, name: str, *command: str) -> None:
        self.daemons[name] = self.parent.start(
            *command, env=os.environ | self.environ, output=self.directory / f"{name}.out"
        )

    def kill(self, name: str) -> None:
        """Kill a daemon and its group at once, as a power cut would."""
        daemon = self.daemons.pop(name)
        if _variable(daemon, "CLUSTER_UNDER_TEST") == self.mark:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon, signal.SIGKILL)
            until(lambda: not alive(daemon), f"{name} does not end")

    def kill_node(self, node: str) -> None:
        """Kill a node: its daemon, and every process of a job that it runs."""
        self.kill(node)
        tasks = [pid for pid in self.running() if _variable(pid, "SLURMD_NODENAME") == node]
        steps = {parent for pid in tasks if _is_step(parent := _parent(pid))}
        for pid in [*steps, *tasks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What a cluster's health check does; the controller's own would take most of a minute.
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")

    def stop(self) -> None:
        """End everything that runs here, jobs first; nothing is left."""
        for name in ("slurmctld", *self.nodes, "munged"):
            if name in self.daemons:
                self.kill(name)
        until(self._kill_everything, lambda: f"left behind: {self.running()}")
        self.parent.end()
        for port in self.reserved:
            self.ports.release(port)

    def _kill_everything(self) -> bool:
        """Kill what runs here; say whether nothing did."""
        found = self.running()
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return not found

    def running(self) -> list[int]:
        """Return the live processes of this cluster, this one left out."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            if pid != os.getpid() and _variable(pid, "CLUSTER_UNDER_TEST") == self.mark:
                found.append(pid)
        return found

    def clear(self) -> None:
        """End every job of the main partition, and wait until all of its nodes are idle."""
        queued = self.run("squeue", "--noheader", "--partition=main", "--format=%F")
        if jobs := sorted(set(queued.stdout.split())):
            self.run("scancel", "--signal=KILL", *jobs)
            self.run("scancel", *jobs)
        until(lambda: self.idle_nodes() == len(NODES), self.explain)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands as a user would."""
        return subprocess.run(
            command, env=os.environ | self.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def idle_nodes(self) -> int:
        """Return how many nodes wait for work."""
        return len(self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "main").stdout.splitlines())

    def explain(self) -> str:
        """Return what the daemons had to say, for a test that gives up."""
        logs = sorted(self.directory.glob("*.log"))
        queue = self.run("squeue", "-a", "-t", "all").stdout + self.run("sinfo", "-N").stdout
        return queue + "\n".join(f"== {log.name}\n{log.read_text()[-600:]}" for log in logs)


ACCOUNTING_PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb", "slurmdbd", "sacctmgr", "sacct")

_DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
DbdHost={host}
DbdPort={port}
SlurmUser={user}
LogFile={dir}/slurmdbd.log
PidFile={dir}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


class AccountedCluster(Cluster):
    """A cluster that keeps accounts: a database and slurmdbd beside the other daemons."""

    def _conf_text(self) -> str:
        text = super()._conf_text()
        self.reserved += [self.ports.reserve(), self.ports.reserve()]
        host = socket.gethostname().partition(".")[0]
        stored = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu\n"
            f"AccountingStorageHost={host}\nAccountingStoragePort={self.reserved[-1]}\n"
            f"AccountingStoragePass={self.directory}/munge/socket"
        )
        return text.replace("AccountingStorageType=accounting_storage/none", stored)

    def start_controller(self) -> None:
        """Start the accounts before the controller, which reports to them."""
        if "slurmdbd" not in self.daemons:
            self._start_database()
            self._start_accounts()
        super().start_controller()

    def _start_database(self) -> None:
        data, sock = self.directory / "data", self.directory / "database.socket"
        # A server that starts removes the temporary tables that it finds, those of others, too.
        temporary = self.directory / "temporary"
        temporary.mkdir()
        made = self.run(
            "mariadb-install-db", "--no-defaults", f"--user={getpass.getuser()}",
            f"--datadir={data}", f"--tmpdir={temporary}", "--skip-test-db",
            "--auth-root-authentication-method=socket",
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        self._daemon(
            "mariadbd", "mariadbd", "--no-defaults", f"--user={getpass.getuser()}",
            f"--datadir={data}", f"--tmpdir={temporary}", f"--socket={sock}",
            "--bind-address=127.0.0.1", f"--port={self.reserved[-2]}", "--skip-name-resolve",
            f"--pid-file={self.directory / 'mariadbd.pid'}", "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        ask = ("mariadb", "--no-defaults", f"--socket={sock}", "-e")
        until(lambda: self.run(*ask, "select 1").returncode == 0, self.explain)
        self.run(
            *ask,
            "create database slurm_acct_db; "
            "create user slurm@'127.0.0.1' identified by 'slurm'; "
            "grant all on slurm_acct_db.* to slurm@'127.0.0.1';",
        )

    def _start_accounts(self) -> None:
        host = socket.gethostname().partition(".")[0]
        conf = self.directory / "slurmdbd.conf"
        text = _DBD_CONF.format(
            dir=self.directory, host=host, port=self.reserved[-1], user=getpass.getuser(),
            database=self.reserved[-2],
        )  # fmt: skip
        conf.write_text(text)
        conf.chmod(0o600)
        self._daemon("slurmdbd", "slurmdbd", "-D")
        until(
            lambda: self.run("sacctmgr", "--immediate", "add", "cluster", "fake").returncode == 0,
            self.explain,
        )

    def stop(self) -> None:
        """End everything, the accounts last."""
        for name in ("slurmctld", "slurmdbd", "mariadbd"):
            if name in self.daemons:
                self.kill(name)
        super().stop()


def _variable(pid: int, name: str) -> str:
    """Return a variable of a process's environment; "" where it is gone or is a zombie."""
    with contextlib.suppress(OSError):
        for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if item.startswith(f"{name}=".encode()):
                return item.partition(b"=")[2].decode(errors="replace")
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def squeue_line(
    job: str = "17", index: str = "N/A", *, state: str = "RUNNING", reason: str = "None",
    nodes: str = "", start: str = "N/A", end: str = "N/A", name: str = "job", script: str = "",
) -> str:  # fmt: skip
    """Return a line of squeue in the format in which outlay asks for it."""
    return "|".join([job, index, state, reason, nodes, start, end, name, script])


def _is_step(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
