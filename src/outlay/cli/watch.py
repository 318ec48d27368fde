"""``outlay watch``: the background process that ends rentals on time and sends alerts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from outlay.alerts.rounds import AlertWatch
from outlay.alerts.rules import read_alert_settings
from outlay.cli.guard.log import correct_captures
from outlay.cli.guard.options import DEFAULT_LOG, minute_of, say
from outlay.cli.output import (
    AsJson,
    console,
    new_table,
    print_findings,
    print_json,
    print_problem,
    print_sentence,
)
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue, OutlayError, Refused
from outlay.escaping import one_line
from outlay.export.spend_logs import shared_logs, shown_logs
from outlay.files import write_whole
from outlay.guard.away.waiting_settlements import all_waiting, deliver_all
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.rental.watch import (
    Reaper,
    known_books,
    known_logs,
    living_rentals,
    may_be_listed,
    remember_log,
    shown_name,
    start_watcher,
)
from outlay.guard.spend_log import is_url
from outlay.runs.accounting.job_gate import record_unheld_jobs, settle_ended_jobs
from outlay.runs.inventory.asking import ask_round
from outlay.runs.inventory.watch_settings import read_watch_settings
from outlay.store import open_store, outlay_home
from outlay.store.home import settings_path
from outlay.units import Duration

WatchedLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="PATH",
        help="A spend log or a book's URL; default: every one known on this machine.",
    ),
]  # fmt: skip
UNIT = "outlay-watch.service"
_POLL = Duration(30 * 10**9)


def show_watch(
    log: WatchedLogs = None,
    every: Annotated[str, typer.Option(help="Time between two rounds.")] = "1m",
    once: Annotated[bool, typer.Option("--once", help="One round, as from cron.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only show rentals, problems and active alerts.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Keep it running: a systemd user unit, else cron.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End rentals on time, register runs, ask what costs money, send alerts.

    Ends overdue rentals, settles those that are gone and looks for them for another day, replaces
    dead watchers, registers the runs of this host, asks what outlay.toml names (vendors' lists,
    Slurm), and evaluates the alert rules there. Only overdue rentals are ended. --check ends and
    sends nothing; it exits 3 if a rental is overdue, unwatched or unknown, if another machine has
    its name, or if an alert of severity error is active. The first outlay.toml is read that exists:
    $OUTLAY_CONFIG, in the outlay home, in ~/.config/outlay, in /etc/outlay.

    Example: outlay watch --install
    """
    given = tuple(_log_named(name) for name in log or ())
    pause_s = Duration.parse(every, name="--every").seconds
    for name in given:
        remember_log(name)

    def logs() -> tuple[str | Path, ...]:
        return given or tuple(dict.fromkeys((*known_logs(), *known_books(), *shared_logs())))

    def logs_for_alerts() -> tuple[str | Path, ...]:
        return given or tuple(dict.fromkeys((*logs(), *shown_logs(None))))

    if check:
        raise typer.Exit(_show_check(logs_for_alerts(), as_json=as_json))
    if install:
        _show_install(as_json=as_json)
        return
    if not once and (settings := settings_path()).exists():
        say(f"settings: {settings}")
    alerts = AlertWatch(say, logs=logs_for_alerts)
    while True:
        for settlement in deliver_all(BudgetGuard.of_log).delivered:
            say(f"delivered: {settlement}")
        for name in logs():
            _tend(name)
        for name in logs():
            _settle_jobs(name)
        _ask(logs())
        try:
            alerts.round()
        except (OutlayError, OSError) as error:  # Bad rules must not delay the end of a rental.
            say(str(error))
        if once:
            alerts.close()
            return
        SYSTEM.sleep(pause_s)


def _tend(name: str | Path) -> None:
    """Reap the rentals of one log and give every orphan a watcher; report errors."""
    try:
        guard = BudgetGuard.of_log(name)
        for corrected in correct_captures(guard):
            say(str(corrected))
        if not guard.log.look(lambda books: may_be_listed(books, guard.log.wall_ns(SYSTEM))):
            return
        reaper = Reaper(guard, os.environ, say=say)
        inventory = reaper.inventory()
        for finding in inventory.findings:
            say(str(finding))
        reaper.reap(inventory, pause_s=5.0)
        for orphan in reaper.orphans():
            what = f"hold {orphan.id} ({orphan.op_label})"
            if why := reaper.why_not_watched(orphan, inventory):
                say(f"{what} has no watcher, and gets none from this machine: {why}")
            elif start_watcher(guard.log_name, orphan, os.environ, _POLL):
                say(f"{what} has a new watcher")
    except (OutlayError, OSError) as error:  # Other logs are still handled.
        say(f"{shown_name(name)}: {error}")


def _settle_jobs(name: str | Path) -> None:
    """Capture the holds of Slurm jobs that have ended by their accounts; report errors."""
    try:
        settled = settle_ended_jobs(BudgetGuard.of_log(name))
        for captured in (*settled, *record_unheld_jobs(str(name), os.environ)):
            say(f"{captured.actual} {captured.currency} for {captured.op_label} by its accounts")
    except (OutlayError, OSError) as error:
        say(f"{shown_name(name)}: {error}")


def _ask(logs: tuple[str | Path, ...]) -> None:
    """Register the runs of this host, and ask what it is told to ask; report errors."""
    store = None
    try:
        store = open_store()
        settings = read_watch_settings()
        ask_round(store, settings, logs, os.environ, SYSTEM.wall_ns(), say=say)
    except (OutlayError, OSError) as error:  # The next round catches up.
        say(str(error))
    finally:
        if store is not None:
            store.dispose()


def _log_named(name: str) -> str | Path:
    if is_url(name):
        return name
    path = Path(name)
    file = path / DEFAULT_LOG if path.is_dir() else path
    if not file.exists():
        raise InvalidValue("--log", name, "a spend log that exists")
    return file.absolute()


