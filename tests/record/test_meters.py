"""Meters: tokens by shape, energy with its quality, FLOPs by formula and by torch's counter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.ledger import Step, read_run
from outlay.record.meters.collectives import Traffic, algo_bytes
from outlay.record.meters.energy import (
    EnergyMeter,
    NvmlSource,
    PowercapSource,
    Quality,
    detect_energy,
    nvml_devices,
)
from outlay.record.meters.step_meters import FlopsPerToken


class FakeSysfs:
    """A powercap tree on disk that says what the test wants; not a real sensor."""

    def __init__(self, root: Path, *, range_uj: int = 999_999) -> None:
        self.zone = root / "intel-rapl:0"
        self.zone.mkdir()
        (root / "intel-rapl").mkdir()
        part = root / "intel-rapl:0:0"
        part.mkdir()
        for zone in (self.zone, part):
            (zone / "energy_uj").write_text("0\n")
            (zone / "max_energy_range_uj").write_text(f"{range_uj}\n")

    def set(self, energy_uj: int) -> None:
        (self.zone / "energy_uj").write_text(f"{energy_uj}\n")


def test_powercap_counts_packages_and_not_their_parts(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    (source,) = PowercapSource.detect(tmp_path)
    sysfs.set(7)
    assert source.take_uj() == 7


def test_powercap_reads_differences_across_a_wrap(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path, range_uj=999_999)
    (source,) = PowercapSource.detect(tmp_path)
    sysfs.set(700_000)
    assert source.take_uj() == 700_000
    sysfs.set(100_000)
    assert source.take_uj() == 400_000


def test_a_counter_that_vanishes_is_counted_as_lost(tmp_path: Path, clock: ManualClock) -> None:
    sysfs = FakeSysfs(tmp_path)
    meter = EnergyMeter(PowercapSource.detect(tmp_path), clock)
    (sysfs.zone / "energy_uj").write_text("<garbage>")
    assert meter.take(at_once=True) == 0
    assert meter.lost == 1


def test_no_energy_is_lost_to_rounding(tmp_path: Path, clock: ManualClock) -> None:
    sysfs = FakeSysfs(tmp_path)
    meter = EnergyMeter(PowercapSource.detect(tmp_path), clock)
    readings = []
    for reading in range(1, 11):
        sysfs.set(reading * 1300)
        readings.append(meter.take(at_once=True))
    assert sum(readings) == 13


def test_counters_are_read_at_most_every_100_ms(tmp_path: Path, clock: ManualClock) -> None:
    sysfs = FakeSysfs(tmp_path)
    meter = EnergyMeter(PowercapSource.detect(tmp_path), clock)
    sysfs.set(5000)
    assert meter.take() == 0
    clock.advance(100_000_000)
    assert meter.take() == 5


class FakeNvml:
    """Answers as NVML's Python bindings would for one GPU; not a real driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, energy_mj: int | None, power_mw: int | None = None) -> None:
        self.energy_mj = energy_mj
        self.power_mw = power_mw

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: int) -> int:
        return self._answer(self.energy_mj)

    def nvmlDeviceGetPowerUsage(self, _handle: int) -> int:
        return self._answer(self.power_mw)

    def _answer(self, value: int | None) -> int:
        if value is None:
            raise self.NVMLError("Not Supported")
        return value


def test_a_gpu_with_a_counter_is_measured() -> None:
    nvml = FakeNvml(energy_mj=5000)
    source = NvmlSource(nvml, 0)
    nvml.energy_mj = 5250
    assert source.quality is Quality.MEASURED
    assert source.take_uj() == 250_000


def test_reset_energy_counter_does_not_count_negative() -> None:
    nvml = FakeNvml(energy_mj=5000)
    source = NvmlSource(nvml, 0)
    nvml.energy_mj = 40
    assert source.take_uj() == 40_000


