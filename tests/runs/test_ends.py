"""How an attempt ends: in order, by an error, by a signal, by SIGKILL; and what the caller sees."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

import outlay
from command_line import Outcome, python
from outlay.ledger import AttemptEnded, Step, read_run


def end(run_dir: Path) -> AttemptEnded | None:
    records = read_run(run_dir).records
    return records[-1] if isinstance(records[-1], AttemptEnded) else None


def outcome(run_dir: Path) -> tuple[str, str]:
    ended = end(run_dir)
    assert ended is not None
    return ended.status, ended.reason


def finish(program: str, *run_dirs: Path) -> Outcome:
    """Run a Python program given as text in a process of its own, to whatever end."""
    return python(textwrap.dedent(program), *run_dirs)


class TrainingError(Exception):
    """An exception of the training script."""


def test_a_run_that_reaches_its_end_is_completed(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path):
        pass
    assert outcome(tmp_path) == ("completed", "")


def test_an_exception_passes_unchanged_and_is_the_reason(tmp_path: Path) -> None:
    error = TrainingError("a secret")
    with pytest.raises(TrainingError) as caught, outlay.run("m", dir=tmp_path):
        raise error
    assert caught.value is error
    assert error.__context__ is None
    assert outcome(tmp_path) == ("failed", "TrainingError")


def test_the_text_of_an_exception_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(TrainingError), outlay.run("m", dir=tmp_path):
        raise TrainingError("password=hunter2")
    assert "hunter2" not in str(read_run(tmp_path))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt")),
        (SystemExit(), ("completed", "")),
        (SystemExit(0), ("completed", "")),
        (SystemExit(3), ("failed", "SystemExit")),
        (SystemExit("no data"), ("failed", "SystemExit")),
        (MemoryError(), ("failed", "MemoryError")),
    ],
    ids=repr,
)
def test_end_status_follows_the_exception(
    tmp_path: Path, error: BaseException, expected: tuple[str, str]
) -> None:
    with pytest.raises(type(error)), outlay.run("m", dir=tmp_path):
        raise error
    assert outcome(tmp_path) == expected


def test_a_stated_preemption_is_the_end_status(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.preempted("spot reclaim")
    assert outcome(tmp_path) == ("preempted", "spot reclaim")


def test_closing_twice_records_one_end(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.close("failed", "my own words")
        run.close()
    assert outcome(tmp_path) == ("failed", "my own words")
    assert sum(isinstance(r, AttemptEnded) for r in read_run(tmp_path).records) == 1


def test_after_the_end_calls_do_nothing(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        pass
    before = read_run(tmp_path)
    with run.step(), run.span("evaluation"):
        run.metric("loss", 1)
        run.checkpoint_committed()
        run.heartbeat()
    assert read_run(tmp_path) == before


def test_a_script_that_does_not_close_is_completed_at_exit(tmp_path: Path) -> None:
    program = """
        import sys, outlay
        run = outlay.run("m", dir=sys.argv[1])
        for _ in run.steps("abc"):
            pass
    """
    assert finish(program, tmp_path).code == 0
    assert outcome(tmp_path) == ("completed", "")


def test_a_script_that_dies_of_an_exception_without_closing_failed(tmp_path: Path) -> None:
    program = """
        import sys, outlay
        run = outlay.run("m", dir=sys.argv[1])
        raise RuntimeError
    """
    assert finish(program, tmp_path).code == 1
    assert outcome(tmp_path) == ("failed", "RuntimeError")


def test_a_script_interrupted_without_closing_is_interrupted(tmp_path: Path) -> None:
    program = """
        import signal, sys, outlay
        run = outlay.run("m", dir=sys.argv[1])
        signal.raise_signal(signal.SIGINT)
    """
    assert finish(program, tmp_path).code == -signal.SIGINT
    assert outcome(tmp_path) == ("interrupted", "KeyboardInterrupt")


# SIGTERM: each program is sent it in the middle of a step.

LOOP = """
    import signal, sys, threading, outlay
    {before}
    with outlay.run("m", dir=sys.argv[1]) as run:
        {within}
        for number in run.steps(range(3)):
            if number == 1:
                signal.raise_signal(signal.SIGTERM)
    print("still here")
