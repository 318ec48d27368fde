"""Old W&B runs in the books: priced, compared, each once; what is missing or broken is said."""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from command_line import in_process
from outlay.decoding import BadDocument
from outlay.integrations.wandb_files import fields, read_messages, read_offline_run
from outlay.integrations.wandb_import import ImportTerms, import_api_runs
from outlay.ledger import Price
from outlay.store import open_store
from outlay.units import Money
from terminal import terminal
from waiting import until

START_S = 1_700_000_000
BLOCK = 32 * 1024


@functools.cache
def proto() -> Any:
    """Return W&B's own messages; their names are made when the module is imported."""
    from wandb.proto import wandb_internal_pb2

    return wandb_internal_pb2


def framed(messages: list[bytes]) -> bytes:
    """Return messages as W&B writes them: in blocks, each part with its checksum."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for message in messages:
        place = 0
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                continue
            part = message[place : place + left - 7]
            first, last = place == 0, place + len(part) == len(message)
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
                first, last
            ]
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            data += struct.pack("<IHB", checksum, len(part), kind) + part
            place += len(part)
            if last:
                break
    return bytes(data)


def messages(
    run_id: str, *, rows: int = 10, typed: bool = False, ended: bool = True
) -> list[bytes]:
    run = proto().Record(run=proto().RunRecord(run_id=run_id, project="lm", display_name="old-1"))
    run.run.start_time.seconds = START_S
    run.run.config.update.add(key="model", value_json='"gpt-small"')
    environment = proto().Record()
    environment.environment.host, environment.environment.username = "node7", "ada"
    environment.environment.gpu_type, environment.environment.gpu_count = "A100", 4
    found = [run, environment]
    for step in range(rows):
        row = proto().Record()
        for key, value in (
            ("loss", 1 / (step + 1)),
            ("_step", step),
            ("_timestamp", START_S + 60 * (step + 1)),
        ):
            item = row.history.item.add(key=key)
            if typed and key == "_step":
                item.integer = int(value)
            elif typed:
                item.number = value
            else:
                item.value_json = json.dumps(value)
        stats = proto().Record()
        stats.stats.timestamp.seconds = START_S + 60 * (step + 1)
        for name, value in (
            ("gpu.0.gpu", 50),
            ("gpu.1.gpu", 100),
            ("gpu.0.powerWatts", 300),
            ("cpu", 7),
        ):
            stats.stats.item.add(key=name, value_json=str(value))
        found += [row, stats]
    if ended:
        found.append(proto().Record(exit=proto().RunExitRecord(exit_code=0, runtime=660)))
    return [record.SerializeToString() for record in found]


def write_run(root: Path, run_id: str, **options: Any) -> Path:
    path = root / "wandb" / f"offline-run-20231114_221320-{run_id}" / f"run-{run_id}.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(framed(messages(run_id, **options)))
    return path


def import_runs(root: Path, *words: str) -> Any:
    return in_process("import", "wandb", root, "--json", *words)


@pytest.mark.parametrize("typed", [False, True], ids=["as JSON", "typed"])
def test_an_old_run_is_priced_like_any_other(
    tmp_path: Path, private_home: Path, typed: bool
) -> None:
    write_run(tmp_path, "abc", typed=typed)
    done = import_runs(tmp_path, "--price", "2 USD/h").json
    reading = outlay.read_run(private_home / "wandb" / "lm-abc")
    figures = reading.figures
    assert done["failed"] == []
    assert (figures.model, figures.name, figures.user, figures.host) == (
        "gpt-small", "old-1", "ada", "node7",
    )  # fmt: skip
    assert (figures.status, figures.steps, figures.gpu, figures.gpus) == (
        "completed",
        10,
        "A100",
        4,
    )
    assert reading.cost.cost == Money(round(4 * 2_000_000 * 660 / 3600))
    assert [point.value for point in reading.metrics["loss"]] == [1 / (n + 1) for n in range(10)]


def test_gpu_load_and_energy_come_from_system_metrics(tmp_path: Path, private_home: Path) -> None:
    write_run(tmp_path, "abc")
    import_runs(tmp_path)
    figures = outlay.read_run(private_home / "wandb" / "lm-abc").figures
    assert figures.gpu_busy_ns == 9 * 60 * 10**9 * 3 // 4
    assert figures.energy_mj == 300 * 9 * 60 * 1000


def test_an_import_is_tagged_and_reports_what_is_missing(
    tmp_path: Path, private_home: Path
) -> None:
    write_run(tmp_path, "abc", ended=False)
    done = import_runs(tmp_path).json
    assert done["missing"] == {
        "a price": 1, "a recorded end": 1, "tokens, data waits and checkpoints": 1,
    }  # fmt: skip
    reading = outlay.read_run(private_home / "wandb" / "lm-abc")
    assert reading.figures.tags["imported"] == "wandb"
    assert reading.cost.cost is None


def test_importing_again_changes_nothing(tmp_path: Path, private_home: Path) -> None:
    write_run(tmp_path, "abc")
    first = import_runs(tmp_path, "--price", "2 USD/h").json
    log = sorted((private_home / "wandb" / "lm-abc" / "ledger").iterdir())
    before = [path.read_bytes() for path in log]
    again = import_runs(tmp_path, "--price", "2 USD/h").json
    assert (len(first["imported"]), first["unchanged"]) == (1, 0)
    assert (again["imported"], again["unchanged"]) == ([], 1)
    assert [path.read_bytes() for path in log] == before


def test_another_price_replaces_the_first(tmp_path: Path, private_home: Path) -> None:
    write_run(tmp_path, "abc")
    import_runs(tmp_path)
    import_runs(tmp_path, "--price", "3 USD/h")
    reading = outlay.read_run(private_home / "wandb" / "lm-abc")
    assert reading.cost.cost == Money(4 * 3_000_000 * 660 // 3600)


def test_failed_runs_are_listed_and_the_others_imported(tmp_path: Path) -> None:
    for number in range(60):
        write_run(tmp_path, f"r{number:03}", rows=2)
    (bad,) = tmp_path.rglob("run-r007.wandb")
    bad.write_bytes(b"not a log")
    done = import_runs(tmp_path)
    assert (done.code, len(done.json["imported"])) == (1, 59)
    (failed,) = done.json["failed"]
    assert failed["source"] == str(bad)
    assert len(in_process("runs", "--all", "--json").json["runs"]) == 59


def test_an_interrupted_import_continues(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path, f"r{number}", rows=2)
    seen: list[Path] = []

    def interrupted(path: Path) -> Any:
        seen.append(path)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return read_offline_run(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outlay.integrations.wandb_import.read_offline_run", interrupted)
        assert import_runs(tmp_path).code == 130
    done = import_runs(tmp_path).json
    assert (len(done["imported"]), done["unchanged"]) == (2, 3)
    assert len(in_process("runs", "--json").json["runs"]) == 5


def test_a_killed_import_continues_to_the_same_result(tmp_path: Path, private_home: Path) -> None:
    """Killed after the first runs were registered; a bar shows how far it has come."""
    for number in range(120):
        write_run(tmp_path, f"r{number:03}", rows=2)
    with terminal("import", "wandb", tmp_path, "--price", "2 USD/h") as shown:
        shown.until_matches(r"importing .* [1-9]\d?%")
        marks = private_home / "wandb" / "imported"
        until(lambda: any(marks.glob("*.json")), "nothing was registered")
        shown.process.kill()
        shown.end()
    done = import_runs(tmp_path, "--price", "2 USD/h").json
    assert done["unchanged"] > 0
    assert len(done["imported"]) + done["unchanged"] == 120
    rows = in_process("runs", "--all", "--json").json["runs"]
    assert len({row["run_id"] for row in rows}) == len(rows) == 120
    assert {row["cost_micros"] for row in rows} == {round(4 * 2_000_000 * 660 / 3600)}


def test_a_price_by_name_is_looked_up_once_and_stays(tmp_path: Path, private_home: Path) -> None:
    write_run(tmp_path, "abc")
    for price, unchanged in (("1.50", 0), ("9.00", 1)):
        assert in_process("prices", "set", "A100", price).code == 0
        assert import_runs(tmp_path, "--price", "own:A100").json["unchanged"] == unchanged
    reading = outlay.read_run(private_home / "wandb" / "lm-abc")
    assert reading.cost.cost == Money(4 * 1_500_000 * 660 // 3600).as_kind("showback")


@pytest.mark.parametrize("price", ["2 USD per hour or so", "acme:A100", "auto"])
def test_an_invalid_price_is_refused_before_anything_is_read(tmp_path: Path, price: str) -> None:
    write_run(tmp_path, "abc")
    assert import_runs(tmp_path, "--price", price).code == 2


@pytest.mark.parametrize("left", [BLOCK, BLOCK + 3, BLOCK + 4000])
def test_a_torn_file_is_read_up_to_the_tear(tmp_path: Path, left: int) -> None:
    """W&B writes by the block: of a run that is killed a whole number of them is there."""
    path = write_run(tmp_path, "abc", rows=400)
    path.write_bytes(path.read_bytes()[:left])
    run = read_offline_run(path)
    assert 50 < len(run.history) < 400
    assert [finding.severity for finding in run.findings] == ["warning"]


def test_a_part_without_its_record_is_damage(tmp_path: Path) -> None:
    path = write_run(tmp_path, "abc", rows=400)
    data = bytearray(path.read_bytes())
    data[BLOCK:] = framed([b"a", b"b"])[7:]  # The second part of a record is gone.
    path.write_bytes(data)
    (finding,) = read_offline_run(path).findings
    assert "does not go with the one before it" in finding.message


def test_a_resumed_run_has_an_attempt_for_each_file(tmp_path: Path, private_home: Path) -> None:
    write_run(tmp_path / "one", "abc", ended=False)
    later = messages("abc")
    record = proto().Record.FromString(later[0])
    record.run.start_time.seconds = START_S + 3600
    path = tmp_path / "two" / "run-abc.wandb"
    path.parent.mkdir()
    path.write_bytes(framed([record.SerializeToString(), *later[1:]]))
    import_runs(tmp_path)
    assert outlay.read_run(private_home / "wandb" / "lm-abc").figures.attempts == 2


def test_what_the_api_returns_is_imported_too(private_home: Path) -> None:
    run = SimpleNamespace(
        id="xyz", entity="lab", project="lm", name="cloud-1", state="finished",
        created_at="2023-11-14T22:13:20Z", heartbeat_at="2023-11-14T22:15:20Z",
        path=["lab", "lm", "xyz"],
        metadata={"host": "h", "username": "ada", "gpu": "H100", "gpu_count": 8},
        summary={"_runtime": 120.0}, config={"model_name": "gpt-large"},
        scan_history=lambda: [
            {"_step": n, "_timestamp": START_S + 10.0 * (n + 1), "loss": 1.0} for n in range(3)
        ],
        history=lambda **_: [{"_timestamp": START_S + 5.0, "system.gpu.0.gpu": 90.0}],
    )  # fmt: skip
    broken = SimpleNamespace(path=["lab", "lm", "broken"])
    price = Price(micros_per_hour=3_000_000)
    done = import_api_runs(open_store(), [run, broken], ImportTerms(price=price), 1)
    reading = outlay.read_run(private_home / "wandb" / "lm-xyz")
    assert reading.cost.cost == Money(8 * 3_000_000 * 120 // 3600)
    assert (reading.figures.model, reading.figures.steps) == ("gpt-large", 3)
    assert [finding.source for finding in done.failed] == ["lab/lm/broken"]
    run.scan_history = lambda: pytest.fail("asked again, and nothing has changed")
    again = import_api_runs(open_store(), [run], ImportTerms(price=price), 1)
    assert (again.imported, again.unchanged) == ([], 1)


def test_directories_or_a_project_must_be_named(tmp_path: Path) -> None:
    assert in_process("import", "wandb").code == 2
    assert in_process("import", "wandb", tmp_path / "gone").code == 2


@given(st.lists(st.binary(max_size=70_000), max_size=4))
def test_messages_of_any_length_are_read_back(sent: list[bytes]) -> None:
    assert list(read_messages(framed(sent))) == sent


@given(st.binary(max_size=200))
def test_no_message_raises_anything_else(message: bytes) -> None:
    with contextlib.suppress(BadDocument):
        list(fields(message))
