"""Rounds of alerts: evaluate the rules, send new alerts once, retry failed deliveries.

The state is ``alerts.json`` in the outlay home, written before the first delivery and after each,
so that a killed round repeats at most the message that it was sending.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlay.alerts.delivery import AlertMessage, DeliveryFailed, deliver
from outlay.alerts.evaluation import BusyMark, RaisedAlert, evaluate_rules
from outlay.alerts.evidence import Evidence, EvidenceReader
from outlay.alerts.rules import AlertSettings, WatchRule, read_alert_settings
from outlay.clock import SYSTEM, Clock, utc_text
from outlay.decoding import BadDocument, read_document
from outlay.errors import Finding, OutlayError
from outlay.files import make_private, open_own, write_whole
from outlay.goodput.timeline import Window
from outlay.guard.rental.watch import known_logs
from outlay.guard.spend_log import LogName
from outlay.locks import FileLock, FileLocked
from outlay.store import open_store, outlay_home

_KEPT_NS = 86_400 * 10**9
"""After a day of failed deliveries a message is dropped, and counted as lost."""


class Undelivered(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not delivered yet."""

    target: str
    message: AlertMessage
    since_ns: int
    tries: int = 0
    trouble: str = ""


class AlertState(msgspec.Struct, frozen=True, kw_only=True):
    """The state between rounds.

    Attributes:
        standing: When each active alert was first seen, by key.
        digests: When each digest was last sent.
        trouble: The last delivery error.
    """

    standing: dict[str, int] = {}
    waiting: tuple[Undelivered, ...] = ()
    marks: dict[str, BusyMark] = {}
    digests: dict[str, int] = {}
    delivered: int = 0
    lost: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRound:
    """The result of a round.

    Attributes:
        sent: The new alerts, without implied ones.
    """

    alerts: tuple[RaisedAlert, ...]
    sent: tuple[RaisedAlert, ...] = ()
    state: AlertState
    findings: tuple[Finding, ...] = ()


def state_path() -> Path:
    """Return the path of the state file."""
    return outlay_home() / "alerts.json"


def read_state() -> AlertState:
    """Return the state; an empty one if the file is missing or damaged."""
    try:
        return read_document(state_path(), AlertState)
    except (OSError, BadDocument):
        return AlertState()


def run_round(
    settings: AlertSettings,
    evidence: Evidence,
    *,
    say: Callable[[str], None],
    digest: Callable[[WatchRule], str] | None = None,
) -> AlertRound | None:
    """Evaluate, send, and write the state; None if another process holds the lock.

    ``say`` prints a line to standard error; ``digest`` makes the page of a digest rule.
    """
    try:
        lock = _lock()
    except FileLocked:
        return None
    with lock:
        before = read_state()
        evaluated = evaluate_rules(settings.rules, evidence, before.marks)
        now_ns = evidence.t_ns
        new = [each for each in evaluated.alerts if each.key not in before.standing]
        sent = tuple(each for each in new if not each.implied)
        messages = [(each.to, _message(each, evidence)) for each in sent]
        findings = list(evidence.findings)
        pages = (
            [] if digest is None else _due_digests(settings.rules, before, now_ns, digest, findings)
        )
        messages += [(rule.to, _digest_message(rule, evidence, page)) for rule, page in pages]
        waiting = [
            Undelivered(target=name, message=message, since_ns=now_ns)
            for to, message in messages
            for name in to
        ]
        standing = {each.key: before.standing.get(each.key, now_ns) for each in evaluated.alerts}
        state = msgspec.structs.replace(
            before,
            standing=standing,
            waiting=(*before.waiting, *waiting),
            marks=dict(evaluated.marks),
            digests=before.digests | {_digest_key(rule): now_ns for rule, _ in pages},
        )
        _write_state(state)
        state = _deliver(state, settings, now_ns, say)
        findings += _troubles(state)
        return AlertRound(alerts=evaluated.alerts, sent=sent, state=state, findings=tuple(findings))


