"""The contract of every vendor's client, with valid and faulty responses."""

from __future__ import annotations

import base64
import gzip
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_vendor import Answer, as_json, serving
from outlay.clock import ManualClock
from outlay.prices.offer import OfferSource, Parsed, Snapshot
from outlay.prices.price_book import fetch
from outlay.prices.sources.http import HttpVendor, RetryPolicy, VendorSource
from outlay.prices.sources.vendors import LAMBDA, RUNPOD, VAST
from vendor_shapes import lambda_answer, runpod_answer, vast_answer

KEY = "sk-very-secret-0123456789"


@dataclass(frozen=True)
class Case:
    vendor: HttpVendor
    good: Callable[[], dict[str, Any]]


CASES = [Case(VAST, vast_answer), Case(RUNPOD, runpod_answer), Case(LAMBDA, lambda_answer)]


@pytest.fixture(params=CASES, ids=lambda case: case.vendor.name)
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


def fetched(
    case: Case, *answers: Answer, retry_policy: RetryPolicy | None = None, key: str | None = KEY
) -> Snapshot:
    with serving(*answers) as vendor:
        source = VendorSource(
            case.vendor,
            base_url=vendor.url,
            key=key,
            retry_policy=retry_policy or RetryPolicy(),
            clock=ManualClock(),
        )
        return fetch(source, clock=ManualClock(wall_ns=42))


def reason(snapshot: Snapshot) -> str:
    assert snapshot.failed
    assert not snapshot.offers
    return snapshot.findings[0].message


def test_a_valid_response_returns_offers(case: Case) -> None:
    snapshot = fetched(case, as_json(case.good()))
    assert not snapshot.failed
    assert not snapshot.findings
    assert snapshot.offers


def test_every_offer_has_its_source_and_time(case: Case) -> None:
    snapshot = fetched(case, as_json(case.good()))
    assert {(offer.source, offer.fetched_ns) for offer in snapshot.offers} == {
        (case.vendor.name, 42)
    }


def test_the_key_goes_in_a_header_and_not_in_the_address(case: Case) -> None:
    with serving(as_json(case.good())) as vendor:
        fetch(VendorSource(case.vendor, base_url=vendor.url, key=KEY))
    (asked,) = vendor.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in asked.path
    assert KEY.encode() not in asked.body


