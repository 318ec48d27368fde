"""What a run is started with: arguments, the environment, defaults; and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, OutlayError
from outlay.ledger import AttemptStarted, Price, read_identity, read_run
from outlay.runs.options import Arguments, RunOptions, resolve


def options(environ: Mapping[str, str] | None = None, /, **arguments: Any) -> RunOptions:
    now_ns = ManualClock().wall_ns()
    return resolve(Arguments(**{"model": "m"} | arguments), environ or {}, now_ns)


def header(run_dir: Path) -> AttemptStarted:
    first = read_run(run_dir).records[0]
    assert isinstance(first, AttemptStarted)
    return first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpus", -1),
        ("gpus", 0),
        ("gpus", -0.5),
        ("gpus", "1/0"),
        ("gpus", "0/7"),
        ("gpus", math.nan),
        ("gpus", 1e9),
        ("gpus", "1/7/2"),
        ("gpus", True),
        ("gpus", "eight"),
        ("price", math.nan),
        ("price", math.inf),
        ("price", -1),
        ("price", "cheap"),
        ("price", "1.50 USD/d"),
        ("price", True),
        ("stopped_price", math.nan),
        ("stopped_price", "-0.1 USD/h"),
        ("heartbeat", "often"),
        ("heartbeat", 30),
        ("heartbeat", "0s"),
        ("model", ""),
        ("model", "  "),
        ("model", None),
        ("model", 7),
        ("model", "half a \ud800"),
        ("name", ""),
        ("name", 7),
        ("gpu", 7),
        ("gpu", ""),
        ("tags", {"team": 7}),
        ("tags", {7: "team"}),
        ("tags", {"team": "\ud800"}),
        ("tags", ["team"]),
        ("tags", "team"),
        ("dir", 7),
        ("dir", "a\0b"),
    ],
    ids=repr,
)
def test_an_invalid_argument_is_refused_before_anything_is_written(
    name: str, value: object, tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, Any] = {"model": "m", "dir": tmp_path / "run", name: value}
    with pytest.raises(InvalidValue, match=rf"^{name}: got .*; expected ") as caught:
        outlay.run(**arguments)
    assert isinstance(caught.value, OutlayError)
    assert list(tmp_path.iterdir()) == []
    assert list(private_home.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OUTLAY_GPUS", "-1"),
        ("OUTLAY_GPUS", "many"),
        ("OUTLAY_PRICE", "nan"),
        ("OUTLAY_STOPPED_PRICE", "-1"),
    ],
)
def test_an_invalid_environment_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}: got '{value}'"):
        options({name: value})


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidValue, match=r"dir: got .* is a file"):
            outlay.run("m", dir=place)
    assert (tmp_path / "file").read_text() == "mine"


def test_another_model_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    with outlay.run("bert", dir=tmp_path):
        pass
    with pytest.raises(InvalidValue, match=r"model: got 'gpt'; expected 'bert'"):
        outlay.run("gpt", dir=tmp_path)
    assert len(read_run(tmp_path).segments) == 1


def test_reopening_a_directory_is_another_attempt_of_the_same_run(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as first:
        pass
    with outlay.run("m", dir=tmp_path) as second:
        pass
    assert first.run_id == second.run_id
    identity = read_identity(tmp_path)
    assert identity is not None
    assert identity.run_id == first.run_id


def test_the_environment_fills_what_is_left_out(tmp_path: Path) -> None:
    environ = {
        "OUTLAY_RUN_DIR": str(tmp_path),
        "OUTLAY_PRICE": "1.50 EUR/h",
        "OUTLAY_GPUS": "8",
    }
    given = options(environ)
    assert (given.dir, given.gpus, given.gpus_source) == (tmp_path, Fraction(8), "stated")
    assert given.price == Price(1_500_000, "EUR", "environment")


def test_arguments_come_before_the_environment(tmp_path: Path) -> None:
    environ = {"OUTLAY_RUN_DIR": "/elsewhere", "OUTLAY_PRICE": "9", "OUTLAY_GPUS": "9"}
    given = options(environ, dir=tmp_path, price="1 USD/h", gpus=2)
    assert (given.dir, given.gpus) == (tmp_path, Fraction(2))
    assert given.price == Price(1_000_000, "USD", "argument")


def test_an_empty_environment_variable_counts_as_unset() -> None:
    given = options({"OUTLAY_RUN_DIR": "", "OUTLAY_PRICE": "", "OUTLAY_GPUS": ""})
    assert (given.price, given.gpus) == (None, Fraction(1))


@pytest.mark.parametrize(
    ("value", "gpus"),
    [(0.5, Fraction(1, 2)), ("0.5", Fraction(1, 2)), ("1/7", Fraction(1, 7)), (1.5, Fraction(3, 2)),
     (Fraction(1, 7), Fraction(1, 7)), ("8", Fraction(8)), ("2/2", Fraction(1))],
)  # fmt: skip
def test_a_share_of_a_gpu_is_exact(value: object, gpus: Fraction) -> None:
    assert options(gpus=value).gpus == gpus


def test_a_share_of_a_gpu_from_the_environment_is_exact() -> None:
    assert options({"OUTLAY_GPUS": "1/7"}).gpus == Fraction(1, 7)


@pytest.mark.parametrize(("gpus", "recorded"), [(8, 8), (0.5, "1/2"), ("1/7", "1/7"), ("4/2", 2)])
def test_whole_gpus_are_recorded_as_integers_and_shares_as_text(
    tmp_path: Path, gpus: object, recorded: int | str
) -> None:
    with outlay.run("m", dir=tmp_path, gpus=gpus):
        pass
    assert header(tmp_path).gpus == recorded


NO_GPUS: dict[str, str] = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("environ", "gpus", "source"),
    [
        (NO_GPUS | {"WORLD_SIZE": "16"}, 16, "world_size"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 8, "visible"),
        ({"CUDA_VISIBLE_DEVICES": "3,-1,5"}, 1, "visible"),
        ({"CUDA_VISIBLE_DEVICES": "-1", "WORLD_SIZE": "2"}, 2, "world_size"),
        # torchrun with four processes on each of two nodes, every one of them with its own device.
        ({"CUDA_VISIBLE_DEVICES": "2", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2",
          "WORLD_SIZE": "8"}, 8, "visible"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "3"},
         12, "visible"),
        # Slurm's allocation goes before what one task of it sees.
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0"},
         4, "slurm"),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1"},
         2, "slurm"),
        ({"SLURM_JOB_GPUS": "4,5,6"}, 3, "slurm"),
    ],
)  # fmt: skip
def test_gpus_default_to_those_of_all_nodes_and_else_to_the_world_size(
    environ: dict[str, str], gpus: int, source: str
) -> None:
    given = options(environ, dir="x")
    assert (given.gpus, given.gpus_source) == (Fraction(gpus), source)


def test_without_a_variable_gpus_are_counted_in_the_drivers_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bus in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / bus).mkdir()
    monkeypatch.setattr("outlay.machine._DRIVER", tmp_path)
    given = options({"WORLD_SIZE": "8"}, dir="x")
    assert (given.gpus, given.gpus_source) == (Fraction(2), "driver")


def test_a_stopped_price_can_come_from_the_environment() -> None:
    given = options({"OUTLAY_STOPPED_PRICE": "0.20 USD/h"})
    assert given.stopped_price == Price(200_000, "USD", "environment")


def test_the_name_defaults_to_the_model() -> None:
    assert options(model="bert-base").name == "bert-base"


def test_a_default_directory_has_the_name_and_the_time() -> None:
    given = options(name="My run/№1")
    assert given.dir == Path.cwd() / "outlay-runs" / "My-run-1-20231114-221320"


def test_a_long_name_still_makes_a_directory() -> None:
    assert options(name="x" * 300).dir.name == "x" * 100 + "-20231114-221320"


def test_a_path_that_cannot_be_examined_does_not_stop_a_run(tmp_path: Path) -> None:
    """As a directory that cannot be written: what is recorded is lost, counted and warned of."""
    with outlay.run("m", dir=tmp_path / ("x" * 300)) as run:
        assert len(list(run.steps(range(3)))) == 3
    assert run.recorder.writer.lost == 4


def test_ranks_of_a_launch_share_a_default_directory() -> None:
    environ = {"WORLD_SIZE": "2", "SLURM_JOB_ID": "17"}
    dirs = {options({**environ, "RANK": rank}).dir for rank in "01"}
    assert dirs == {Path.cwd() / "outlay-runs" / "m-slurm-17"}


@pytest.mark.parametrize(
    ("variable", "job", "expected"),
    [
        ("SKYPILOT_TASK_ID", "sky-managed-2026_train/1", "m-skypilot-sky-managed-2026_train-1"),
        ("RAY_JOB_ID", "0a000000", "m-ray-0a000000"),
    ],
)
def test_ranks_of_a_clusters_job_share_a_default_directory(
    variable: str, job: str, expected: str
) -> None:
    dirs = {options({"WORLD_SIZE": "2", "RANK": rank, variable: job}).dir for rank in "01"}
    assert dirs == {Path.cwd() / "outlay-runs" / expected}
    assert options({variable: job}).dir.name.startswith("m-2023")  # Alone, each has its own.


def test_ranks_without_a_shared_launch_id_must_state_a_directory() -> None:
    with pytest.raises(InvalidValue, match="a directory that all ranks share"):
        options({"WORLD_SIZE": "2"})


def test_the_attempt_records_what_it_was_started_with(tmp_path: Path) -> None:
    with outlay.run(
        "bert",
        dir=tmp_path,
        name="first try",
        gpu="H100",
        gpus=8,
        price="2.50 USD/h",
        stopped_price="0.10 USD/h",
        tags={"team": "nlp"},
    ) as run:
        pass
    started = header(tmp_path)
    assert (started.run_id, started.model, started.name) == (run.run_id, "bert", "first try")
    assert (started.gpu, started.gpus, started.tags) == ("H100", 8, {"team": "nlp"})
    assert started.price == Price(2_500_000, "USD", "argument")
    assert started.stopped_machine_price == Price(100_000, "USD", "argument")


def test_disabled_a_run_writes_nothing_and_every_call_works(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_DISABLED", "1")
    with outlay.run("m", dir=tmp_path / "run", price="1 USD/h", heartbeat="1ms") as run:
        assert list(run.steps("ab")) == ["a", "b"]
        with run.step(), run.span("evaluation"):
            run.metric("loss", 1)
        run.checkpoint_committed()
        run.set_price("2 USD/h")
        run.heartbeat()
        run.note("nothing")
        assert run.summary()["outlay/lost_records"] == 0
    assert list(tmp_path.iterdir()) == []
    assert list(private_home.iterdir()) == []


def test_disabled_a_loop_still_has_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAY_DISABLED", "1")
    with outlay.run("m", dir=tmp_path) as run:
        assert [run.step_number for _ in run.steps("abc")] == [0, 1, 2]


@pytest.mark.parametrize("off", ["", "0", "false"])
def test_false_values_do_not_disable_recording(
    off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_DISABLED", off)
    with outlay.run("m", dir=tmp_path):
        pass
    assert len(read_run(tmp_path).records) == 2


@pytest.mark.parametrize("price", ["cheap", math.nan, None])
def test_a_wrong_new_price_is_refused_and_the_old_one_stays(tmp_path: Path, price: object) -> None:
    with outlay.run("m", dir=tmp_path, price="1 USD/h") as run:
        with pytest.raises(InvalidValue, match="price: got"):
            run.set_price(price)
        with pytest.raises(InvalidValue, match="gpus: got"):
            run.set_price("1 USD/h", gpus=-1)
    assert len(read_run(tmp_path).records) == 2
