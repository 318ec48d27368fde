"""A cloud's notice that it takes the machine back is the preemption notice of a run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import outlay
from command_line import outlay as command
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.runs.preemption import ReclaimSource
from outlay.runs.reading import read_figures

AWS_ACTION = "/latest/meta-data/spot/instance-action"
GCP_PREEMPTED = "/computeMetadata/v1/instance/preempted"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2020-07-01&format=text"
HEADERS = {
    AWS_ACTION: ("X-aws-ec2-metadata-token", "token"),
    GCP_PREEMPTED: ("Metadata-Flavor", "Google"),
    AZURE_EVENTS: ("Metadata", "true"),
    AZURE_NAME: ("Metadata", "true"),
}


@dataclass
class MetadataService:
    """Answers as the clouds' metadata services do, on loopback; without the right header 403."""

    url: str = ""
    answers: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def service() -> Iterator[MetadataService]:
    found = MetadataService()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_token = self.path == "/latest/api/token"
            is_timed = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            self.reply("token" if is_token and is_timed else None)

        def do_GET(self) -> None:
            name, value = HEADERS.get(self.path, ("", ""))
            self.reply(found.answers.get(self.path) if self.headers.get(name) == value else None)

        def reply(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def preempt_event(*machines: str) -> str:
    event = {"EventType": "Preempt", "Resources": machines, "NotBefore": "Mon, 19 Nov 2026"}
    return json.dumps({"DocumentIncarnation": 1, "Events": [event]})


NOTICES = [
    ("aws", {AWS_ACTION: '{"action": "terminate", "time": "2026-11-18T08:22:00Z"}'}, "08:22"),
    ("gcp", {GCP_PREEMPTED: "TRUE"}, "preempted"),
    ("azure", {AZURE_EVENTS: preempt_event("vm_1"), AZURE_NAME: "vm_1"}, "Preempt at Mon"),
]


@pytest.mark.parametrize(("cloud", "answers", "said"), NOTICES)
def test_a_cloud_s_notice_is_read(
    service: MetadataService, cloud: str, answers: dict[str, str], said: str
) -> None:
    source = ReclaimSource.of({"OUTLAY_RECLAIM_NOTICE": f"{cloud}:{service.url}"})
    assert source is not None
    assert source.ask() is None
    service.answers = answers
    assert said in (source.ask() or "")


@pytest.mark.parametrize(
    ("cloud", "answers"),
    [
        ("aws", {AWS_ACTION: "<html>"}),
        ("gcp", {GCP_PREEMPTED: "FALSE"}),
        ("azure", {AZURE_EVENTS: preempt_event("vm_2"), AZURE_NAME: "vm_1"}),
        ("azure", {AZURE_EVENTS: '{"Events": [{"EventType": "Reboot"}]}', AZURE_NAME: "vm_1"}),
        ("azure", {AZURE_EVENTS: '{"Events": [7]}', AZURE_NAME: "vm_1"}),
    ],
)
def test_what_is_no_notice_of_this_machine_is_none(
    service: MetadataService, cloud: str, answers: dict[str, str]
) -> None:
    service.answers = answers
    assert ReclaimSource(name=cloud, target=service.url).ask() is None


def test_a_service_that_is_gone_is_no_notice() -> None:
    assert ReclaimSource(name="aws", target="http://127.0.0.1:9").ask() is None


def test_a_file_and_a_command_are_notices(tmp_path: Path) -> None:
    at = tmp_path / "reclaim"
    file = ReclaimSource(name="file", target=str(at))
    command = ReclaimSource(name="command", target=f"cat {at}")
    assert (file.ask(), command.ask()) == (None, None)
    at.write_text("in two minutes\n")
    assert file.ask() == "file takes the machine back: in two minutes"
    assert command.ask() == "command takes the machine back: in two minutes"


@pytest.mark.parametrize("stated", ["oracle", "file", "command:", "aws:ftp://x", "gcp:127.0.0.1"])
def test_an_unknown_source_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: str
) -> None:
    monkeypatch.setenv("OUTLAY_RECLAIM_NOTICE", stated)
    with pytest.raises(InvalidValue, match="aws, azure, command, file, gcp"):
        outlay.run("m", dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_notice_saves_and_ends_the_attempt_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: MetadataService
) -> None:
    monkeypatch.setenv("OUTLAY_RECLAIM_NOTICE", f"gcp:{service.url}")
    service.answers = {GCP_PREEMPTED: "TRUE"}
    saved: list[int] = []
    slow = threading.Event()
    with outlay.run("m", dir=tmp_path / "run") as run:
        run.on_preemption(lambda: saved.append(run.step_number))
        for _ in run.steps(range(60_000)):
            slow.wait(0.01)
    assert len(saved) == 1
    assert read_figures(tmp_path / "run", SYSTEM.wall_ns()).status == "preempted"


def test_exec_passes_the_notice_on_to_a_command_that_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "reclaim").write_text("now")
    words = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    found = command(
        "exec", "--dir", tmp_path / "run", "--", *words,
        OUTLAY_RECLAIM_NOTICE=f"file:{tmp_path / 'reclaim'}",
    )  # fmt: skip
    assert found.code != 0
    assert read_figures(tmp_path / "run", SYSTEM.wall_ns()).status == "preempted"
