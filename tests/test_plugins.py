"""What another package brings is found by its name, and a broken one says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay import plugins
from outlay.errors import InvalidValue
from outlay.prices.sources.base import fetch
from outlay.prices.sources.registry import sources_named
from outlay.units import Money
from plugin_packages import install

A_SOURCE = """
from outlay.prices.sources.manual import ManualSource
from outlay.units import Rate

def entry():
    return ManualSource(gpu="H100", price=Rate.parse("2.50 USD/h"), provider="ourcloud")
"""


def test_a_price_source_of_another_package_is_a_source_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, plugins.PRICES, "ourcloud", A_SOURCE, monkeypatch)
    (source,) = sources_named(["ourcloud"])
    (offer,) = fetch(source).offers
    assert (offer.provider, offer.price) == ("ourcloud", Money.parse("2.50 USD"))


def test_an_unknown_source_is_told_of_those_that_packages_bring(
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


def test_nothing_is_announced_where_nothing_is_installed() -> None:
    assert plugins.names(plugins.SINKS) == ()
    assert plugins.load(plugins.SINKS, "any") is None
