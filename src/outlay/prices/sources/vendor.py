"""A vendor with an HTTP API: how it is asked, and how its answer is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay.clock import SYSTEM, Clock
from outlay.prices.sources.base import Parsed, SourceFailed
from outlay.prices.sources.http import Patience, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What outlay knows about a vendor's API.

    Attributes:
        url: Its address.
        url_name: The environment variable that names another address.
        key_name: The environment variable that holds the user's key.
        needs_key: It does not answer without one.
        parse: Pure: the body of an answer and the instant of it → offers and findings.
    """

    name: str
    method: str
    url: str
    url_name: str
    path: str
    body: Mapping[str, Any] | None = None
    key_name: str
    needs_key: bool = False
    parse: Callable[[bytes, int], Parsed]


@dataclass(frozen=True, slots=True)
class VendorSource:
    """Offers that come straight from a vendor.

    Attributes:
        base_url: Where to ask instead of the vendor's own address.
        key: Instead of the one in the environment.
    """

    vendor: Vendor
    base_url: str | None = field(default=None, kw_only=True)
    key: str | None = field(default=None, kw_only=True, repr=False)
    patience: Patience = field(default=Patience(), kw_only=True)
    clock: Clock = field(default=SYSTEM, kw_only=True)

    @property
    def name(self) -> str:
        """The vendor's name."""
        return self.vendor.name

    def load(self, fetched_ns: int) -> Parsed:
        """Ask the vendor and read its answer."""
        vendor = self.vendor
        key = self.key or os.environ.get(vendor.key_name)
        if vendor.needs_key and not key:
            raise SourceFailed(vendor.name, f"it asks for a key; set {vendor.key_name}")
        base_url = self.base_url or os.environ.get(vendor.url_name) or vendor.url
        request = Request(
            source=vendor.name,
            method=vendor.method,
            url=base_url.rstrip("/") + vendor.path,
            body=vendor.body,
            key=key,
            key_name=vendor.key_name,
            patience=self.patience,
            clock=self.clock,
        )
        return vendor.parse(request.send(), fetched_ns)
