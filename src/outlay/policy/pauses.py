"""What a pause of a run costs in machine time, measured from the run's own log. Pure."""

from __future__ import annotations

from statistics import fmean

from outlay.goodput.reliability import mean_save_ns, restarts, start_up_ns
from outlay.goodput.timeline import Timeline
from outlay.policy.situation import PauseCost


def pause_cost_of(timeline: Timeline) -> PauseCost:
    """Return the mean save, start-up and repeated work of a run so far.

    Start-ups are those of attempts that continued the run, else that of the first one. Repeated
    work is what its restarts repeated. What was never seen is zero and named in ``assumed``.
    """
    again, first = restarts(timeline), timeline.attempt_timelines[0]
    starts = [each.init_ns + each.restore_ns + each.startup_ns for each in again]
    save_ns = mean_save_ns(timeline)
    assumed = [] if save_ns else ["a save takes no time: none was recorded"]
    if not again:
        assumed.append("a restart takes as long as the first start, and repeats no work")
    return PauseCost(
        save_ns=round(save_ns or 0),
        start_ns=round(fmean(starts)) if starts else start_up_ns(timeline, first),
        repeated_ns=round(fmean(each.catch_up_ns for each in again)) if again else 0,
        assumed=tuple(assumed),
    )
