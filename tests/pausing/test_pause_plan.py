"""Whether it runs or waits now: by two agreeing readings, or by the deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.pausing.pause_plan import PausePlan, RunProgress, decide_now, longest_pause_ns
from outlay.policy.policies import FixedThreshold
from outlay.policy.situation import Action, PauseCost
from outlay.units import Rate

CHEAP, DEAR = Rate.parse("1 USD/h"), Rate.parse("2 USD/h")
HOUR_NS = 3600 * 10**9
PLAN = PausePlan(
    policy=FixedThreshold(below=Rate.parse("1.50 USD/h")),
    deadline_ns=10 * HOUR_NS,
    stopped=Rate.parse("0.10 USD/h"),
)
RUN = RunProgress(
    begun_ns=0,
    done_ns=HOUR_NS,
    left_ns=4 * HOUR_NS,
    pause=PauseCost(save_ns=HOUR_NS // 10, start_ns=HOUR_NS // 2),
    rate=CHEAP,
)


def action(doing: Action, *news: Rate, run: RunProgress = RUN, plan: PausePlan = PLAN) -> Action:
    pair = (news[0], news[1]) if news else None
    return decide_now(plan, run, doing, pair, HOUR_NS).action


def test_two_readings_that_agree_change_what_it_does() -> None:
    assert action(Action.RUN, DEAR, DEAR) is Action.WAIT
    assert action(Action.WAIT, CHEAP, CHEAP) is Action.RUN


@pytest.mark.parametrize("news", [(), (CHEAP, DEAR), (DEAR, CHEAP)])
@pytest.mark.parametrize("doing", [Action.RUN, Action.WAIT])
def test_readings_that_disagree_and_no_news_change_nothing(
    doing: Action, news: tuple[Rate, ...]
) -> None:
    assert action(doing, *news) is doing


@pytest.mark.parametrize(
    ("run", "plan", "why"),
    [
        (replace(RUN, pauses=10), PLAN, "it was paused 10 times already"),
        (RUN, replace(PLAN, stopped=None), "the machine costs its full price meanwhile"),
        (RUN, replace(PLAN, stopped=CHEAP), "the machine costs 1.00 USD/h meanwhile"),
    ],
)
def test_a_pause_that_is_not_allowed_or_frees_nothing_is_none(
    run: RunProgress, plan: PausePlan, why: str
) -> None:
    decision = decide_now(plan, run, Action.RUN, (DEAR, DEAR), HOUR_NS)
    assert decision.action is Action.RUN
    assert why in decision.reason


def test_it_runs_until_its_speed_is_known() -> None:
    assert action(Action.WAIT, DEAR, DEAR, run=replace(RUN, left_ns=None)) is Action.RUN


@given(
    left_ns=st.integers(1, 20 * HOUR_NS),
    start_ns=st.integers(0, HOUR_NS),
    news=st.sampled_from([None, (DEAR, DEAR), (CHEAP, DEAR)]),
)
def test_it_never_waits_beyond_the_last_moment_at_which_it_can_be_done(
    left_ns: int, start_ns: int, news: tuple[Rate, Rate] | None
) -> None:
    run = replace(RUN, left_ns=left_ns, pause=PauseCost(start_ns=start_ns))
    decision = decide_now(PLAN, run, Action.WAIT, news, HOUR_NS)
    last_ns = PLAN.deadline_ns - left_ns - start_ns - HOUR_NS
    if decision.action is Action.WAIT:
        assert decision.review_ns is not None
        assert 0 < decision.review_ns <= last_ns == longest_pause_ns(PLAN, run, HOUR_NS)
    else:
        assert last_ns <= 0