def test_a_gpu_without_a_counter_is_estimated_from_its_power(clock: ManualClock) -> None:
    nvml = FakeNvml(energy_mj=None, power_mw=100_000)
    source = NvmlSource(nvml, 0, clock)
    clock.advance(2 * 10**9)
    nvml.power_mw = 300_000
    assert source.quality is Quality.ESTIMATED
    assert source.take_uj() == 400 * 10**6  # 200 W on average for two seconds


def test_a_gpu_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(OSError, match="NVML: Not Supported"):
        NvmlSource(FakeNvml(energy_mj=None), 0)


def test_quality_of_a_sum_is_the_worst_of_its_parts(clock: ManualClock) -> None:
    measured = NvmlSource(FakeNvml(energy_mj=1), 0, clock)
    estimated = NvmlSource(FakeNvml(energy_mj=None, power_mw=1), 1, clock)
    assert EnergyMeter([measured, estimated], clock).quality is Quality.ESTIMATED
    assert EnergyMeter([measured], clock).quality is Quality.MEASURED
    assert EnergyMeter([], clock).quality is Quality.UNAVAILABLE


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("GPU-abc,1", ["GPU-abc", 1]),
        ("0,-1,2", [0]),
    ],
)
def test_only_visible_gpus_are_measured(visible: str | None, devices: list[int | str]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert nvml_devices(environ, 3) == devices


def test_only_the_first_process_of_a_node_measures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeSysfs(tmp_path)
    monkeypatch.setattr(PowercapSource.detect.__func__, "__defaults__", (tmp_path,))  # type: ignore[attr-defined]
    assert detect_energy({"LOCAL_RANK": "0"}).quality is Quality.MEASURED
    assert detect_energy({"LOCAL_RANK": "1"}).quality is Quality.UNAVAILABLE
    assert detect_energy({"SLURM_LOCALID": "1"}).quality is Quality.UNAVAILABLE


def test_flops_follow_six_per_parameter_and_token() -> None:
    assert FlopsPerToken.six_per_parameter(124_000_000)(1024) == 6 * 124_000_000 * 1024


@pytest.mark.parametrize("parameters", [0, -1, 1.5, True])
def test_a_model_without_parameters_is_refused(parameters: Any) -> None:
    with pytest.raises(InvalidValue, match="parameters"):
        FlopsPerToken.six_per_parameter(parameters)


@pytest.mark.parametrize(
    ("operation", "group_size", "sent"),
    [
        ("all_reduce", 2, 1_000_000),
        ("all_reduce", 4, 1_500_000),
        ("all_gather", 4, 3_000_000),
        ("reduce_scatter", 4, 750_000),
        ("all_to_all", 4, 750_000),
        ("broadcast", 4, 1_000_000),
        ("all_reduce", 1, 0),
    ],
)
def test_ring_bytes_follow_from_payload_and_group_size(
    operation: str, group_size: int, sent: int
) -> None:
    assert algo_bytes(Traffic(operation, group_size), 1_000_000) == sent


def test_meters_load_neither_torch_nor_numpy_nor_nvml() -> None:
    modules = ("collectives", "energy", "step_meters")
    imports = "; ".join(f"import outlay.record.meters.{name}" for name in modules)
    heavy = "[name for name in ('torch', 'numpy', 'pynvml') if name in sys.modules]"
    program = f"import sys; {imports}; print({heavy})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_flops_reach_the_log_of_a_run_without_a_budget(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.meters.flops = outlay.FlopsPerToken(6)
        assert run.meters is run.meters
        for _ in run.steps(range(2), tokens=10):
            pass
    steps = [record for record in read_run(tmp_path).records if isinstance(record, Step)]
    assert [step.flops for step in steps] == [60, 60]


@pytest.mark.xdist_group("torch")
def test_flops_counted_by_torch_are_those_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # Else torch does.
    a, b = torch.ones(4, 5), torch.ones(5, 7)
    counted = outlay.counted_by_torch(lambda: a @ b)
    assert counted == 2 * 4 * 5 * 7
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_flops(3 * counted)) as run:
        run.meters.flops = outlay.FlopsPerToken(counted // 4)
        assert len(list(run.steps(range(10), tokens=4))) == 3