class AlertWatch:
    """Evaluates the rules of ``outlay.toml`` in rounds; each round reads the file again."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        log_paths: Callable[[], tuple[LogName, ...]] = known_logs,
        clock: Clock = SYSTEM,
    ) -> None:
        self._say = say
        self._log_paths = log_paths
        self._clock = clock
        self._said: set[str] = set()
        self._reader: EvidenceReader | None = None
        self._read_paths: tuple[LogName, ...] = ()

    def round(self) -> AlertRound | None:
        """Evaluate, send, and write the state; None without rules, or if another process does it.

        Raises:
            SettingsUnusable: ``outlay.toml`` cannot be read.
            InvalidValue: A rule or a target is invalid.
        """
        settings = read_alert_settings()
        if not settings.rules:
            return None
        done = run_round(settings, self._evidence(), say=self._say, digest=self._digest)
        if done is not None:
            texts = dict.fromkeys(map(str, done.findings))
            for text in texts:
                if text not in self._said:
                    self._say(text)
            self._said = set(texts)
        return done

    def run_in_thread(self, every_s: float) -> None:
        """Run rounds in a daemon thread."""

        def run_rounds() -> None:
            while True:
                try:
                    self.round()
                except (OutlayError, OSError) as error:  # Printed each round; the thread continues.
                    self._say(str(error))
                self._clock.sleep(every_s)

        threading.Thread(target=run_rounds, name="outlay-alerts", daemon=True).start()

    def _digest(self, rule: WatchRule) -> str:
        """Return the digest of the rule's interval, in Markdown."""
        from outlay.report.digest import digest_document, read_digest  # Loads what gives advice.
        from outlay.report.document import to_markdown

        now_ns = self._clock.wall_ns()
        period = Window(now_ns - rule.lasting.ns, now_ns)
        digest = read_digest(open_store(), self._log_paths(), period, now_ns)
        return to_markdown(digest_document(digest))

    def look(self) -> AlertRound:
        """Return the active alerts; sends and writes nothing."""
        evidence, state = self._evidence(), read_state()
        found = evaluate_rules(read_alert_settings().rules, evidence, state.marks).alerts
        findings = (*evidence.findings, *_troubles(state))
        return AlertRound(alerts=found, state=state, findings=findings)

    def _evidence(self) -> Evidence:
        paths = self._log_paths()
        if self._reader is None or paths != self._read_paths:
            self._reader = EvidenceReader(open_store(), paths, clock=self._clock)
            self._read_paths = paths
        return self._reader.read()


def _deliver(
    state: AlertState,
    settings: AlertSettings,
    now_ns: int,
    say: Callable[[str], None],
) -> AlertState:
    """Try every undelivered message, writing the state after each."""
    waiting, state = state.waiting, msgspec.structs.replace(state, waiting=(), trouble="")
    failed: set[str] = set()  # A failed target is not tried again in the same round.
    for place, each in enumerate(waiting, 1):
        left: tuple[Undelivered, ...] = ()
        trouble, delivered, lost = "", 0, 0
        target = settings.targets.get(each.target)
        if target is None or now_ns - each.since_ns > _KEPT_NS:
            lost = 1
            trouble = each.trouble or f"target {each.target} no longer exists"
        elif target.name in failed:
            left = (each,)
        else:
            try:
                deliver(target, each.message, say=say)
                delivered = 1
            except DeliveryFailed as error:
                failed.add(target.name)
                trouble = str(error)
                left = (msgspec.structs.replace(each, tries=each.tries + 1, trouble=trouble),)
        state = msgspec.structs.replace(
            state, waiting=(*state.waiting, *left), delivered=state.delivered + delivered,
            lost=state.lost + lost, trouble=trouble or state.trouble,
        )  # fmt: skip
        _write_state(msgspec.structs.replace(state, waiting=(*state.waiting, *waiting[place:])))
    return state


def _message(alert: RaisedAlert, evidence: Evidence) -> AlertMessage:
    return AlertMessage(
        at=utc_text(evidence.t_ns), when=alert.when, key=alert.key, severity=alert.severity,
        text=alert.text, subject=alert.subject, value=alert.value, limit=alert.limit,
        heads=evidence.heads,
    )  # fmt: skip


def _digest_key(rule: WatchRule) -> str:
    return f"{rule.lasting} {' '.join(rule.to)}"


def _due_digests(
    rules: Sequence[WatchRule],
    state: AlertState,
    now_ns: int,
    digest: Callable[[WatchRule], str],
    findings: list[Finding],
) -> list[tuple[WatchRule, str]]:
    """Return the digests that are due; one that fails is a finding, and retried next round."""
    found = []
    for rule in rules:
        last_ns = state.digests.get(_digest_key(rule))
        is_due = last_ns is None or now_ns - last_ns >= rule.lasting.ns
        if rule.when != "digest" or not is_due:
            continue
        try:
            found.append((rule, digest(rule)))
        except (OutlayError, OSError) as error:  # Alerts are sent anyway.
            findings.append(Finding(source="digest", message=str(error), severity="warning"))
    return found


def _digest_message(rule: WatchRule, evidence: Evidence, page: str) -> AlertMessage:
    return AlertMessage(
        at=utc_text(evidence.t_ns), when="digest", key=_digest_key(rule), severity="digest",
        text=f"what was spent in the last {rule.lasting}", subject="", heads=evidence.heads,
        body=page,
    )  # fmt: skip


def _troubles(state: AlertState) -> tuple[Finding, ...]:
    found = []
    if state.waiting:
        message = f"{len(state.waiting)} not delivered yet, retried every round: {state.trouble}"
        found.append(Finding(source="alerts", message=message, severity="warning"))
    if state.lost:
        message = f"{state.lost} were lost: not delivered within a day"
        found.append(Finding(source="alerts", message=message, severity="warning"))
    return tuple(found)


def _write_state(state: AlertState) -> None:
    make_private(state_path().parent)
    write_whole(state_path(), msgspec.json.encode(state), private=True)


def _lock() -> FileLock:
    """Return the lock of all rounds; raises FileLocked."""
    make_private(outlay_home())
    return FileLock(open_own(outlay_home() / "alerts.lock", os.O_RDWR | os.O_CREAT))
