"""Ports of runs: each is reserved for one at a time."""

from __future__ import annotations

import socket

from outlay.sweep.engines.ports import Ports


def test_a_released_port_is_reserved_again() -> None:
    """Its lock file exists, which is cheaper than to create another for every run."""
    ports = Ports()
    first = ports.reserve()
    other = ports.reserve()
    ports.release(first)
    assert ports.reserve() == first
    assert other != first


def test_a_released_port_that_another_program_binds_is_passed_over() -> None:
    ports = Ports()
    first = ports.reserve()
    ports.release(first)
    with socket.socket() as taken:
        taken.bind(("", first))
        assert ports.reserve() != first
