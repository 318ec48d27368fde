"""A stand-in for Ray's Jobs API that runs each job as a process, on a node of its own files.

For what a real cluster takes minutes to show; the same is shown once on a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class RayStandIn(ThreadingHTTPServer):
    """Jobs by their submission id.

    Attributes:
        hidden: Directories that the node sees empty.
        environ: What a job on the node has besides the essentials.
        nodes: Ray's ids of the nodes that are alive.
        bodies: What was submitted, in order.
        is_full: Whether jobs wait for room.
    """

    def __init__(self, home: Path, hidden: Sequence[Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hidden = hidden
        self.environ = {"OUTLAY_HOME": str(home), "PATH": os.environ["PATH"], "HOME": str(home)}
        self.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        self.jobs: dict[str, subprocess.Popen[str]] = {}
        self.said: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.nodes = ["n1"]
        self.is_full = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def start_job(self, body: dict[str, Any]) -> None:
        """Start a job as Ray does, by a shell."""
        hiding = [f"mount -t tmpfs tmpfs '{directory}'" for directory in self.hidden]
        script = "; ".join(["set -e", *hiding, body["entrypoint"]])
        self.jobs[body["submission_id"]] = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script], env=self.environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def status_of(self, submission: str) -> dict[str, Any]:
        """Return what Ray says of a job."""
        if submission not in self.jobs:
            return {"status": "PENDING"}
        job = self.jobs[submission]
        code = job.poll()
        if code is None:
            return {"status": "RUNNING", "driver_node_id": "n1"}
        if submission not in self.said and job.stdout is not None:
            self.said[submission] = job.stdout.read()
            job.stdout.close()
        status = "SUCCEEDED" if code == 0 else "FAILED"
        error = None if code == 0 else "JOB_ENTRYPOINT_COMMAND_ERROR"
        message = f"failed, last available logs:\n{self.said[submission]}"
        return {"status": status, "error_type": error, "driver_exit_code": code,
                "driver_node_id": "n1", "message": message}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    server: RayStandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        *_, submission, last = self.path.split("/")
        if last != "stop":
            self.server.bodies.append(json.loads(body))
            if not self.server.is_full:
                self.server.start_job(self.server.bodies[-1])
        elif submission in self.server.jobs:
            self.server.jobs[submission].terminate()
        self._answer(200, {})

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name.startswith("nodes"):
            states = ["ALIVE" for node in self.server.nodes if node in name]
            self._answer(200, {"states": states})
        elif name in [body["submission_id"] for body in self.server.bodies]:
            self._answer(200, self.server.status_of(name))
        else:
            self._answer(404, {})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def ray_stand_in(home: Path, *hidden: Path) -> Iterator[RayStandIn]:
    """A head with one node, which has a home of its own and sees some directories empty."""
    with RayStandIn(home, hidden) as ray:
        thread = threading.Thread(target=ray.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield ray
        finally:
            ray.shutdown()
            thread.join()
            for job in ray.jobs.values():
                job.kill()
                job.wait()
                if job.stdout is not None:
                    job.stdout.close()
