"""Delivery of alerts: standard error, a file, a webhook, or apprise.

Errors do not contain the address, which is a secret. Deliveries time out, because the process that
delivers also ends rentals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, assert_never

import msgspec

from outlay.alerts.rules import AlertTarget, Shape
from outlay.errors import MissingExtra, OutlayError
from outlay.escaping import json_text

TIMEOUT_S = 10.0
_LONGEST_S = 30.0  # In total: a slow response body never reaches the timeout above.
_LONGEST_DISCORD = 1900  # Discord refuses 2,000 characters and more.


class AlertMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One alert as delivered.

    Attributes:
        at: When it was raised, UTC.
        heads: The hash of the last line of each spend log, for ``outlay guard verify --expect``.
        body: Further text, in Markdown: a digest.
    """

    at: str
    when: str
    key: str
    severity: str
    text: str
    subject: str
    value: float | None = None
    limit: float | None = None
    heads: dict[str, str] = {}
    body: str = ""


class DeliveryFailed(OutlayError):
    """A message could not be delivered."""

    def __init__(self, target: str, why: str) -> None:
        super().__init__(f"alert target {target}: {why}")


def deliver(
    target: AlertTarget,
    message: AlertMessage,
    *,
    say: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> None:
    """Deliver a message; the address is read from ``environ`` (default: ``os.environ``).

    Raises:
        DeliveryFailed: The target failed or timed out.
    """
    if target.kind == "stderr":
        say(_plain(message))
        return
    address = _address(target, os.environ if environ is None else environ)
    failed: list[DeliveryFailed] = []

    def send() -> None:
        try:
            _send(target, address, message)
        except DeliveryFailed as error:
            failed.append(error)
        except Exception as error:  # noqa: BLE001 - apprise plugins raise anything; it is counted
            failed.append(DeliveryFailed(target.name, type(error).__name__))

    sender = threading.Thread(target=send, name=f"alert target {target.name}", daemon=True)
    sender.start()
    sender.join(_LONGEST_S)
    if sender.is_alive():
        raise DeliveryFailed(target.name, f"it did not answer within {_LONGEST_S:.0f} s")
    if failed:
        raise failed[0]


def _send(target: AlertTarget, address: str, message: AlertMessage) -> None:
    match target.kind:
        case "file":
            _append(target, message)
        case "webhook":
            _post(target, address, payload(message, target.shape))
        case "apprise":
            _notify(target, address, message)
        case "stderr":
            raise AssertionError("standard error is written by the caller")
        case _:
            assert_never(target.kind)


def payload(message: AlertMessage, shape: Shape) -> dict[str, Any]:
    """Return the JSON body for a webhook of this shape."""
    match shape:
        case "json":
            document: dict[str, Any] = msgspec.to_builtins(message)
            return document
        case "slack":
            # Slack parses <!channel> in a name as a mention unless these three are escaped.
            text = _plain(message).replace("&", "&amp;").replace("<", "&lt;")
            return {"text": text.replace(">", "&gt;")}
        case "discord":
            # Names may look like mentions: disable pings.
            return {
                "content": _plain(message)[:_LONGEST_DISCORD],
                "allowed_mentions": {"parse": []},
            }
        case _:
            assert_never(shape)


def _plain(message: AlertMessage) -> str:
    first = f"{message.severity}: {message.text}"
    return f"{first}\n\n{message.body}" if message.body else first


def _address(target: AlertTarget, environ: Mapping[str, str]) -> str:
    if target.kind == "file":
        return target.address
    found = environ.get(target.address, "")
    if not found:
        raise DeliveryFailed(target.name, f"the variable {target.address} is not set")
    return found


def _append(target: AlertTarget, message: AlertMessage) -> None:
    path = Path(target.address).expanduser()
    line = json_text(msgspec.json.encode(message).decode()) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as stream:
            stream.write(line.encode())
    except OSError as error:
        raise DeliveryFailed(target.name, str(error.strerror)) from None


def _post(target: AlertTarget, address: str, document: dict[str, Any]) -> None:
    import httpx2

    try:
        answer = httpx2.post(address, json=document, timeout=TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise DeliveryFailed(target.name, type(error).__name__) from None
    if not answer.is_success:
        raise DeliveryFailed(target.name, f"it answered {answer.status_code}")


def _notify(target: AlertTarget, address: str, message: AlertMessage) -> None:
    try:
        import apprise
    except ImportError:
        raise DeliveryFailed(
            target.name, str(MissingExtra("alerts through apprise", "alerts"))
        ) from None
    notifier = apprise.Apprise()
    if not notifier.add(address):
        raise DeliveryFailed(target.name, f"apprise knows no service like ${target.address}")
    kind = apprise.NotifyType.FAILURE if message.severity == "error" else apprise.NotifyType.WARNING
    if not notifier.notify(title=f"outlay: {message.when}", body=_plain(message), notify_type=kind):
        raise DeliveryFailed(target.name, "apprise could not deliver it")
