"""Attempts of an earlier harness, which died: gone on with, or their books closed."""

from __future__ import annotations

from outlay.errors import Finding
from outlay.sweep.detached import Detached, task_of
from outlay.sweep.harness import Harness


def settle_earlier(harness: Harness) -> tuple[Finding, ...]:
    """Learn how earlier attempts ended, take up what goes on, and give back what was not used.

    Returns what the user should know of runs that the grid no longer has.
    """
    manifest = harness.manifest
    for run in harness.plan.runs:
        state = manifest.state(run.id)
        if state.status == "running":
            engine = harness.engines[run.settings.engine]
            ended = engine.reattach(task_of(manifest, run.id))
            if ended is None:
                harness.adopt(run, state.ticket, state.hold)
            else:
                harness.settle_earlier(run, ended, state.hold)
    findings = _settle_left_out(harness)
    if harness.treasury is not None:
        used = {state.hold for state in manifest.states.values() if state.hold}
        harness.treasury.void_unused(used)
    return findings


def _settle_left_out(harness: Harness) -> tuple[Finding, ...]:
    """Close the books on attempts of runs that the grid no longer has."""
    planned = {run.id for run in harness.plan.runs}
    manifest = harness.manifest
    running = [run for run in manifest.runs if manifest.state(run).status == "running"]
    left_out = [run for run in running if run not in planned]
    if not left_out:
        return ()
    found = Detached(manifest, harness.clock)
    try:
        found.look(left_out)
    finally:
        found.close()
    going = [
        Finding(
            source=harness.plan.grid.source,
            message=f"{run} is no longer in the grid and goes on; `outlay sweep cancel` ends it",
            severity="warning",
        )
        for run in found.standing
    ]
    return (*found.findings, *going)
