"""Moments and windows as people type them: ``2026-11-15T20:00Z``, or ``2h`` for two hours ago."""

from __future__ import annotations

from outlay.clock import MOMENT, parse_moment
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Window
from outlay.units import Duration


def parse_interval(text: str, *, name: str, now_ns: int) -> Window:
    """Return the interval that ``FROM..TO`` names; each end is an instant, or how long ago.

    Raises:
        InvalidValue: It has no two ends, or ends before it begins.
    """
    begin, dots, end = (part.strip() for part in text.partition(".."))
    if not (begin and dots and end):
        raise InvalidValue(name, text, f'FROM..TO, such as "2h..1h"; each end is {MOMENT}')
    start_ns = parse_moment(begin, name=name, now_ns=now_ns)
    end_ns = parse_moment(end, name=name, now_ns=now_ns)
    if end_ns < start_ns:
        raise InvalidValue(name, text, "an end that is not before the start")
    return Window(start_ns, end_ns)


def parse_window(
    view: RunView, *, since: str | None, until: str | None, last: str | None, now_ns: int
) -> Window | None:
    """Return the window that the options name, or None for the whole run."""
    since_ns = None if since is None else parse_moment(since, name="--since", now_ns=now_ns)
    until_ns = None if until is None else parse_moment(until, name="--until", now_ns=now_ns)
    if last is not None:
        if since_ns is not None:
            raise InvalidValue("--window", last, "either --window or --since, not both")
        end_ns = now_ns if until_ns is None else until_ns
        return view.window(end_ns - Duration.parse(last, name="--window").ns, end_ns)
    if since_ns is None and until_ns is None:
        return None
    return view.window(since_ns, until_ns)
