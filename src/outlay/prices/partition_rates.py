"""What a GPU-hour costs on each partition of a cluster: a small file in the outlay home.

A cluster that is not rented has no price list; its rate is what somebody decides an hour is worth.
It is therefore showback, unless ``cash`` is said behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue
from outlay.files import write_whole
from outlay.ledger.price import Price, typed_price
from outlay.store.home import outlay_home

NAME: Final = "rates.json"


def rates_file() -> Path:
    """Return where the rates are kept."""
    return outlay_home() / NAME


def read_rates() -> dict[str, Price]:
    """Return the rate of every partition that has one, by name.

    Raises:
        InvalidValue: The file is there and cannot be understood.
    """
    path = rates_file()
    try:
        stated = read_document(path, dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, BadDocument) as error:
        expected = f"a JSON object of partitions and rates ({error})"
        raise InvalidValue("rates", str(path), expected) from None
    return {name: read_rate(text, name) for name, text in sorted(stated.items())}


def read_rate(text: str, partition: str, *, name: str = "") -> Price:
    """Return ``1.20 USD/h`` as the rate of a partition: showback, unless ``cash`` follows it."""
    source = f"rate of {partition}"
    return typed_price(text, name=name or source, source=source, kind="showback")


def set_rate(partition: str, rate: Price | None) -> dict[str, Price]:
    """Set a partition's rate per GPU-hour, or remove it; return all of them.

    Raises:
        InvalidValue: The name cannot be a partition's, or there is nothing to remove.
    """
    rates = read_rates()
    if not partition.strip() or "," in partition or partition != partition.strip():
        raise InvalidValue("PARTITION", partition, "the name of one partition")
    if rate is None and partition not in rates:
        known = ", ".join(rates) or "none has a rate"
        raise InvalidValue("PARTITION", partition, f"a partition with a rate ({known})")
    rates.pop(partition, None)
    if rate is not None:
        rates[partition] = rate
    _write(rates)
    return dict(sorted(rates.items()))


def _write(rates: Mapping[str, Price]) -> None:
    """Put the file in place, whole."""
    path = rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = {name: rate_text(rate) for name, rate in sorted(rates.items())}
    content = msgspec.json.format(msgspec.json.encode(text), indent=2) + b"\n"
    write_whole(path, content, synced=True)


def rate_text(rate: Price) -> str:
    """Return a rate as the file states it: ``1.20 USD/h``, or ``1.20 USD/h cash``."""
    return str(rate.rate) if rate.kind == "showback" else f"{rate.rate} {rate.kind}"