"""


def terminated(
    tmp_path: Path, before: str = "", within: str = ""
) -> tuple[int, str, tuple[str, str], list[int]]:
    done = finish(LOOP.format(before=before, within=within), tmp_path)
    assert done.err == ""
    steps = [record.step for record in read_run(tmp_path).records if isinstance(record, Step)]
    return done.code, done.out, outcome(tmp_path), steps


def test_sigterm_ends_the_attempt_and_the_process_dies_of_it(tmp_path: Path) -> None:
    assert terminated(tmp_path) == (-signal.SIGTERM, "", ("terminated", "SIGTERM"), [0])


def test_previous_handler_is_called_and_decides_whether_to_exit(tmp_path: Path) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: print('mine'))"
    expected = (0, "mine\nstill here\n", ("terminated", "SIGTERM"), [0, 1, 2])
    assert terminated(tmp_path, before) == expected


def test_a_previous_handler_that_exits_does_so(tmp_path: Path) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    assert terminated(tmp_path, before) == (7, "", ("terminated", "SIGTERM"), [0])


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    expected = (0, "still here\n", ("terminated", "SIGTERM"), [0, 1, 2])
    assert terminated(tmp_path, before) == expected


def test_a_handler_installed_later_is_left_alone(tmp_path: Path) -> None:
    within = "signal.signal(signal.SIGTERM, lambda *_: print('later'))"
    expected = (0, "later\nstill here\n", ("completed", ""), [0, 1, 2])
    assert terminated(tmp_path, within=within) == expected


def test_a_loop_that_breaks_on_sigterm_keeps_its_last_step(tmp_path: Path) -> None:
    program = """
        import signal, sys, outlay
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
        with outlay.run("m", dir=sys.argv[1]) as run:
            for number in run.steps(range(9)):
                if number == 1:
                    signal.raise_signal(signal.SIGTERM)
                if stop:
                    run.checkpoint_committed()
                    break
    """
    assert finish(program, tmp_path).code == 0
    assert outcome(tmp_path) == ("terminated", "SIGTERM")
    assert [r.step for r in read_run(tmp_path).records if isinstance(r, Step)] == [0, 1]


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "signal.SIG_IGN", "print"])
def test_closing_restores_the_previous_handler(tmp_path: Path, handler: str) -> None:
    program = f"""
        import signal, sys, outlay
        signal.signal(signal.SIGTERM, {handler})
        with outlay.run("m", dir=sys.argv[1]):
            assert signal.getsignal(signal.SIGTERM) is not {handler}
        assert signal.getsignal(signal.SIGTERM) is {handler}
    """
    done = finish(program, tmp_path)
    assert (done.code, done.err) == (0, "")


def test_a_run_in_another_thread_installs_no_handler(tmp_path: Path) -> None:
    program = """
        import signal, sys, threading, outlay
        def train():
            with outlay.run("m", dir=sys.argv[1]):
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """
    done = finish(program, tmp_path)
    assert (done.code, done.err) == (0, "")
    assert outcome(tmp_path) == ("completed", "")


def test_sigterm_ends_every_run_of_a_process(tmp_path: Path) -> None:
    program = """
        import signal, sys, outlay
        with outlay.run("m", dir=sys.argv[1]), outlay.run("n", dir=sys.argv[2]):
            signal.raise_signal(signal.SIGTERM)
    """
    done = finish(program, tmp_path / "m", tmp_path / "n")
    assert done.code == -signal.SIGTERM
    assert outcome(tmp_path / "m") == outcome(tmp_path / "n") == ("terminated", "SIGTERM")


def test_a_killed_run_has_no_end(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, outlay
        with outlay.run("m", dir=sys.argv[1]) as run:
            with run.step():
                pass
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert finish(program, tmp_path).code == -signal.SIGKILL
    assert end(tmp_path) is None
    assert len(read_run(tmp_path).records) == 2


def test_what_was_recorded_is_synced_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
        monkeypatch.setattr("os.fsync", synced.append)
        run.note("about to publish")
        run.sync()
        monkeypatch.undo()
    assert len(synced) == 1


def test_runs_that_are_closed_in_the_order_of_their_start_leave_no_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = (outlay.run("m", dir=tmp_path / name) for name in "ab")
    first.close()
    assert signal.getsignal(signal.SIGTERM) is not before
    second.close()
    assert signal.getsignal(signal.SIGTERM) is before
