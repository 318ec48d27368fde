"""Sources by the name that a user types.

Another package adds one with an entry point in ``outlay.prices`` that leads to a function without
arguments, which returns an ``OfferSource``.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.prices.sources.base import OfferSource
from outlay.prices.sources.catalogs import GpuhuntSource
from outlay.prices.sources.http import VendorSource
from outlay.prices.sources.lambda_cloud import LAMBDA
from outlay.prices.sources.runpod import RUNPOD
from outlay.prices.sources.vast import VAST

VENDORS = {vendor.name: vendor for vendor in (RUNPOD, LAMBDA, VAST)}
_GPUHUNT = "gpuhunt:"


def sources_named(names: Iterable[str]) -> list[OfferSource]:
    """Return the sources of the given names, each once.

    Raises:
        InvalidValue: A name is of no source.
    """
    return [_source(name) for name in dict.fromkeys(names)]


def _source(name: str) -> OfferSource:
    if name in VENDORS:
        return VendorSource(VENDORS[name])
    if name.startswith(_GPUHUNT) and len(name) > len(_GPUHUNT):
        return GpuhuntSource(name.removeprefix(_GPUHUNT))
    announced = plugins.load(plugins.PRICES, name)
    if announced is not None:
        source: OfferSource = announced()
        return source
    known = [*VENDORS, f"{_GPUHUNT}PROVIDER", *plugins.names(plugins.PRICES)]
    raise InvalidValue("source", name, choices(known))
