"""The ``[alerts]`` of outlay.toml: what it may say, and what it may not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from outlay.alerts.rules import AlertSettings, SettingsUnusable, read_alert_settings
from outlay.errors import InvalidValue
from outlay.units import Duration, Rate


def read(tmp_path: Path, text: str) -> AlertSettings:
    path = tmp_path / "outlay.toml"
    path.write_text(text)
    return read_alert_settings(path)


def test_without_a_file_there_are_no_rules(tmp_path: Path) -> None:
    assert read_alert_settings(tmp_path / "outlay.toml").rules == ()


def test_a_rule_has_defaults_and_writes_to_standard_error(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, '[[alerts.rule]]\nwhen = "budget"\n').rules
    assert list(map(int, rule.percents)) == [50, 75, 90, 100]
    assert rule.to == ("stderr",)


def test_a_rule_is_parsed_with_its_parameters(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        [other]
        table = "is somebody else's"
        [alerts.to.team]
        webhook = "$TEAM_HOOK"
        shape = "slack"
        [alerts.to.log]
        file = "alerts.jsonl"
        [[alerts.rule]]
        when = "burn"
        above = "20 USD/h"
        to = ["team"]
        [[alerts.rule]]
        when = "goodput"
        below = "62.5%"
        for = "1h"
        """,
    )
    burn, goodput = settings.rules
    assert (burn.rate, burn.to) == (Rate.parse("20 USD/h"), ("team",))
    assert (goodput.percents, goodput.lasting) == ((Decimal("62.5"),), Duration.parse("1h"))
    assert goodput.to == ("team", "log")
    assert settings.targets["team"].address == "TEAM_HOOK"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[alerts.rule]]\nwhen = "weather"', "one of budget, burn"),
        ('[[alerts.rule]]\nwhen = "stall"\nabove = "1 USD/h"', "one of for, to, when"),
        ('[[alerts.rule]]\nwhen = "burn"', "above = ..."),
        ('[[alerts.rule]]\nwhen = "budget"\nat = ["-5%"]', "a percentage above 0"),
        ('[[alerts.rule]]\nwhen = "stall"\nfor = "soon"', "for"),
        ('[[alerts.rule]]\nwhen = "overdue"\nto = ["nobody"]', "one of stderr"),
        ("[alerts.to.team]", "one of apprise, file, stderr"),
        ('[alerts.to.team]\nwebhook = "$A"\nfile = "b"', "one of apprise, file, stderr"),
        ('[alerts.to.team]\nwebhook = "$A"\nshape = "pigeon"', "one of discord, json, slack"),
    ],
)
def test_an_invalid_rule_is_refused_with_the_choices(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(InvalidValue, match=expected):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["[alerts", "[alerts]\nrules = 1", "alerts = 3"])
def test_an_invalid_file_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsUnusable, match=r"outlay\.toml"):
        read(tmp_path, text)


def test_a_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="the file must not hold the secret") as refused:
        read(tmp_path, '[alerts.to.team]\nwebhook = "https://hooks.example.org/T0/hush"')
    assert "hush" not in str(refused.value)
