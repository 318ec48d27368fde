"""Run the command line in a process of its own, or faster in this one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leftovers
from outlay.cli.app import app
from outlay.cli.output import console
from outlay.clock import SYSTEM
from outlay.errors import OutlayError
from waiting import PATIENCE_S


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def outlay(*arguments: str | Path, columns: int = 80, **environment: str) -> Outcome:
    """Run ``python -m outlay`` with the arguments in a process of its own.

    It is forked from one that has imported everything, unless a variable matters before that.
    """
    environ = os.environ | {"COLUMNS": str(columns)} | environment
    words = list(map(str, arguments))
    if any(not name.startswith(("OUTLAY_", "MFCL_")) for name in environment):
        return _started(words, environ)
    return _fork_server().run(_request(*words) | {"environ": environ})


def python(code: str, *arguments: str | Path) -> Outcome:
    """Run ``python -c`` with the arguments in a forked process that has imported outlay."""
    return _fork_server().run(_request(*arguments) | {"code": code})


def start_outlay(*arguments: str | Path) -> Background:
    """Start ``python -m outlay`` in a session of its own; its output is that of the tests."""
    return _fork_server().start(_request(*arguments) | {"own_session": True})


def start_python(code: str, *arguments: str | Path) -> Background:
    """Start ``python -c`` in the same way."""
    return _fork_server().start(_request(*arguments) | {"own_session": True, "code": code})


def _request(*arguments: str | Path) -> dict[str, object]:
    words, environ = list(map(str, arguments)), dict(os.environ)
    return {"arguments": words, "environ": environ, "cwd": str(Path.cwd()), "own_session": False}


def run_module(name: str, *arguments: str | Path) -> Outcome:
    """Run ``python -m NAME`` like ``python``, in a process that has imported outlay."""
    return python(f"import runpy\nrunpy.run_module({name!r}, run_name='__main__')", *arguments)


def _started(words: list[str], environ: dict[str, str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "outlay", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


class Background:
    """A command that was started, to be signalled and waited for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Return its exit code, negative after a signal."""
        if self.returncode is None:
            self.returncode = int(self._answers.readline())
            self._connection.close()
        return self.returncode


class ForkServer:
    """Client of ``fork_server.py``, which it starts; the server ends with this process."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="outlay-fork-")
        self._path = str(Path(self._directory.name) / "socket")
        program = Path(__file__).with_name("fork_server.py")
        # It outlives the test that starts it, whose environment must not reach other tests.
        environ = {n: v for n, v in os.environ.items() if n != "CLUSTER_UNDER_TEST"}
        self._process = subprocess.Popen(
            [sys.executable, str(program), self._path], stdin=subprocess.DEVNULL, env=environ,
            start_new_session=True,
        )  # fmt: skip
        atexit.register(self._process.kill)

    def start(self, request: dict[str, object], out: int = 1, err: int = 2) -> Background:
        """Start a command whose output goes to these files."""
        connection = self._connected()
        sent = json.dumps(request).encode() + b"\n"
        first = socket.send_fds(connection, [sent], [out, err])
        if rest := sent[first:]:  # Without, the command may have ended: sending nothing fails then.
            connection.sendall(rest)
        return Background(connection)

    def run(self, request: dict[str, object]) -> Outcome:
        """Run a command and return its outcome."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = self.start(request, out.fileno(), err.fileno())
            try:
                code = started.wait()
            except BaseException:  # The limit of the test, or Ctrl-C.
                started.send_signal(signal.SIGKILL)
                raise
            texts = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
        return Outcome(code, *texts)

    def _connected(self) -> socket.socket:
        until_ns = SYSTEM.monotonic_ns() + PATIENCE_S * 10**9
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(PATIENCE_S)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                assert self._process.poll() is None, "the fork server did not start"
                assert SYSTEM.monotonic_ns() < until_ns, "the fork server does not answer"
                SYSTEM.sleep(0.02)
            else:
                connection.settimeout(None)
                return connection


@functools.cache
def _fork_server() -> ForkServer:
    with leftovers.wider():
        return ForkServer()


def in_process(
    *words: object, columns: int | None = None, typed: str | None = None, **environment: str
) -> Outcome:
    """Call a command in this process; errors for the user end it as in ``main``."""
    with pytest.MonkeyPatch.context() as patch:
        if columns is not None:
            patch.setattr(console, "_width", columns)
        result = CliRunner().invoke(app, list(map(str, words)), input=typed, env=environment)
    if isinstance(result.exception, OutlayError):
        error = result.exception
        return Outcome(error.exit_code, result.stdout, f"{result.stderr}error: {error}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)
