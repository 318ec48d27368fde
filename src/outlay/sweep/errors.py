"""Every way a sweep says no.

OutlayError
├── InvalidGrid         the grid file has problems; names all of them, each with its line
├── NotASweep           a directory without a manifest
├── SweepInUse          another harness runs this sweep
├── RunElsewhere        a sweep is to be cancelled whose harness is not ours to end
├── SweepNotRecorded    the journal cannot be written, so nothing more is started
├── EngineBroken        what starts and ends the runs died
├── NotCancelled        what is still running could not be asked to end
├── RunsFailed          the sweep went through, and some runs did not
└── IncompleteRuns      completed runs miss what the summary needs; names all of it
Refused
├── NotAcknowledged     a sweep costs money and nobody said yes
└── RunsSkipped         some runs no longer fitted under the ceiling
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlay.errors import Finding, OutlayError, Refused


def _listed(findings: Sequence[Finding]) -> str:
    return "".join(f"\n  {finding}" for finding in findings)


class InvalidGrid(OutlayError):
    """A grid that cannot be planned; carries everything that is wrong with it."""

    exit_code = 2

    def __init__(self, findings: Sequence[Finding]) -> None:
        noun = "problem" if len(findings) == 1 else "problems"
        super().__init__(
            f"{len(findings)} {noun} in the grid; nothing was started{_listed(findings)}"
        )
        self.findings = tuple(findings)


class NotASweep(OutlayError):
    """A directory was named that holds no sweep."""

    exit_code = 2

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Name the directory that `outlay sweep run` wrote to "
            "(it holds sweep_manifest.json)."
        )


class SweepInUse(OutlayError):
    """Another process runs this sweep."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path}: this sweep is being run by {holder}. Wait for it, or end it with "
            f"`outlay sweep cancel {path}`."
        )


class RunElsewhere(OutlayError):
    """The process that runs a sweep cannot be asked to end from here."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path}: this sweep is being run by {holder}, which cannot be told to end from here. "
            f"Run `outlay sweep cancel {path}` where it runs, as the user who started it."
        )


class SweepNotRecorded(OutlayError):
    """The journal could not be written; nothing is started that could not be accounted for."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: cannot be written: {problem}. No further run was started; make room and "
            "continue with `outlay sweep resume`."
        )


class EngineBroken(OutlayError):
    """The process that starts and ends the runs is gone, and they were ended with it."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; what ran was ended. Continue with `outlay sweep resume`.")


class NotCancelled(OutlayError):
    """Some of a sweep's runs may still run, and cannot be ended from here."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(f"not everything could be cancelled; what could was{_listed(findings)}")


class RunsFailed(OutlayError):
    """The sweep went to its end, and some runs did not complete."""

    def __init__(self, failed: Iterable[str]) -> None:
        names = list(failed)
        super().__init__(f"{len(names)} of the runs did not complete: {', '.join(names)}")


class RunsSkipped(Refused):
    """The sweep went to its end, and some runs no longer fitted under the ceiling."""

    def __init__(self, skipped: Iterable[str]) -> None:
        names = list(skipped)
        super().__init__(
            f"{len(names)} of the runs no longer fitted under the ceiling: {', '.join(names)}"
        )


class NotAcknowledged(Refused):
    """A sweep costs money; somebody has to say yes to the plan."""

    def __init__(self) -> None:
        super().__init__(
            "a sweep starts many runs: say yes to it with --yes, "
            "after a look at `outlay sweep plan`"
        )


class IncompleteRuns(OutlayError):
    """Completed runs miss what the summary needs."""

    def __init__(self, missing: Sequence[Finding]) -> None:
        count = "one thing is" if len(missing) == 1 else f"{len(missing)} things are"
        super().__init__(
            f"{count} missing in completed runs (--allow-missing goes on without){_listed(missing)}"
        )
        self.missing = tuple(missing)
