"""Forks a process for each command line: what it would import first is imported once for all.

Started by ``command_line.outlay`` as ``python fork_server.py SOCKET``. A request is one JSON line
with the arguments, the whole environment, the directory, whether it gets a session of its own, and
the code where that is not outlay's; the files for its output come with it. The answer is the
process's id, then its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys


def preload() -> None:
    """Import what commands import, without running anything of it."""
    import outlay.cli

    for module in pkgutil.walk_packages(outlay.cli.__path__, "outlay.cli."):
        importlib.import_module(module.name)


def serve(path: str) -> None:
    """Fork a handler for each connection until the one who started this is gone."""
    preload()
    starter = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(1.0)
        while os.getppid() == starter:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listener.close()
                os._exit(handle(connection)) if os.fork() == 0 else os._exit(0)
            connection.close()
            os.wait()  # The handler's parent, which is gone at once; init reaps the handler.


def handle(connection: socket.socket) -> int:
    """Run one command in a child of its own, and say how it ended."""
    connection.settimeout(None)
    request, files, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while not request.endswith(b"\n"):
        request += connection.recv(1 << 20)
    child = os.fork()
    if child == 0:
        connection.close()
        become_command(json.loads(request), files)
    connection.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return 0


def become_command(request: dict[str, object], files: list[int]) -> None:
    """Turn this process into ``python -m outlay``, or ``python -c CODE``, as a shell starts it."""
    if request["own_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
    for module in [name for name in sys.modules if name.startswith("outlay.cli")]:
        del sys.modules[module]  # Their consoles were made for another environment.
    sys.argv = ["outlay", *request["arguments"]]  # type: ignore[misc]
    if "code" in request:
        exec(str(request["code"]), {"__name__": "__main__"})
    else:
        runpy.run_module("outlay", run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1])
