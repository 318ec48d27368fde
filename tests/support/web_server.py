"""A real `outlay web` on loopback, and a run that trains for its pages to show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx2

from waiting import PATIENCE_S

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> javascript:alert(1) \x1b[31m"
WEB = (sys.executable, "-m", "outlay", "web", "--json", "--no-open")
TRAINING = """
import sys, time
from pathlib import Path
import outlay
with outlay.run(dir=Path(sys.argv[1]), model="live", name="live run", price="36 USD/h") as run:
    for step in run.steps(range(10**9)):
        run.metric("loss", 1 / (step + 1))
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Served:
    """A server that runs: its address, the one that lets a browser in, and its process."""

    base: str
    url: str
    process: subprocess.Popen[bytes]
    home: Path
    warnings: Sequence[str] = ()

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self.base.rpartition(":")[2])

    @contextmanager
    def client(self) -> Iterator[httpx2.Client]:
        """Yield a client that was let in."""
        with httpx2.Client(base_url=self.base, follow_redirects=True, timeout=PATIENCE_S) as client:
            assert client.get(self.url).status_code == 200
            yield client


@contextmanager
def serving(
    home: Path, *more: str, command: Sequence[str] = WEB, stderr: IO[bytes] | None = None
) -> Iterator[Served]:
    """Serve a home on a free port."""
    environment = os.environ | {"OUTLAY_HOME": str(home)}
    process = subprocess.Popen(
        [*command, *more], env=environment, stdout=subprocess.PIPE, stderr=stderr, cwd=home,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = b"".join(iter(process.stdout.readline, b"}\n"))
        document = json.loads(said + b"}")
        url = document["url"]
        yield Served(url.split("/?")[0], url, process, home, document.get("warnings", ()))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def training(run_dir: Path, home: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Train in a process of its own until the end of the block."""
    environment = os.environ | {"OUTLAY_HOME": str(home)} | variables
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(run_dir)], env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
