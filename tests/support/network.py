"""Hosts on this machine: network namespaces, each on a link of its own that can be cut.

A host is a process that does nothing in a network and a UTS namespace of its own. The namespaces,
and the links with them, go when that process ends, which it does with the one that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from foster_parent import die_with_parent
from system_parts import missing
from waiting import until

RANGE = IPv4Network("198.18.0.0/15")
"""Addresses for tests of networks, by RFC 2544; hosts have the lower half of them."""
_NETWORK, _UTS = 0x40000000, 0x04000000  # flags of setns(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host, and the link to it.

    Attributes:
        pid: Of the process in its namespaces.
        link: The interface on this side.
        gateway: This side's address, where the host finds servers.
        subnet: Of both addresses.
    """

    name: str
    pid: int
    link: str
    gateway: str
    subnet: str

    def enter(self) -> None:
        """Move the calling process, which has one thread, to this host."""
        libc = ctypes.CDLL(None, use_errno=True)
        for kind, flag in (("net", _NETWORK), ("uts", _UTS)):
            file = os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY)
            if libc.setns(file, flag):
                raise OSError(ctypes.get_errno(), f"can't enter the host {self.name}")
            os.close(file)

    def cut(self) -> None:
        """Cut the link: nothing gets through, and nobody is told."""
        ip("link", "set", self.link, "down")

    def restore(self) -> None:
        """Mend the link."""
        ip("link", "set", self.link, "up")


def require_hosts() -> None:
    """Skip where no namespace may be made; fail in CI."""
    try:
        command = ["unshare", "--net", "--uts", "ip", "link", "add", "type", "veth"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        missing(f"{error.filename}: {error.strerror}; see tools/system-packages")
    if tried.returncode:
        missing(f"no network namespace may be made here: {tried.stderr.strip()}")


@contextmanager
def hosts(*names: str) -> Iterator[list[Host]]:
    """Make hosts; they are gone after the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(_host(name, number)) for number, name in enumerate(names)]


@contextmanager
def _host(name: str, number: int) -> Iterator[Host]:
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "sleep", "infinity"], preexec_fn=die_with_parent,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: _is_apart(holder.pid), "the host has no namespaces of its own")
        yield _linked(name, holder.pid, number)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


def _is_apart(pid: int) -> bool:
    mine, theirs = (Path(f"/proc/{one}/ns/uts").readlink() for one in ("self", pid))
    return mine != theirs and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


def _linked(name: str, pid: int, number: int) -> Host:
    """Return a host with a link; the addresses are those of no other process."""
    lower = next(RANGE.subnets())
    blocks = lower.num_addresses // 4
    first = lower.network_address + 4 * ((os.getpid() * 8 + number) % blocks)
    subnet = IPv4Network(f"{first}/30")
    gateway, address = subnet.hosts()
    link = f"outlay{pid}"
    inside = ("nsenter", f"--target={pid}", "--net", "--uts")
    ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("address", "add", f"{gateway}/30", "dev", link)
    ip("link", "set", link, "up")
    ip("address", "add", f"{address}/30", "dev", "eth0", inside=inside)
    ip("link", "set", "eth0", "up", inside=inside)
    ip("link", "set", "lo", "up", inside=inside)
    subprocess.run([*inside, "hostname", name], check=True)
    return Host(name=name, pid=pid, link=link, gateway=str(gateway), subnet=str(subnet))


def ip(*words: str, inside: tuple[str, ...] = ()) -> None:
    """Run a command of iproute2, after the words that enter other namespaces."""
    done = subprocess.run([*inside, "ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
