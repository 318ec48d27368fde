"""Plugins of other packages are found by name, and errors of broken ones name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import outlay
from outlay import plugins
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.errors import InvalidValue
from outlay.export.sinks import PluginSink, open_sink
from outlay.prices.price_book import fetch
from outlay.prices.sources.vendors import sources_named
from outlay.sweep.engines.base import engine_named
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import start
from outlay.units import Money
from plugin_packages import install
from readings import goodput

NO_CLOUD = GCPOptions(enable_gcp_goodput_metrics=False, enable_gcp_step_deviation_metrics=False)

A_SOURCE = """
from outlay.prices.sources.catalogs import ManualSource
from outlay.units import Rate

def entry():
    return ManualSource(gpu="H100", price=Rate.parse("2.50 USD/h"), provider="ourcloud")
"""


def test_price_source_of_a_plugin_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.PRICES, "ourcloud", A_SOURCE, monkeypatch)
    (source,) = sources_named(["ourcloud"])
    (offer,) = fetch(source).offers
    assert (offer.provider, offer.price) == ("ourcloud", Money.parse("2.50 USD"))


def test_error_for_an_unknown_source_lists_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.PRICES, "ourcloud", A_SOURCE, monkeypatch)
    with pytest.raises(InvalidValue, match="ourcloud"):
        sources_named(["theircloud"])


def test_a_package_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.PRICES, "ourcloud", "import no_such_module", monkeypatch)
    with pytest.raises(plugins.BrokenPlugin, match=r"ourcloud .* ModuleNotFoundError"):
        sources_named(["ourcloud"])


def test_no_plugins_without_installed_packages() -> None:
    assert plugins.names(plugins.SINKS) == ()
    assert plugins.load(plugins.SINKS, "any") is None


A_SINK = """
class Appending:
    def __init__(self, path, team):
        self.path, self.team = path, team

    def write(self, reading):
        with open(self.path, "a") as stream:
            stream.write(f"{self.team} {reading.last_step}\\n")

    def close(self):
        with open(self.path, "a") as stream:
            stream.write("closed\\n")

entry = Appending
"""


def test_a_sink_of_another_package_is_made_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.SINKS, "ours", A_SINK, monkeypatch)
    sink = open_sink(PluginSink("ours", {"path": str(tmp_path / "out"), "team": "vision"}))
    sink.write(goodput(3))
    sink.close()
    assert (tmp_path / "out").read_text() == "vision 3\nclosed\n"


def test_a_monitor_writes_through_the_sink_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", plugins.SINKS, "ours", A_SINK, monkeypatch)
    with outlay.run("model", dir=tmp_path / "run") as run:
        for _ in run.steps(range(5)):
            pass
    place = PluginSink("ours", {"path": str(tmp_path / "out"), "team": "vision"})
    monitor = watching(tmp_path / "run", place)
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert monitor.tally.lost == 0
    *written, last = (tmp_path / "out").read_text().splitlines()
    assert set(written) == {"vision 4"}
    assert last == "closed"


def watching(run_dir: Path, place: PluginSink) -> outlay.GoodputMonitor:
    return outlay.GoodputMonitor(
        "job",
        "log",
        None,
        upload_interval=3600,
        monitoring_enabled=True,
        gcp_options=NO_CLOUD,
        final_flush_timeout_seconds=120,
        run_dir=run_dir,
        sinks=[place],
    )


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        pytest.param("import no_such_module", "ModuleNotFoundError", id="cannot be imported"),
        pytest.param("def entry(): ...", "TypeError", id="does not know the option"),
    ],
)
def test_a_sink_that_cannot_be_made_is_a_loss_that_the_monitor_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, trouble: str
) -> None:
    install(tmp_path / "site", plugins.SINKS, "ours", code, monkeypatch)
    with outlay.run("model", dir=tmp_path / "run") as run:
        for _ in run.steps(range(5)):
            pass
    monitor = watching(tmp_path / "run", PluginSink("ours", {"secret": "hunter2"}))
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert monitor.tally.lost == 1
    assert trouble in monitor.tally.trouble
    assert "hunter2" not in monitor.tally.trouble


def test_error_for_an_unknown_sink_lists_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.SINKS, "ours", A_SINK, monkeypatch)
    with pytest.raises(InvalidValue, match="one of ours"):
        open_sink(PluginSink("theirs"))


def test_error_for_an_unknown_sink_without_plugins_explains_entry_points() -> None:
    with pytest.raises(InvalidValue, match="a package that announces it"):
        open_sink(PluginSink("theirs"))


AN_ENGINE = """
from outlay.sweep.engines.process import ProcessEngine

class Marked(ProcessEngine):
    def submit(self, task):
        (task.directory / "by-stranger").write_text(str(task.options.values))
        super().submit(task)

entry = Marked
"""


def test_an_engine_of_another_package_runs_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", plugins.ENGINES, "ourcluster", AN_ENGINE, monkeypatch)
    grid = tmp_path / "grid.json"
    stated = {
        "engine": "ourcluster", "arguments": "none", "entrypoint": ["true"],
        "output_dir": str(tmp_path / "sweep"), "ourcluster": {"queue": "day", "priority": 1},
        "grid": [{"params": {"x": 1}, "ourcluster": {"queue": "night"}}],
    }  # fmt: skip
    grid.write_text(json.dumps(stated))
    result = start(plan_file(grid), None, SweepOptions())
    assert result.counts == {"completed": 1}
    asked = (result.root / "001_group00" / "by-stranger").read_text()
    assert asked == "{'queue': 'night', 'priority': 1}"


def test_error_for_an_unknown_engine_lists_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.ENGINES, "ourcluster", AN_ENGINE, monkeypatch)
    with pytest.raises(InvalidValue, match="ourcluster"):
        engine_named("theircluster", tmp_path)
