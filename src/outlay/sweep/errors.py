"""Errors of sweeps.

OutlayError
├── InvalidGrid         the grid file has problems; names all of them, each with its line
├── NotASweep           a directory without a manifest
├── SweepInUse          another harness runs this sweep
├── RunElsewhere        the harness to be cancelled is another host's or another user's
├── SweepNotRecorded    the journal cannot be written, so nothing more is started
├── EngineBroken        the process that starts and ends the runs died
├── NotCancelled        some jobs could not be cancelled
├── RunsFailed          the sweep finished, and some runs failed
└── IncompleteRuns      completed runs lack what the summary needs; names all of it
Refused
├── NotAcknowledged     a sweep costs money and was not confirmed
├── ProbeRefused        after its first run, the plan says that the ceiling is not enough
└── RunsSkipped         some runs did not fit under the ceiling
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlay.errors import Finding, OutlayError, Refused


def _listed(findings: Sequence[Finding]) -> str:
    return "".join(f"\n  {finding}" for finding in findings)


class InvalidGrid(OutlayError):
    """A grid that cannot be planned; carries every problem."""

    exit_code = 2

    def __init__(self, findings: Sequence[Finding]) -> None:
        noun = "problem" if len(findings) == 1 else "problems"
        super().__init__(
            f"{len(findings)} {noun} in the grid; nothing was started{_listed(findings)}"
        )
        self.findings = tuple(findings)


class NotASweep(OutlayError):
    """A directory without a sweep."""

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
    """The process that runs a sweep cannot be signalled from here."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path}: this sweep is being run by {holder}, which cannot be signalled from here. "
            f"Run `outlay sweep cancel {path}` where it runs, as the user who started it."
        )


class SweepNotRecorded(OutlayError):
    """The journal or the manifest could not be written; no further run is started."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: cannot be written: {problem}. No further run was started; make room and "
            "continue with `outlay sweep resume`."
        )


class EngineBroken(OutlayError):
    """The process that starts and ends the runs died, and the runs were ended."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; its runs were ended. Continue with `outlay sweep resume`.")


class NotCancelled(OutlayError):
    """Some runs may still be running and cannot be cancelled from here."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(f"some runs could not be cancelled; the others were{_listed(findings)}")


class RunsFailed(OutlayError):
    """The sweep finished, and some runs did not complete."""

    def __init__(self, failed: Iterable[str]) -> None:
        names = list(failed)
        super().__init__(f"{len(names)} of the runs did not complete: {', '.join(names)}")


class RunsSkipped(Refused):
    """The sweep finished, and some runs did not fit under the ceiling."""

    def __init__(self, skipped: Iterable[str]) -> None:
        names = list(skipped)
        super().__init__(
            f"{len(names)} of the runs did not fit under the ceiling: {', '.join(names)}"
        )


class NotAcknowledged(Refused):
    """A sweep costs money and needs ``--yes``."""

    def __init__(self) -> None:
        super().__init__(
            "a sweep starts many runs: check it with `outlay sweep plan`, then confirm with --yes"
        )


class ProbeRefused(Refused):
    """After the probe the plan says that the money is not enough, and nobody is asked."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"only the probe was run: {problem}, which is not enough for all runs and for ending "
            f"them. Raise the ceiling or lower the budget; or go on: outlay sweep resume {path}"
        )


class IncompleteRuns(OutlayError):
    """Completed runs lack what the summary needs."""

    def __init__(self, missing: Sequence[Finding]) -> None:
        count = "one thing is" if len(missing) == 1 else f"{len(missing)} things are"
        super().__init__(
            f"{count} missing in completed runs (--allow-missing ignores that){_listed(missing)}"
        )
        self.missing = tuple(missing)
