"""Hostile input, kept in one place: texts that output must not obey, and runs damaged in every way.

Whatever broke something once is added here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from ledgers import START_NS, Segment, dollars
from outlay.ledger import Metric, Note, RunIdentity, claim_identity, ledger_dir

ESCAPE = "\x1b"
TEXTS = {
    "title": "\x1b]0;owned\x07",
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "a\x1b[2J\x1b[Hb",
    "csi": "\x9b31mc1",
    "bell": "ding\x07",
    "back": "abc\x08\x08\x08xyz",
    "return": "good\rbad",
    "link": "\x1b]8;;https://example.org\x1b\\here\x1b]8;;\x1b\\",
    "bidi": "\u202egnp.exe\u202c",
    "nul": "a\x00b",
    "script": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "js": "[click](javascript:alert(1))",
    "auto": "<javascript:alert(1)>",
    "attribute": '" onload="alert(1)',
    "formula": "=cmd|' /C calc'!A0",
    "plus": "+1+cmd",
    "at": "@SUM(1)",
    "minus": "-2+3+cmd|' /C calc'!A0",
    "tab": "\t=1+1",
    "row": "a|b|c\n|d|e|f|",
    "latex": r"\input{/etc/passwd} $x$ 100% #1 a_b {x}",
    "markup": "[bold]x[/bold] :smile: [/]",
    "heading": "# not a heading",
}


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "socket": _make_socket,
}
"""What may stand where a file should, by name."""


def sealed(body: str) -> bytes:
    """Return a record's text as a line with the right checksum."""
    raw = ('{"v":1,' + body).encode(errors="surrogatepass")
    return raw + b',"crc":"%08x"}\n' % crc32(raw)


def good_run(run_dir: Path, name: str, **about: object) -> Path:
    """Write a small finished run."""
    segment = Segment(about={"model": "m", "name": name, "price": dollars(1), **about})
    for _ in range(3):
        segment.step(1, tokens=5)
    segment.add(Metric(t_ns=segment.now_ns, name="accuracy", value=0.5, step=2))
    segment.add(Note(t_ns=segment.now_ns, text="a note"))
    segment.checkpoint().end().write(run_dir)
    claim_identity(
        run_dir, RunIdentity(run_id=f"id-{name}", model="m", name=name, created_ns=START_NS)
    )
    return run_dir


def _segment(run_dir: Path) -> Path:
    return next(ledger_dir(run_dir).glob("*.jsonl"))


def _identity(content: bytes) -> Callable[[Path], object]:
    return lambda run_dir: (run_dir / "ledger" / "run.json").write_bytes(content)


def _replace_identity(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(run_dir: Path) -> None:
        path = run_dir / "ledger" / "run.json"
        path.unlink()
        make(path)

    return damage


def _append(line: bytes) -> Callable[[Path], object]:
    def damage(run_dir: Path) -> None:
        with _segment(run_dir).open("ab") as stream:
            stream.write(line)

    return damage


def _beside(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda run_dir: make(run_dir / "ledger" / "x.jsonl")


def _header(body: str) -> Callable[[Path], object]:
    """Return a damage that leaves one segment with an impossible header and a step."""

    def damage(run_dir: Path) -> None:
        step = f'"seq":1,"kind":"step","t_ns":{START_NS + 10**9},"step":0,"dur_ns":5'
        _segment(run_dir).write_bytes(sealed(body) + sealed(step))

    return damage


def _rename(name: str) -> Callable[[Path], object]:
    def damage(run_dir: Path) -> None:
        path = _segment(run_dir)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[1:]))
        path.rename(path.with_name(name))

    return damage


