"""Named stretches of work: a context manager and a decorator, for plain and async code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class SpanSink(Protocol):
    """Where a span's two ends are recorded."""

    def begin_span(self, name: str, *, overlapped: bool) -> int:
        """Record the begin of a span and return its sequence number."""

    def end_span(self, begun: int) -> None:
        """Record the end of the span that began at ``begun``."""


class Span:
    """One stretch of work by name, such as ``checkpoint_save``; each ``with`` is one stretch.

    Its begin is on disk before the work starts, so that a kill in the middle is seen as what it
    was.
    """

    __slots__ = ("_begun", "_name", "_overlapped", "_sink")

    def __init__(self, sink: SpanSink, name: str, *, overlapped: bool) -> None:
        self._sink = sink
        self._name = name
        self._overlapped = overlapped
        self._begun: list[int] = []  # A stack, so that one Span may be entered recursively.

    def __enter__(self) -> Span:
        self._begun.append(self._sink.begin_span(self._name, overlapped=self._overlapped))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sink.end_span(self._begun.pop())

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def __call__(self, function: F) -> F:
        """Return ``function`` with every call of it recorded as a span."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _again(self) -> Span:
        # Calls may overlap (tasks, threads), so each gets a stack of its own.
        return Span(self._sink, self._name, overlapped=self._overlapped)
