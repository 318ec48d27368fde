"""Prices by name, end to end: fetched, written to a file, recorded with a run, shown as cost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import outlay
import scripts
from command_line import in_process
from command_line import outlay as outlay_process
from fake_vendor import FakeVendor, as_json, serving
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.budget_guard import BudgetGuard
from outlay.ledger import AttemptEnded, AttemptStarted, Price, PriceChanged, read_run
from outlay.ledger.codec import encode_line
from outlay.prices.current import PriceFileUnusable, price_file, read_quotes
from outlay.prices.names import PriceUnknown
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.files import plan_file
from vendor_shapes import (
    lambda_answer,
    lambda_type,
    runpod_answer,
    runpod_type,
    vast_answer,
    vast_offer,
)

NS = 10**9
HOUR_NS = 3600 * NS
EIGHT = lambda_type(
    "gpu_8x_h100_sxm5",
    gpu_description="H100 (80 GB SXM5)",
    price_cents_per_hour=2392,
    specs={"vcpus": 208, "memory_gib": 1800, "storage_gib": 22000, "gpus": 8},
)


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeVendor]]:
    """Three vendors on loopback, where the command line looks for them."""
    answers = {
        "vast": vast_answer(vast_offer(), vast_offer(id=7002, dph_total=0.6)),
        "runpod": runpod_answer(),
        "lambda": lambda_answer(lambda_type(), EIGHT),
    }
    with ExitStack() as stack:
        fakes = {
            name: stack.enter_context(serving(as_json(answer))) for name, answer in answers.items()
        }
        for name, fake in fakes.items():
            monkeypatch.setenv(f"OUTLAY_{name.upper()}_URL", fake.url)
        monkeypatch.setenv("LAMBDA_API_KEY", "key")
        yield fakes


@pytest.fixture
def fetched(vendors: dict[str, FakeVendor]) -> dict[str, FakeVendor]:
    assert in_process("prices", "fetch").code == 0
    return vendors


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which machine the tests run on."""
    for name in ("RUNPOD_POD_ID", "VAST_CONTAINERLABEL", "CONTAINER_ID", "INSTANCE_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)


def price_of(run_dir: Path) -> Price:
    header = read_run(run_dir).records[0]
    assert isinstance(header, AttemptStarted)
    assert header.price is not None
    return header.price


def hour_long_run(run_dir: Path, price: Price, *, run_id: str = "r") -> None:
    """Write a run of eight GPUs and one hour."""
    begun = AttemptStarted(t_ns=10**18, run_id=run_id, model="m", name="m", gpus=8, price=price)
    ended = AttemptEnded(t_ns=10**18 + HOUR_NS, status="completed")
    ledger = run_dir / "ledger"
    ledger.mkdir(parents=True)
    name = f"{begun.t_ns:020d}-0000000000-host-1.jsonl"
    (ledger / name).write_bytes(encode_line(begun, 0) + encode_line(ended, 1))


@pytest.mark.usefixtures("fetched")
def test_fetched_offers_are_written_to_a_readable_price_file() -> None:
    document = json.loads(price_file().read_text())
    assert document["version"] == 1
    eight = next(row for row in document["offers"] if row["gpus"] == 8 and row["gpu"] == "H100-SXM")
    assert eight["micros_per_hour"] == 2_990_000
    assert eight["offer_micros_per_hour"] == 23_920_000
    assert eight["fetched_ns"] > 0


def test_a_run_is_priced_by_name_and_its_cost_says_where_the_price_came_from(
    fetched: dict[str, FakeVendor], tmp_path: Path
) -> None:
    with outlay.run("m", dir=tmp_path / "run", price="lambda:8xH100", gpus=8) as run:
        for _ in run.steps(range(3)):
            pass
    price = price_of(tmp_path / "run")
    assert price.micros_per_hour == 2_990_000
    assert price.source == "lambda"
    assert price.offer == "lambda:8xH100-SXM:on-demand:us-west-1 (gpu_8x_h100_sxm5)"
    shown = in_process("cost", tmp_path / "run")
    said = " ".join(shown.out.split())
    assert "price 2.99 USD/h per GPU: lambda:8xH100-SXM:on-demand:us-west-1" in said
    assert in_process("cost", tmp_path / "run", "--json").json["cost"]["cost"]["micros"] > 0
    assert len(fetched["lambda"].asked) == 1, "a run asks no vendor"


@pytest.mark.usefixtures("fetched")
def test_a_later_fetch_does_not_change_what_a_run_cost(
    vendors: dict[str, FakeVendor], tmp_path: Path
) -> None:
    with outlay.run("m", dir=tmp_path / "run", price="runpod:RTX4090:spot"):
        pass
    before = in_process("cost", tmp_path / "run", "--json").json["cost"]["cost"]
    vendors["runpod"].answers = [as_json(runpod_answer(runpod_type_at(0.4)))]
    in_process("prices", "fetch")
    assert in_process("cost", tmp_path / "run", "--json").json["cost"]["cost"] == before
    with outlay.run("m", dir=tmp_path / "later", price="runpod:RTX4090:spot"):
        pass
    assert price_of(tmp_path / "later").micros_per_hour == 400_000


def runpod_type_at(price: float) -> dict[str, Any]:
    return runpod_type(secureSpotPrice=price)


@pytest.mark.usefixtures("fetched")
def test_an_hour_of_eight_gpus_at_a_named_price_costs_the_whole_offer(tmp_path: Path) -> None:
    price = next(q for q in read_quotes() if q.gpus == 8 and q.gpu == "H100-SXM").price()
    hour_long_run(tmp_path / "run", price)
    cost = in_process("cost", tmp_path / "run", "--json").json["cost"]
    assert cost["cost"]["micros"] == 23_920_000


@pytest.mark.usefixtures("fetched")
def test_the_environment_variable_accepts_a_price_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_PRICE", "runpod:RTX4090:community")
    with outlay.run("m", dir=tmp_path):
        pass
    assert price_of(tmp_path).micros_per_hour == 340_000


@pytest.mark.usefixtures("fetched")
def test_set_price_accepts_a_name_during_a_run(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, price="1 USD/h") as run:
        run.set_price("lambda:2xA6000")
    (change,) = (r for r in read_run(tmp_path).records if isinstance(r, PriceChanged))
    assert change.price.micros_per_hour == 800_000
    assert change.price.offer.startswith("lambda:2xA6000")


@pytest.mark.usefixtures("fetched")
def test_exec_passes_the_resolved_price_to_the_command(tmp_path: Path) -> None:
    program = "import outlay\nwith outlay.run('m'): pass\n"
    done = outlay_process(
        "exec", "--dir", tmp_path / "run", "--price", "lambda:8xH100", "--gpus", "8",
        "--", sys.executable, "-c", program,
    )  # fmt: skip
    assert done.code == 0, done.err
    headers = [r for r in read_run(tmp_path / "run").records if isinstance(r, AttemptStarted)]
    assert len(headers) == 2
    assert {header.price for header in headers} == {headers[0].price}
    assert headers[0].price is not None
    assert headers[0].price.offer.startswith("lambda:8xH100-SXM:on-demand")


@pytest.mark.usefixtures("fetched")
def test_a_named_price_loads_no_database_and_no_network(tmp_path: Path) -> None:
    program = """
        import sys
        import outlay
        with outlay.run("m", dir=sys.argv[1], price="lambda:8xH100") as run:
            for _ in run.steps("abc"):
                pass
        heavy = {"numpy", "sqlalchemy", "httpx2", "rich", "typer", "omegaconf", "torch"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert scripts.finish(program, tmp_path).stdout == "[]\n"


def test_a_typed_price_loads_nothing_about_names(tmp_path: Path) -> None:
    program = """
        import sys
        import outlay
        with outlay.run("m", dir=sys.argv[1], price="1 USD/h"):
            pass
        print(sorted(name for name in sys.modules if name.startswith("outlay.prices")))
    """
    assert scripts.finish(program, tmp_path).stdout == "[]\n"


@pytest.mark.usefixtures("fetched")
def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PriceUnknown, match="lambda:8xH100-SXM:on-demand") as caught:
        outlay.run("m", dir=tmp_path / "run", price="lambda:8xB200")
    assert "outlay prices fetch" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":2,"offers":[]}', b'{"offers":[{"gpu":1}]}', b"\xff"]
)
def test_a_damaged_price_file_is_an_error_and_nothing_is_started(
    content: bytes, tmp_path: Path
) -> None:
    price_file().write_bytes(content)
    done = in_process("exec", "--dir", tmp_path / "run", "--price", "a:H100", "--", "touch", "ran")
    assert done.code == 1
    assert str(price_file()) in done.err
    assert "outlay prices fetch" in done.err
    assert not (tmp_path / "run").exists()
    with pytest.raises(PriceFileUnusable):
        outlay.run("m", dir=tmp_path / "run", price="a:H100")
    with outlay.run("m", dir=tmp_path / "typed", price="1 USD/h"):
        pass  # A typed price needs no file.


@pytest.mark.usefixtures("vendors")
def test_a_fetch_repairs_a_damaged_price_file(tmp_path: Path) -> None:
    price_file().write_bytes(b"{")
    assert in_process("prices", "fetch").code == 0
    with outlay.run("m", dir=tmp_path, price="lambda:8xH100"):
        pass


def test_a_price_set_by_hand_is_found_by_name_and_is_showback_where_it_is_owned(
    tmp_path: Path,
) -> None:
    in_process("prices", "set", "A100-80GB", "1.10 USD/h", "--count", "8")
    with outlay.run("m", dir=tmp_path, price="own:A100-80"):
        pass
    assert (price_of(tmp_path).micros_per_hour, price_of(tmp_path).kind) == (1_100_000, "showback")


def test_an_imported_catalog_is_found_by_name(tmp_path: Path) -> None:
    catalog = tmp_path / "acme.csv"
    catalog.write_text(
        "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size\n"
        "a,eu,4.00,8,64,2,H100,80,False,\n"
    )
    assert in_process("prices", "import", catalog).code == 0
    (row,) = read_quotes()
    with outlay.run("m", dir=tmp_path / "run", price=f"{row.provider}:2xH100"):
        pass
    assert price_of(tmp_path / "run").micros_per_hour == 2_000_000


class TestOnAMarket:
    @pytest.mark.usefixtures("fetched")
    def test_an_error_shows_the_range_and_nothing_starts(self, tmp_path: Path) -> None:
        with pytest.raises(PriceUnknown, match=r"0\.20 USD/h to 0\.30 USD/h"):
            outlay.run("m", dir=tmp_path / "run", price="vast:RTX3090")
        assert not (tmp_path / "run").exists()

    @pytest.mark.usefixtures("fetched")
    def test_the_instance_id_selects_the_offer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VAST_CONTAINERLABEL", "C.7002")
        with outlay.run("m", dir=tmp_path, price="vast:2xRTX3090"):
            pass
        assert price_of(tmp_path).micros_per_hour == 300_000

    @pytest.mark.usefixtures("fetched")
    def test_the_price_of_one_instance_can_be_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ("prices", "set", "RTX3090", "0.22 USD/h", "--provider", "vast", "--id", "123")
        assert in_process(*words).code == 0
        monkeypatch.setenv("CONTAINER_ID", "123")
        with outlay.run("m", dir=tmp_path, price="vast:RTX3090"):
            pass
        assert price_of(tmp_path).micros_per_hour == 220_000


class TestAuto:
    @pytest.mark.usefixtures("fetched")
    def test_a_pod_is_priced_by_its_provider_gpu_and_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RUNPOD_POD_ID", "pod")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        with outlay.run("m", dir=tmp_path, gpu="NVIDIA GeForce RTX 4090", price="auto"):
            pass
        price = price_of(tmp_path)
        assert price.micros_per_hour == 690_000
        assert price.offer.startswith("runpod:2xRTX4090:on-demand")

    def test_a_slurm_job_is_priced_by_its_partition_as_showback(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_process("rates", "set", "gpu", "1.20 USD/h")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
        with outlay.run("m", dir=tmp_path, price="auto"):
            pass
        assert price_of(tmp_path) == Price(1_200_000, source="rate of gpu", kind="showback")

    def test_an_unidentified_machine_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(PriceUnknown, match="no known provider"):
            outlay.run("m", dir=tmp_path / "run", price="auto")
        assert not (tmp_path / "run").exists()


class TestAge:
    @pytest.mark.usefixtures("fetched")
    def test_a_price_older_than_a_day_is_a_warning_and_a_finding(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = ManualClock(wall_ns=max(q.fetched_ns for q in read_quotes()) + 49 * HOUR_NS)
        with outlay.run("m", dir=tmp_path, price="lambda:8xH100", clock=late):
            pass
        assert "lambda:8xH100" in caplog.text
        assert "2d01h" in caplog.text
        findings = in_process("cost", tmp_path, "--json").json["cost"]["findings"]
        assert any("2d01h" in finding["message"] for finding in findings)
        assert "2d01h" in in_process("cost", tmp_path).out.replace("\n", " ")

    @pytest.mark.usefixtures("fetched")
    def test_a_fresh_price_has_no_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with outlay.run("m", dir=tmp_path, price="lambda:8xH100"):
            pass
        assert caplog.text == ""
        assert in_process("cost", tmp_path, "--json").json["cost"]["findings"] == []


class TestTheGuard:
    @pytest.mark.usefixtures("fetched")
    def test_a_command_is_run_at_the_price_of_the_whole_offer(self, tmp_path: Path) -> None:
        log = tmp_path / "spend.jsonl"
        done = outlay_process(
            "guard", "run", "--label", "a", "--rate", "lambda:8xH100", "--log", log,
            "--ceiling", "20", "--slice", "30m", "--", "true",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "23.92 USD/h is the price of lambda:8xH100-SXM:on-demand" in done.err
        assert "12.159334" in log.read_text(), "half an hour and the notice, of eight GPUs"

    @pytest.mark.usefixtures("fetched")
    @pytest.mark.parametrize(
        ("rate", "said"),
        [
            ("runpod:RTX4090", "a number of GPUs"),
            ("lambda:9xH100", "lambda:8xH100"),
            ("0.70 USD/h showback", "cash"),
        ],
    )
    def test_a_refused_hold_starts_nothing(self, rate: str, said: str, tmp_path: Path) -> None:
        done = in_process(
            "guard", "run", "--label", "a", "--rate", rate, "--log", tmp_path / "spend.jsonl",
            "--ceiling", "10", "--", "touch", tmp_path / "ran",
        )  # fmt: skip
        assert done.code == 2
        assert said in done.err
        assert not (tmp_path / "ran").exists()

    def test_a_guarded_run_is_paid_in_cash(self, tmp_path: Path) -> None:
        guard = BudgetGuard(5, tmp_path / "spend.jsonl")
        with pytest.raises(InvalidValue, match="cash"):
            outlay.run("m", dir=tmp_path / "run", price="1 USD/h showback", guard=guard)
        assert not (tmp_path / "run").exists()


class TestGrids:
    def grid(self, tmp_path: Path, **more: Any) -> Path:
        grid = {
            "engine": "process", "arguments": "none", "timeout": "1h",
            "entrypoint": [sys.executable, "-c", "import outlay\nwith outlay.run('m'): pass"],
            "output_dir": str(tmp_path / "sweep"), "grid": [{"params": {"x": [1, 2]}}],
        }  # fmt: skip
        path = tmp_path / "grid.json"
        path.write_text(json.dumps(grid | more))
        return path

    @pytest.mark.usefixtures("fetched")
    def test_a_named_price_is_planned_held_and_run_at(self, tmp_path: Path) -> None:
        path = self.grid(tmp_path, price="lambda:8xH100", ceiling="10 USD")
        planned = in_process("sweep", "plan", path, "--json").json["runs"][0]
        assert planned["price"] == "2.99 USD/h"
        assert planned["price_from"].startswith("lambda:8xH100-SXM:on-demand")
        assert planned["predicted_cost"] == "2.99 USD"
        done = outlay_process("sweep", "run", path, "--enable-sweeps", "--json")
        assert done.code == 0, done.err
        runs = sorted(p.parent for p in (tmp_path / "sweep").rglob("ledger"))
        assert {price_of(run).offer for run in runs} == {
            "lambda:8xH100-SXM:on-demand:us-west-1 (gpu_8x_h100_sxm5)"
        }
        log = (tmp_path / "sweep" / "spend.jsonl").read_text()
        assert '"estimated":2.999137,' in log, "an hour and the notice are held at the named price"

    @pytest.mark.usefixtures("fetched")
    def test_an_unknown_name_is_reported_with_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidGrid, match=r"lambda:8xB200.*lambda:8xH100"):
            plan_file(self.grid(tmp_path, price="lambda:8xB200"))

    def test_a_damaged_price_file_plans_nothing(self, tmp_path: Path) -> None:
        price_file().write_bytes(b"{")
        done = in_process("sweep", "run", self.grid(tmp_path, price="a:H100"), "--enable-sweeps")
        assert done.code == 1
        assert str(price_file()) in done.err
        assert not (tmp_path / "sweep").exists()

    def test_an_entry_may_type_its_price_where_the_root_names_one(self, tmp_path: Path) -> None:
        entries = [{"params": {"x": 1}, "price": "1 USD/h"}]
        plan = plan_file(self.grid(tmp_path, price="a:H100", grid=entries))
        assert plan.runs[0].entry.price == Price(1_000_000, source="grid")

    def test_cash_and_showback_are_not_held_under_one_ceiling(self, tmp_path: Path) -> None:
        entries = [
            {"params": {"x": 1}, "price": "1 USD/h"},
            {"params": {"x": 2}, "price": "1 USD/h showback"},
        ]
        path = self.grid(tmp_path, grid=entries, ceiling="10 USD")
        done = in_process("sweep", "run", path, "--enable-sweeps")
        assert done.code == 2
        assert "both cash and showback" in done.err

    @pytest.mark.usefixtures("fetched")
    def test_seeds_that_ran_at_different_prices_of_one_name_are_one_configuration(
        self, vendors: dict[str, FakeVendor], tmp_path: Path
    ) -> None:
        path = self.grid(tmp_path, price="runpod:RTX4090:spot")
        before = plan_file(path).runs[0]
        vendors["runpod"].answers = [as_json(runpod_answer(runpod_type_at(0.4)))]
        in_process("prices", "fetch")
        after = plan_file(path).runs[0]
        assert before.entry.price != after.entry.price
        assert before.configuration == after.configuration


class TestKinds:
    """Cash and showback are shown side by side, and never added."""

    @pytest.fixture
    def both(self, tmp_path: Path) -> Path:
        """Two runs of an hour and eight GPUs each: 16 USD in cash, 8 USD showback."""
        hour_long_run(tmp_path / "rented", Price(2_000_000))
        hour_long_run(tmp_path / "owned", Price(1_000_000, kind="showback"), run_id="s")
        assert in_process("collect", tmp_path).code == 0
        return tmp_path

    def test_a_runs_cost_says_that_it_is_showback(self, both: Path) -> None:
        assert in_process("cost", both / "owned", "--json").json["cost"]["kind"] == "showback"
        assert "8.00 USD showback" in in_process("cost", both / "owned").out
        assert "showback" not in in_process("cost", both / "rented").out

    @pytest.mark.usefixtures("both")
    def test_the_summary_has_a_total_for_each(self) -> None:
        said = in_process("cost", "summary", "--json").json
        assert said["totals"] == {"USD": 16.0}
        assert said["showback_totals"] == {"USD": 8.0}
        shown = in_process("cost", "summary").out
        assert "Total: 16.00 USD\n" in shown
        assert "Total: 8.00 USD showback\n" in shown
        assert "24.00" not in shown

    @pytest.mark.usefixtures("both")
    @pytest.mark.parametrize(
        ("more", "total", "other"), [([], 16, "showback"), (["--kind", "showback"], 8, "cash")]
    )
    def test_cash_is_allocated_and_showback_is_a_finding(
        self, more: list[str], total: int, other: str
    ) -> None:
        words = ("cost", "allocate", "--by", "user", "--month", "2001-09", *more, "--json")
        said = in_process(*words).json
        assert [each["total"]["micros"] for each in said["totals"]] == [total * 10**6]
        assert any(f"{other} is not part of" in f["message"] for f in said["findings"])

    def test_where_nothing_was_paid_in_cash_showback_is_allocated(self, tmp_path: Path) -> None:
        hour_long_run(tmp_path / "owned", Price(1_000_000, kind="showback"))
        in_process("collect", tmp_path)
        said = in_process("cost", "allocate", "--by", "user", "--month", "2001-09", "--json").json
        assert said["totals"][0]["total"]["micros"] == 8_000_000

    @pytest.mark.usefixtures("both")
    def test_a_models_budget_counts_cash(self) -> None:
        in_process("cost", "budget", "set", "m", "100 USD")
        (row,) = in_process("cost", "budget", "status", "--json").json["budgets"]
        assert row["spent"]["micros"] == 16_000_000

    def test_the_burn_rate_is_shown_by_kind(self, tmp_path: Path) -> None:
        with (
            outlay.run("m", dir=tmp_path / "rented", price="2 USD/h"),
            outlay.run("m", dir=tmp_path / "owned", price="1 USD/h showback"),
        ):
            said = in_process("--json").json
            shown = in_process().out
        assert [money["micros"] for money in said["burn_per_hour"]] == [2_000_000]
        assert [money["micros"] for money in said["showback_per_hour"]] == [1_000_000]
        assert "Burning now: 2.00 USD/h, 1.00 USD/h showback" in shown

    def test_a_price_of_the_other_kind_is_refused_during_a_run(self, tmp_path: Path) -> None:
        with (
            outlay.run("m", dir=tmp_path, price="1 USD/h showback") as run,
            pytest.raises(InvalidValue, match="showback price as before"),
        ):
            run.set_price("2 USD/h")
        assert not any(isinstance(r, PriceChanged) for r in read_run(tmp_path).records)

    def test_an_attempt_of_the_other_kind_is_a_finding(self, tmp_path: Path) -> None:
        with outlay.run("m", dir=tmp_path, price="1 USD/h"):
            pass
        with outlay.run("m", dir=tmp_path, price="1000000 USD/h showback"):
            pass
        cost = in_process("cost", tmp_path, "--json").json["cost"]
        assert (cost["kind"], cost["cost"]["micros"] < 1_000_000) == ("cash", True)
        messages = [finding["message"] for finding in cost["findings"]]
        assert "a showback price is not counted: the run's cost is cash" in messages