def _show_check(logs: tuple[str | Path, ...], *, as_json: bool) -> int:
    watch = AlertWatch(say, logs=lambda: logs)
    alerts = watch.look()
    watch.close()
    rented, findings = living_rentals(logs)
    findings += (each for each in alerts.findings if each not in findings)
    needed = [
        *(["ends rentals whose watcher dies"] if rented else []),
        *(["sends alerts"] if read_alert_settings().rules else []),
    ]
    findings += (
        Finding(source=str(each.path), message=f"not delivered yet: {each.why}", severity="warning")
        for each in all_waiting()
    )
    if needed and not _is_installed():
        what = f"`outlay watch --install` {' and '.join(needed)}"
        message = f"nothing keeps `outlay watch` running on this machine: {what}"
        findings.append(Finding(source="outlay watch", message=message, severity="warning"))
    if as_json:
        print_json(
            {
                "rented": rented, "installed": _is_installed(), "alerts": alerts.alerts,
                "undelivered": len(alerts.state.waiting), "lost": alerts.state.lost,
                "findings": findings,
            }
        )  # fmt: skip
    else:
        table = new_table("rented", "operation", "ends at", "state", "watcher", "log")
        for each in rented:
            assert each.hold.rental is not None
            table.add_row(
                each.hold.resource or each.hold.rental.name, each.hold.op_label,
                minute_of(each.hold.rental.deadline), each.hold.doubt or each.hold.state,
                each.hold.watcher, str(each.log_path),
            )  # fmt: skip
        console.print(table if rented else "nothing is rented")
        for alert in alerts.alerts:
            if not alert.implied:
                style = "red" if alert.severity == "error" else "yellow"
                print_problem(f"alert {alert.when}", style, one_line(alert.text), console)
        print_findings(findings)
    severities = {each.severity for each in findings} | {each.severity for each in alerts.alerts}
    return Refused.exit_code if "error" in severities else 0


# ``--install``: a systemd user unit or a crontab line.


def _show_install(*, as_json: bool) -> None:
    unit, line = _install()
    if as_json:
        print_json({"unit": unit, "crontab": line, "variables": _keys_path()})
        return
    if unit is not None:
        print_sentence(f"{unit} is running")
    else:
        console.print(f"crontab: {line}", soft_wrap=True)
    print_sentence(_variables_hint())


def _install() -> tuple[Path | None, str | None]:
    """Install a systemd user unit, else a crontab line; return the unit's path, or the line.

    Raises:
        InstallFailed: Neither is available, or it refused.
    """
    if _run(["systemctl", "--user", "show-environment"]) is not None:
        path = _unit_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _unit_text().encode())
        for command in (["daemon-reload"], ["enable", "--now", UNIT]):
            if _run(["systemctl", "--user", *command]) is None:
                raise InstallFailed(f"systemctl --user {' '.join(command)} failed; see {path}")
        return path, None
    line, table = _cron_line(), _run(["crontab", "-l"])
    if shutil.which("crontab") is None:
        raise InstallFailed(f"neither a systemd user session nor cron is available; run {line}")
    lines = [each for each in (table or "").splitlines() if not each.endswith(f"# {UNIT}")]
    if _run(["crontab", "-"], stdin="\n".join([*lines, line, ""])) is None:
        raise InstallFailed(f"crontab refused this line: {line}")
    return None, line


class InstallFailed(OutlayError):
    """Neither systemd nor cron is available, or it refused."""


def _is_installed() -> bool:
    if _unit_path().exists():
        return True
    return f"# {UNIT}" in (_run(["crontab", "-l"]) or "")


def _unit_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / UNIT


def _keys_path() -> Path:
    return outlay_home().absolute() / "watch.env"


def _variables_hint() -> str:
    """Return which variables the service needs and which file to put them into."""
    targets = read_alert_settings().targets.values()
    names = sorted({each.address for each in targets if each.kind in ("webhook", "apprise")})
    names += ["OUTLAY_STORE"] if "OUTLAY_STORE" in os.environ else []
    more = f", and {', '.join(names)}," if names else ""
    return f'Put the API keys of vendors{more} into {_keys_path()}, each as NAME="value".'


def _variables() -> dict[str, str]:
    """Return the service's environment; it contains no secrets."""
    config = any(os.environ.get(name) for name in ("OUTLAY_CONFIG", "XDG_CONFIG_HOME"))
    return {
        "OUTLAY_HOME": str(outlay_home().absolute()),
        "PATH": os.environ.get("PATH", os.defpath),
        **({"OUTLAY_CONFIG": str(settings_path().absolute())} if config else {}),
    }


def _unit_text() -> str:
    """Return the unit file; KillMode=process lets rental watchers survive a restart."""
    variables = " ".join(f'"{name}={value}"' for name, value in _variables().items())
    return f"""[Unit]
Description=outlay: end rentals on time, send alerts

[Service]
ExecStart={sys.executable} -m outlay watch
Environment={variables.replace("%", "%%")}
EnvironmentFile=-{_keys_path()}
Restart=always
RestartSec=10
KillMode=process

[Install]
WantedBy=default.target
"""


def _cron_line() -> str:
    variables = shlex.join(f"{name}={value}" for name, value in _variables().items())
    program = shlex.join([sys.executable, "-m", "outlay", "watch", "--once"])
    keys = shlex.quote(str(_keys_path()))
    line = f"set -a; [ -r {keys} ] && . {keys}; env {variables} {program} # {UNIT}"
    return f"*/5 * * * * {line}".replace("%", r"\%")


def _run(command: list[str], *, stdin: str = "") -> str | None:
    """Return a program's output; None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