_T = f'"t_ns":{START_NS}'
_FAR = f'"t_ns":{2**62 - 1}'
_MANY = "9" * 18
DAMAGES: dict[str, Callable[[Path], object]] = {
    "identity-not-utf8": _identity(b'{"run_id":"\xff","model":"m","name":"n","created_ns":1}'),
    "identity-empty": _identity(b"{}"),
    "identity-deep": _identity(b"[" * 100_000),
    "identity-number": _identity(
        b'{"run_id":"a","model":"m","name":"n","created_ns":' + b"9" * 5000 + b"}"
    ),
    "identity-surrogate": _identity(rb'{"run_id":"\ud800","model":"m","name":"n","created_ns":1}'),
    "identity-directory": _replace_identity(Path.mkdir),
    "identity-fifo": _replace_identity(os.mkfifo),
    "fifo": _beside(os.mkfifo),
    "directory": _beside(Path.mkdir),
    "dangling-link": _beside(lambda path: path.symlink_to("nowhere")),
    "device": _beside(lambda path: path.symlink_to("/dev/zero")),
    "nothing": lambda run_dir: _segment(run_dir).write_bytes(b""),
    "zeros": lambda run_dir: _segment(run_dir).write_bytes(bytes(5000)),
    "not-utf8": lambda run_dir: _segment(run_dir).write_bytes(b"\xff" * 5000),
    "long-start": _rename("9" * 32 + "-node-7-r0.jsonl"),
    "other-digits": _rename("\u0661-node-7-r0.jsonl"),
    "no-header": _rename("x.jsonl"),
    "metric-of-words": _append(sealed(f'"seq":9,"kind":"metric",{_T},"name":"a","value":"abc"')),
    "far-future": _append(sealed(f'"seq":9,"kind":"note",{_FAR},"text":"x"')),
    "far-past": _append(sealed(f'"seq":9,"kind":"note","t_ns":-{2**62 - 1},"text":"x"')),
    "long-number": _append(
        sealed(f'"seq":9,"kind":"step",{_T},"step":1,"dur_ns":1,"flops":{"9" * 400}')
    ),
    "negative-step": _append(sealed(f'"seq":9,"kind":"step",{_T},"step":-5,"dur_ns":-{_MANY}')),
    "wide-step": _append(sealed(f'"seq":9,"kind":"step",{_T},"step":{_MANY},"dur_ns":{_MANY}')),
    "many-steps": _append(
        sealed(f'"seq":9,"kind":"step",{_T},"step":1,"dur_ns":1,"count":{_MANY}')
    ),
    "huge-tokens": _append(
        sealed(f'"seq":9,"kind":"step",{_T},"step":1,"dur_ns":1,"tokens":4{_MANY}') * 3
    ),
    "negative-gap": _append(sealed(f'"seq":9,"kind":"gap",{_T},"lost":-5,"since_ns":1')),
    "deep-note": _append(
        sealed(f'"seq":9,"kind":"note",{_T},"data":{{"a":{"[" * 5000}{"]" * 5000}}}')
    ),
    "odd-payload": _append(sealed(f'"seq":9,"kind":"payload",{_T},"data":{{"job_start_time":[]}}')),
    "odd-budget": _append(
        sealed(f'"seq":9,"kind":"budget_event",{_T},"event":"set","data":{{"limits":5}}')
    ),
    "header-price": _header(
        f'"seq":0,"kind":"attempt_started",{_T},"price":{{"micros_per_hour":{_MANY}}},"gpus":{_MANY}'
    ),
    "header-negative": _header(
        f'"seq":0,"kind":"attempt_started",{_T},"price":{{"micros_per_hour":-5}},"gpus":-3'
    ),
    "header-currency": _header(
        f'"seq":0,"kind":"attempt_started",{_T},"price":'
        '{"micros_per_hour":5,"currency":"\\u001b[31m"},"gpus":1'
    ),
    "header-rank": _header(f'"seq":0,"kind":"attempt_started",{_T},"rank":{"9" * 30}'),
    "header-far": _header(f'"seq":0,"kind":"attempt_started",{_FAR}'),
}
"""How a good run becomes a damaged one, by name."""
