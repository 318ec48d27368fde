"""Time becomes money exactly: against a calculation in fractions that shares no code with it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers import START_NS, Segment, dollars, ns
from outlay.ledger import Attempt, PriceChanged, derive_attempts
from outlay.rates import NS_PER_HOUR, RateFunction, RatePiece, apportion, round_units, run_rates
from outlay.units import Unit

units = st.integers(min_value=0, max_value=10**30)
seconds = st.integers(min_value=0, max_value=5000)
per_hour = st.sampled_from([0.0, 0.25, 1.5, 2.99, 31.218])


@st.composite
def rate_functions(draw: st.DrawFn) -> RateFunction:
    edges = sorted(draw(st.lists(st.integers(0, 10**13), min_size=2, max_size=12, unique=True)))
    kept = [pair for pair in pairwise(edges) if draw(st.booleans())]
    rates = st.integers(min_value=0, max_value=10**9)
    return RateFunction(tuple(RatePiece(a, b, draw(rates)) for a, b in kept), Unit())


@st.composite
def segment_lists(draw: st.DrawFn) -> list[Segment]:
    """Attempts one after the other, each with prices that change while it runs."""
    segments, clock = [], 0
    for number in range(draw(st.integers(1, 4))):
        clock += draw(seconds)
        price = draw(st.none() | per_hour.map(dollars))
        about = {"price": price, "gpus": draw(st.integers(1, 8)), "pid": number}
        segment = Segment(start=clock, about=about)
        for _ in range(draw(st.integers(0, 3))):
            segment.price(draw(per_hour), gpus=draw(st.integers(1, 8)), after=draw(seconds))
        segment.heartbeat(after=draw(st.integers(1, 5000)))
        if draw(st.booleans()):
            segment.end(draw(st.sampled_from(["completed", "failed", "preempted"])))
        clock = (segment.now_ns - START_NS) // 10**9
        segments.append(segment)
    return segments


def attempts_of(segments: list[Segment]) -> list[Attempt]:
    return derive_attempts(segment.life() for segment in segments)


def oracle_dollars(segments: list[Segment], until_ns: int) -> Fraction:
    """Add up second by second's worth of fractions: which price held, and was the machine ours?"""
    total = Fraction(0)
    for index, segment in enumerate(segments):
        header = segment.header
        marks = [] if header.price is None else [(header.t_ns, header.price, Fraction(header.gpus))]
        for record in segment.records:
            if isinstance(record, PriceChanged):
                marks.append((record.t_ns, record.price, Fraction(record.gpus)))
        ended = getattr(segment.records[-1], "status", None)
        charged_until = segment.now_ns
        if ended not in ("completed", "preempted"):
            following = segments[index + 1 : index + 2]
            charged_until = following[0].header.t_ns if following else max(until_ns, charged_until)
        edges = [mark[0] for mark in marks[1:]] + [charged_until]
        for (since, price, gpus), end in zip(marks, edges, strict=False):
            hours = Fraction(end - since, NS_PER_HOUR)
            total += hours * Fraction(price.micros_per_hour, 10**6) * gpus
    return total


@given(st.dictionaries(st.integers(), units, max_size=8))
def test_parts_sum_to_the_rounded_whole(parts: dict[int, int]) -> None:
    assert sum(apportion(parts).values()) == round_units(sum(parts.values()))


@given(st.dictionaries(st.integers(), units, max_size=8))
def test_no_part_is_off_by_a_micro_unit(parts: dict[int, int]) -> None:
    for key, micros in apportion(parts).items():
        assert abs(Fraction(parts[key], NS_PER_HOUR) - micros) < 1


@given(st.dictionaries(st.integers(), units, max_size=8))
def test_a_part_of_nothing_costs_nothing(parts: dict[int, int]) -> None:
    assert apportion(parts | {-1: 0})[-1] == 0


@given(units)
def test_rounding_is_to_the_nearest_and_halves_to_even(amount: int) -> None:
    assert round_units(amount) == round(Fraction(amount, NS_PER_HOUR))


@given(st.integers(min_value=0, max_value=10**12))
def test_an_exact_half_goes_to_the_even_micro_unit(whole: int) -> None:
    assert round_units(whole * NS_PER_HOUR + NS_PER_HOUR // 2) == whole + whole % 2


@given(rate_functions(), st.lists(st.integers(-10, 10**13 + 10), min_size=2, max_size=8))
def test_adjacent_windows_add_up(function: RateFunction, instants: list[int]) -> None:
    edges = sorted(instants)
    windows = [function.units_between(a, b) for a, b in pairwise(edges)]
    assert sum(windows) == function.units_between(edges[0], edges[-1])


@given(rate_functions(), st.integers(0, 10**13), st.integers(0, 10**13))
def test_a_window_costs_the_integral_of_the_rate(function: RateFunction, a: int, b: int) -> None:
    start, end = sorted((a, b))
    edges = sorted(
        {start, end}
        | {e for p in function.pieces for e in (p.start_ns, p.end_ns) if start < e < end}
    )
    integral = sum(
        Fraction(function.rate_at(left)) * (right - left) for left, right in pairwise(edges)
    )
    assert function.units_between(start, end) == integral


@given(segment_lists(), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_cost_of_a_run_equals_exact_fractions(segments: list[Segment], later: int) -> None:
    until_ns = segments[-1].now_ns + ns(later)
    rates = run_rates(attempts_of(segments), until_ns)
    expected = oracle_dollars(segments, until_ns)
    if rates.function is None:
        assert expected == 0
    else:
        charged = rates.function.units_between(START_NS, until_ns)
        assert Fraction(charged, NS_PER_HOUR * 10**6) == expected


@given(segment_lists(), st.integers(0, 10_000))
@settings(deadline=None)
def test_pieces_are_in_order_and_never_overlap(segments: list[Segment], later: int) -> None:
    function = run_rates(attempts_of(segments), segments[-1].now_ns + ns(later)).function
    for left, right in pairwise(function.pieces if function else ()):
        assert left.start_ns < left.end_ns <= right.start_ns < right.end_ns


@given(segment_lists(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_attempts_do_not_depend_on_the_order_of_segments(
    segments: list[Segment], order: object
) -> None:
    attempts = attempts_of(segments)
    order.shuffle(segments)  # type: ignore[attr-defined]
    assert attempts_of(segments) == attempts