def test_the_key_and_the_address_come_from_the_environment(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(as_json(case.good())) as vendor:
        monkeypatch.setenv(case.vendor.key_name, KEY)
        monkeypatch.setenv(case.vendor.url_name, vendor.url)
        fetch(VendorSource(case.vendor))
    assert vendor.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_vendor_is_retried(case: Case, status: int) -> None:
    snapshot = fetched(case, Answer(status=status), as_json(case.good()))
    assert snapshot.offers


def test_a_retry_waits_for_retry_after(case: Case) -> None:
    clock = ManualClock()
    busy = Answer(status=429, headers={"Retry-After": "7"})
    with serving(busy, as_json(case.good())) as vendor:
        fetch(VendorSource(case.vendor, base_url=vendor.url, key=KEY, clock=clock))
    assert clock.monotonic_ns() == 7_000_000_000


@pytest.mark.parametrize(
    ("header", "waited_s"),
    [
        ("Tue, 14 Nov 2023 22:13:29 GMT", 9),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
        ("Tue, 14 Nov 2023 22:13:29 -0000", 0.5),
        ("soon", 0.5),
    ],
)
def test_retry_after_may_be_a_date(header: str, waited_s: float) -> None:
    clock = ManualClock()  # at 22:13:20
    busy = Answer(status=503, headers={"Retry-After": header})
    with serving(busy, as_json(vast_answer())) as vendor:
        fetch(VendorSource(VAST, base_url=vendor.url, clock=clock))
    assert clock.monotonic_ns() == waited_s * 1e9


def test_a_retry_after_beyond_the_limit_is_a_failure(case: Case) -> None:
    busy = Answer(status=429, headers={"Retry-After": "3600"})
    assert "retry only after 3600 s" in reason(fetched(case, busy))


def test_a_vendor_that_stays_down_is_a_failure(case: Case) -> None:
    with serving(Answer(status=503, body=b"upstream")) as vendor:
        source = VendorSource(case.vendor, base_url=vendor.url, key=KEY, clock=ManualClock())
        snapshot = fetch(source)
    assert "HTTP 503: upstream" in reason(snapshot)
    assert len(vendor.asked) == RetryPolicy().tries


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_but_not_shown(case: Case, status: int) -> None:
    snapshot = fetched(case, Answer(status=status, body=f'{{"bad key": "{KEY}"}}'.encode()))
    assert case.vendor.key_name in reason(snapshot)
    assert KEY not in reason(snapshot)


def test_a_client_error_is_not_retried(case: Case) -> None:
    with serving(Answer(status=404)) as vendor:
        fetch(VendorSource(case.vendor, base_url=vendor.url, key=KEY))
    assert len(vendor.asked) == 1


def test_a_redirect_is_not_followed_with_the_key(case: Case) -> None:
    with serving(as_json(case.good())) as elsewhere:
        moved = Answer(status=302, headers={"Location": elsewhere.url})
        assert "HTTP 302" in reason(fetched(case, moved))
    assert not elsewhere.asked


def test_a_web_page_is_a_failure(case: Case) -> None:
    assert "web page" in reason(fetched(case, Answer(body=b"<!DOCTYPE html><html></html>")))


def test_a_response_that_breaks_off_is_a_failure(case: Case) -> None:
    body = json.dumps(case.good()).encode()
    assert "connection broke" in reason(fetched(case, Answer(body=body, cut_at=len(body) // 2)))


def test_truncated_json_is_a_failure(case: Case) -> None:
    body = json.dumps(case.good()).encode()
    assert "not the expected JSON" in reason(fetched(case, Answer(body=body[:-3])))


def test_a_body_sent_byte_by_byte_fails_at_the_deadline(case: Case) -> None:
    with serving(Answer(drip=True)) as vendor:
        retry_policy = RetryPolicy(deadline_s=0.2, tries=1)
        snapshot = fetch(
            VendorSource(case.vendor, base_url=vendor.url, key=KEY, retry_policy=retry_policy)
        )
    assert "before the deadline" in reason(snapshot)


def test_headers_sent_byte_by_byte_fail_at_the_deadline(case: Case) -> None:
    with serving(Answer(drip_head=True)) as vendor:
        retry_policy = RetryPolicy(deadline_s=0.2, tries=1)
        snapshot = fetch(
            VendorSource(case.vendor, base_url=vendor.url, key=KEY, retry_policy=retry_policy)
        )
    assert "before the deadline" in reason(snapshot)


def test_a_gzip_response_is_decompressed(case: Case) -> None:
    body = gzip.compress(json.dumps(case.good()).encode())
    answer = Answer(body=body, headers={"content-encoding": "gzip"})
    assert not fetched(case, answer).failed


def test_a_response_that_decompresses_beyond_the_limit_is_a_failure() -> None:
    answer = Answer(body=gzip.compress(bytes(80 * 2**20)), headers={"content-encoding": "gzip"})
    assert "more than" in reason(fetched(CASES[0], answer))


@pytest.mark.parametrize("packed", ["gzip, gzip", "br", "deflate"])
def test_another_or_nested_encoding_is_a_failure(case: Case, packed: str) -> None:
    body = gzip.compress(gzip.compress(json.dumps(case.good()).encode()))
    answer = Answer(body=body, headers={"content-encoding": packed})
    assert "encoding other than gzip" in reason(fetched(case, answer))


@pytest.mark.parametrize("cut", [-4, 5])
def test_gzip_that_is_cut_off_is_a_failure(case: Case, cut: int) -> None:
    body = gzip.compress(json.dumps(case.good()).encode())[:cut]
    answer = Answer(body=body, headers={"content-encoding": "gzip"})
    assert "truncated" in reason(fetched(case, answer))


ECHOES: list[Callable[[bytes], bytes]] = [
    lambda key: key,
    lambda key: quote(key, safe="").encode(),
    lambda key: "".join(f"%{byte:02x}" for byte in key).encode(),
    lambda key: base64.b64encode(key),
    lambda key: base64.urlsafe_b64encode(b"Bearer " + key),
    lambda key: base64.b64encode(b"user:" + key + b"!"),
    lambda key: base64.b64encode(b"x" + key),
    lambda key: key.hex().encode(),
]


@pytest.mark.parametrize("echo", ECHOES)
def test_an_echoed_key_is_redacted_in_every_encoding(
    case: Case, echo: Callable[[bytes], bytes]
) -> None:
    odd_key = "sk/very+secret=0123456789&abc"
    said = b"bad request: " + echo(odd_key.encode())
    text = reason(fetched(case, Answer(status=400, body=said), key=odd_key))
    assert "***" in text
    # All but the edges of a group of base64 that the key shares with what stands beside it.
    assert echo(odd_key.encode()).decode()[12:-12] not in text


def test_a_refused_connection_is_a_failure(case: Case) -> None:
    with serving(Answer()) as vendor:
        gone = vendor.url
    snapshot = fetch(VendorSource(case.vendor, base_url=gone, key=KEY, clock=ManualClock()))
    assert "no connection" in reason(snapshot)


@pytest.mark.parametrize("address", ["not a url", "ftp://127.0.0.1", "http://[::1", ""])
def test_an_invalid_url_is_a_failure(case: Case, address: str) -> None:
    source = VendorSource(case.vendor, base_url=address or "http://", key=KEY)
    assert reason(fetch(source))


@pytest.mark.parametrize("key", ["line\nbreak", "snowman ☃"])
def test_a_key_that_no_header_can_carry_is_a_failure_that_does_not_show_it(
    case: Case, key: str
) -> None:
    assert key not in reason(fetched(case, as_json(case.good()), key=key))


def test_a_bad_row_is_a_finding_and_the_others_are_kept(case: Case) -> None:
    answer = case.good()
    match case.vendor.name:
        case "vast":
            answer["offers"].append({"gpu_name": None})
        case "runpod":
            answer["data"]["gpuTypes"].append({"securePrice": "free"})
        case _:
            answer["data"]["odd"] = {"instance_type": 5}
    snapshot = fetched(case, as_json(answer))
    assert snapshot.offers
    assert len(snapshot.findings) == 1


def test_an_echoed_key_is_in_no_offer_finding_or_log(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = json.dumps(case.good()).replace("4090", KEY).replace("3090", KEY).replace("6000", KEY)
    with serving(Answer(body=body.encode())) as vendor:
        source = VendorSource(case.vendor, base_url=vendor.url, key=KEY)
        snapshot = fetch(source)
    assert KEY not in repr(snapshot)
    assert KEY not in repr(source)
    assert KEY not in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def mutated(value: Any, draw: st.DrawFn) -> Any:
    """Replace one part of a good answer, at any depth, by any JSON."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [mutated(value[0], draw), *value[1:]]
    return draw(json_values)


@st.composite
def any_answer(draw: st.DrawFn) -> tuple[HttpVendor, bytes]:
    case = draw(st.sampled_from(CASES))
    answer: Any = case.good()
    for _ in range(draw(st.integers(0, 4))):
        answer = mutated(answer, draw)
    body = json.dumps(answer).encode()
    return case.vendor, draw(st.sampled_from([body, body[: len(body) // 2]]) | st.binary())


@dataclass(frozen=True)
class Canned:
    """A source whose answer is already here."""

    vendor: HttpVendor
    body: bytes

    @property
    def name(self) -> str:
        return self.vendor.name

    def load(self, fetched_ns: int) -> Parsed:
        return self.vendor.parse(self.body, fetched_ns)


@settings(max_examples=400, deadline=None)
@given(any_answer())
def test_any_response_yields_findings_or_offers_that_can_be_stored(
    answer: tuple[HttpVendor, bytes],
) -> None:
    source: OfferSource = Canned(*answer)
    snapshot = fetch(source, clock=ManualClock())
    assert snapshot.offers or snapshot.findings or not snapshot.failed
    for offer in snapshot.offers:
        assert 0 <= offer.price.micros < 2**63
        assert offer.storage_price is None or 0 <= offer.storage_price.micros < 2**63
        assert offer.memory_gb is None or 0 <= offer.memory_gb < 2**31
        assert offer.bandwidth_mbps is None or 0 <= offer.bandwidth_mbps < 2**63
