"""What every command looks for first: families that nobody keeps, and what becomes of them."""

from __future__ import annotations

from outlay.cli.output import errors
from outlay.errors import OutlayError
from outlay.proc.identity import command_line
from outlay.proc.strays import StrayFamily, find_strays
from outlay.store import outlay_home


def deal_with_strays() -> None:
    """Name each on the error stream; a wrapped command is recorded again, any other is ended."""
    for stray in find_strays(outlay_home() / "kept"):
        errors.print(f"outlay: {_deal_with(stray)}", soft_wrap=True, markup=False, highlight=False)


def _deal_with(stray: StrayFamily) -> str:
    about = stray.record.about
    # Its words are not shown: there may be a secret among them.
    what = ", ".join(f"process {p.pid} ({command_line(p.pid)[0]})" for p in stray.alive)
    killed = "its supervisor and its keeper were killed"
    match about.get("kind"):
        case "exec":
            from outlay.runs.exec import take_over

            take_over(stray)
            return f"{what} still runs, {killed}. It is recorded again, in {about['run_dir']}."
        case "guard":
            return f"{what} ran on under hold {about['hold']}: {killed}. {_settled(stray)}"
        case _:
            stray.end()
            stray.forget()
            root = about.get("root", "")
            return f"{what} of the sweep in {root} ran on: {killed}. It was ended."


def _settled(stray: StrayFamily) -> str:
    from outlay.guard.supervise import settle_stray

    try:
        actual = settle_stray(stray)
    except OutlayError as error:
        return f"It was ended; what it cost could not be recorded: {error}"
    return "It was ended." if actual is None else f"It was ended; {actual} were recorded for it."
