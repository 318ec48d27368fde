"""``outlay guard run``: a command that runs only while money is held for it.

The supervisor opens a hold, extends it slice by slice while the command runs, in the end with
whatever room is left, and captures the cost in the run's log, in which it writes its own segment. A
keeper, the command's parent, ends it and all its descendants if the supervisor dies or hangs.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import NoReturn

from outlay.clock import SYSTEM, Clock
from outlay.errors import NOT_FOUND, OutlayError
from outlay.guard.away.waiting_settlements import settle, settle_later, waiting_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import cost_of_attempt, run_part
from outlay.guard.entries import RunPart
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import End, GiveNotice, Terms, warnings
from outlay.guard.spend_log import head_text, is_url, name_for_others
from outlay.handlers import handling
from outlay.ledger import EndStatus, GpuCount, Note, Price, gpu_count_of
from outlay.proc.exit_record import shell_code
from outlay.proc.identity import MARK_VARIABLE
from outlay.proc.keeper import KeeperTerms, Launch
from outlay.proc.orphaned_tree import OrphanedTree
from outlay.proc.supervisor import CommandNotStarted, KeptEvent, ProcessSupervisor
from outlay.rates import cost_at_most
from outlay.record.supervision import PAUSES, STARTS, SupervisedRun, Supervision
from outlay.store import outlay_home
from outlay.store.home import outliving_dir
from outlay.units import Money, Rate
from outlay.units.money import GPU_TIME, MICROS, recorded_rate
from outlay.units.quantity import duration_text

_TICK_S = 0.1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ORPHAN_NOTICE_NS = 2 * 10**9
_TICKET = "command"
HOLD_NOTE = "guard: hold "
"""Begins the note in a run's log that names the hold of an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """How a supervised command ended.

    Attributes:
        exit_code: The command's own (128 + number after a signal); 3 if the guard ended it.
        stopped_because: Why the guard ended it; empty if it ended by itself.
        elapsed_ns: How long it ran, to the end of its last process.
        run_dir: The directory of its run log; empty without one.
        recorded: False if the capture failed; the hold is then still open.
        waits: The capture is on the disk, to be delivered to a book that is away.
        paused_because: Why it was paused, to be started again later; empty if it was not.
        head: The hash of the spend log's last line after that; empty if it can't be read.
    """

    exit_code: int
    stopped_because: str
    elapsed_ns: int
    actual: Money
    hold: str
    recorded: bool
    run_dir: str = ""
    head: str = ""
    waits: bool = False
    paused_because: str = ""


class Supervisor:
    """One supervised command.

    The cost is that of the run log in ``run_dir``; without one, the rate times the elapsed time.
    ``say`` prints a message for the user.

    Args:
        stopped_price: Of the machine until the command is started again.
        because: Why it is started now, for its run log.
        delays: Why it was not started earlier, likewise.
        pause_due: Returns why the command is to be paused now: it gets its notice, saves and ends.
            Empty while it is not; never waits.
        open_hold: Opens its hold in another way than ``Leaseholder.open``.
    """

    def __init__(
        self,
        guard: BudgetGuard,
        label: str,
        terms: Terms,
        *,
        lab: str | None = None,
        run_dir: Path | None = None,
        stopped_price: Rate | None = None,
        because: str = "",
        delays: Sequence[Note] = (),
        pause_due: Callable[[], str] = lambda: "",
        open_hold: Callable[[], Leaseholder] | None = None,
        clock: Clock = SYSTEM,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stopped_price = stopped_price
        self._because = because
        self._delays = delays
        self._pause_due = pause_due
        self._open_hold = open_hold
        self._paused = ""
        self._guard = guard
        self._label = label
        self._lab = lab
        self._run_dir = run_dir
        self._supervision: Supervision | None = None
        self._terms = terms
        self._clock = clock
        self._listener = say
        self._signal: int | None = None
        self._forced = False
        self._stopping = ""
        self._signalled = False
        self._gone = False
        self._deadline_ns: int | None = None
        self._seen_ns = 0

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> CommandOutcome:
        """Run a command until it ends or the money does.

        Raises:
            BudgetGuardExceeded: The room only pays for stopping; nothing was started.
            CommandNotStarted: There is no such program.
        """
        name_for_others(self._guard.log_name)  # Refuses a password before anything is held.
        self._holder = (self._open_hold or self._opener(environ))()
        self._longest_ns = self._terms.longest_ns(self._holder.room())
        self._say_terms()
        with handling(_FORWARDED, self._on_signal):
            self._processes = self._make_keeper()
            try:
                self._processes.begin()
            except OSError as error:
                self._give_up(command, error)
            self._begin_log(command, environ)
            self._start_ns = self._clock.monotonic_ns()
            self._start(command, environ)
            self._send_deadline()
            try:
                ended = self._watch()
                if ended.asked and not self._signalled:
                    # The keeper stopped it: this process was too late to.
                    self._stopping = self._stopping or self._holder.lease.reason
                    self._signalled = True
                if not self._signalled:
                    self._stopping = ""  # It ended by itself during its notice.
                self._end_leftovers(ended)
            except BaseException:
                self._processes.abandon()  # ends the command: its hold is no longer extended
                raise
            elapsed_ns = self._elapsed_ns()
            if (log := self._supervision) is not None:
                self._end_log(log, ended.returncode)
                elapsed_ns = log.end_ns - log.start_ns
            self._processes.close()
        return self._record(elapsed_ns, ended.returncode)

    def _opener(self, environ: Mapping[str, str]) -> Callable[[], Leaseholder]:
        return lambda: Leaseholder.open(
            self._guard, self._label, self._terms, environ, now_ns=0, lab=self._lab
        )

    # -- the run log ------------------------------------------------------------------------

    def _begin_log(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        if self._run_dir is not None:
            rate, stopped = self._terms.rate, self._stopped_price
            what = SupervisedRun(
                run_dir=self._run_dir, name=self._label, price=_price(rate),
                gpus=self._gpus() or 1, command=command,
                stopped_price=None if stopped is None else _price(stopped),
            )  # fmt: skip
            self._supervision = log = Supervision(what, environ, clock=self._clock)
            hold = self._holder.hold
            log.note(f"{HOLD_NOTE}{hold.id}, {hold.amount} at {rate}; head {self._holder.head()}")
            for delay in self._delays:
                log.recorder.append(delay)
            if self._because:
                log.note(f"{STARTS}{self._because}")

    def _gpus(self) -> GpuCount | None:
        """Return the number of GPUs by a rate of GPU-hours; None for one of money."""
        rate = self._terms.rate
        is_time = rate.unit == GPU_TIME
        return gpu_count_of(Fraction(rate.micros_per_hour, MICROS)) if is_time else None

    def _end_log(self, log: Supervision, code: int) -> None:
        status: EndStatus = "completed" if code == 0 else "failed"
        # A command that can be paused saves and ends, perhaps with 0, before it is done.
        if self._stopping or (self._signal is not None and (code != 0 or self._because)):
            status = "interrupted" if self._signal == signal.SIGINT else "terminated"
        status = "paused" if self._paused and self._signalled else status
        log.end(status, self._stopping, exit_code=shell_code(code))

    def _say(self, text: str) -> None:
        with suppress(OSError):  # The terminal may be gone; the command does not depend on it.
            self._listener(text)

    def _say_terms(self) -> None:
        terms, hold = self._terms, self._holder.hold
        most = f", at most {terms.most} = {terms.cost(terms.most.ns)}" if terms.most else ""
        is_all_held = terms.most is not None and hold.amount >= terms.cost(terms.most.ns)
        ahead = ", all of it held" if is_all_held else f"; worst overshoot {self._overshoot_text()}"
        self._say(f"hold {hold.id}: {hold.amount} for {self._label} at {terms.rate}{most}{ahead}")

    def _overshoot_text(self) -> str:
        terms = self._terms
        offline = f"offline allowance {terms.allowance} + " if terms.allowance else ""
        parts = f"slice {terms.slice} + {offline}notice {terms.notice}"
        if terms.most and terms.overshoot() == terms.cost(terms.most.ns):
            parts = "all that it may cost"
        return f"{terms.overshoot()} ({parts})"

    def _make_keeper(self) -> ProcessSupervisor:
        self._mark = secrets.token_hex(8)
        terms = KeeperTerms(
            session=self._mark,
            notice_ns=self._terms.notice.ns,
            orphan_notice_ns=min(self._terms.notice.ns, _ORPHAN_NOTICE_NS),
            leftovers="report",
            spared=(str(outliving_dir("watchers")),),
            record=str(outlay_home() / "kept" / f"{self._mark}.json"),
        )
        about = {
            "kind": "guard", "label": self._label,
            "hold": self._holder.hold.id, "log": name_for_others(self._guard.log_name),
            "owned": self._holder.owned, "rate": str(self._terms.rate),
            "since_ns": self._clock.monotonic_ns(), "run_dir": str(self._run_dir or ""),
        }  # fmt: skip
        return ProcessSupervisor(terms, replaces=True, about=about)

    def _start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        # In its own session the command cannot read our terminal, so that is not its input.
        marks = {MARK_VARIABLE: self._mark, **self._holder.environ()}
        if self._run_dir is not None:
            marks["OUTLAY_RUN_DIR"] = str(self._run_dir)
        if (gpus := self._gpus()) is not None:
            marks["OUTLAY_GPUS"] = str(gpus)
        launch = Launch(
            ticket=_TICKET, command=command, env={**environ, **marks},
            stdin=sys.stdin is not None and not sys.stdin.isatty(),
        )  # fmt: skip
        try:
            self._processes.start(launch)
        except OSError as error:
            self._processes.close()
            self._give_up(command, error)

    def _give_up(self, command: Sequence[str], error: OSError) -> NoReturn:
        problem = error.strerror or str(error)
        if (log := self._supervision) is not None:
            log.end("failed", f"not started: {problem}", exit_code=NOT_FOUND, t_ns=log.start_ns)
        self._holder.void(f"not started: {problem}")
        consequence = ". Nothing was spent and the hold was released."
        raise CommandNotStarted(command[0], error, consequence) from error

    def _elapsed_ns(self) -> int:
        return self._clock.monotonic_ns() - self._start_ns

    # -- while it runs ----------------------------------------------------------------------

    def _watch(self) -> KeptEvent:
        while True:
            for event in self._wait():
                if event.event == "exited":
                    return event
            now_ns = self._elapsed_ns()
            self._warn(now_ns)
            self._enforce_lease(now_ns)
            if self._supervision is not None:
                self._supervision.beat()

    def _wait(self) -> list[KeptEvent]:
        events = self._processes.wait(_TICK_S)  # "gone" may arrive together with "exited".
        self._gone = self._gone or any(event.event == "gone" for event in events)
        return events

    def _warn(self, now_ns: int) -> None:
        for percent in warnings(self._longest_ns, self._seen_ns, now_ns):
            spent = self._terms.cost(now_ns)
            self._say(f"{percent} % of its time or money used, {spent} so far")
        self._seen_ns = now_ns

    def _enforce_lease(self, now_ns: int) -> None:
        """Extend the hold while there is room, then SIGTERM, then SIGKILL."""
        if self._signal is not None and not self._is_stopping:
            self._begin_stopping(now_ns, "", self._signal)
        if not self._is_stopping and (why := self._pause_due()):
            self._begin_pause(now_ns, why)
        match self._holder.renew_in_background(now_ns):
            case GiveNotice(reason):
                self._begin_stopping(now_ns, reason, signal.SIGTERM)
            case End():
                self._kill()
            case _ if self._forced:
                self._kill()
            case _ if self._stopping and not self._signalled:
                self._send_sigterm_if_handled()
        if refusal := self._holder.new_refusal():
            self._say(f"no more money: {refusal}")
        self._send_deadline()

    def _begin_pause(self, now_ns: int, reason: str) -> None:
        self._paused = reason
        if self._supervision is not None:
            self._supervision.recorder.note(f"{PAUSES}{reason}")
        self._begin_stopping(now_ns, f"{PAUSES}{reason}", signal.SIGTERM)

    @property
    def _is_stopping(self) -> bool:
        return self._holder.lease.noticed_ns is not None

    def _send_deadline(self) -> None:
        """Send the keeper the deadline at which it ends the command by itself."""
        lease = self._holder.lease
        until_ns = lease.end_ns if self._is_stopping else lease.stop_ns
        if until_ns is not None and until_ns != self._deadline_ns:
            self._deadline_ns = until_ns
            # A second later, so that the supervisor stops the command if both are well.
            self._processes.set_deadline(self._start_ns + until_ns + 10**9)

    def _begin_stopping(self, now_ns: int, reason: str, number: int) -> None:
        """Begin the notice; when the money ends, SIGTERM goes only to what handles it."""
        self._holder.give_notice(now_ns)
        self._stopping = reason
        if reason:
            self._say(f"ending it ({reason}); it is killed in {self._terms.notice}")
            self._send_sigterm_if_handled()
        else:
            self._signalled = True
            self._processes.signal(_TICKET, number)

    def _send_sigterm_if_handled(self) -> None:
        """Send SIGTERM to the process tree once one of its processes has a handler.

        Without a handler SIGTERM kills like SIGKILL, so the command keeps the time of its notice,
        in which it may still finish.
        """
        listening = self._processes.with_handler(_TICKET, signal.SIGTERM)
        if listening is None or listening:
            self._signalled = True
            self._processes.signal(_TICKET, signal.SIGTERM)

    def _kill(self) -> None:
        self._signalled = True
        self._processes.signal(_TICKET, signal.SIGKILL)

    def _end_leftovers(self, ended: KeptEvent) -> None:
        if not ended.left or self._gone:
            return
        if not self._signalled:
            self._say("the command ended and left processes behind; ending them")
            self._begin_stopping(self._elapsed_ns(), "", signal.SIGTERM)
        while not self._gone:
            self._wait()
            if self._forced or isinstance(self._holder.lease.next_action(self._elapsed_ns()), End):
                self._kill()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._forced = self._signal is not None  # the second signal ends the notice
        self._signal = number

    # -- the capture ------------------------------------------------------------------------

    def _cost(self, elapsed_ns: int) -> tuple[Money, RunPart | None]:
        """Return the cost in the run log; without a log, the rate times the elapsed time."""
        measured = self._terms.cost(elapsed_ns)
        log, run_dir = self._supervision, self._run_dir
        if log is None or run_dir is None or not log.is_recorded:
            return measured, None
        part = run_part(log.run_id, log.segment)
        logged = cost_of_attempt(run_dir, log.segment, log.end_ns, measured.unit)
        if logged is None or logged.unit != measured.unit:
            return measured, part
        return logged, part

    def _record(self, elapsed_ns: int, code: int) -> CommandOutcome:
        (actual, part), recorded, file = self._cost(elapsed_ns), True, None
        try:
            file = self._holder.settle(actual, part)
        except OutlayError as error:
            recorded = False
            self._say(
                f"{actual} could not be recorded, hold {self._holder.hold.id} stays open: {error}"
            )
        head = self._holder.head() if file is None else ""
        if file is not None:
            recorded = False
            self._say(f"{actual} for {duration_text(elapsed_ns)} {waiting_text(file)}")
        elif recorded:
            self._say(f"{actual} for {duration_text(elapsed_ns)}; {head_text(head)}")
        return CommandOutcome(
            exit_code=3 if self._stopping else shell_code(code),
            stopped_because=self._stopping,
            elapsed_ns=elapsed_ns,
            actual=actual,
            hold=self._holder.hold.id,
            recorded=recorded,
            run_dir="" if self._run_dir is None else str(self._run_dir),
            head=head,
            waits=file is not None,
            paused_because=self._paused if self._stopping and self._signal is None else "",
        )


def _price(rate: Rate) -> Price | None:
    """Return a rate as the price of the whole machine; GPU-hours are no price."""
    if rate.unit == GPU_TIME:
        return None
    return Price(rate.micros_per_hour, rate.currency, source="guard", kind=rate.kind)


def settle_orphaned(orphaned: OrphanedTree) -> Money | None:
    """End a command whose supervisor and keeper were both killed, and capture its cost.

    Returns the cost; None if the hold is another process's to settle.
    """
    about = orphaned.record.about
    orphaned.end()
    elapsed_ns = SYSTEM.monotonic_ns() - about["since_ns"]
    orphaned.forget()
    if not about["owned"]:
        return None
    actual = cost_at_most(recorded_rate(about["rate"]), elapsed_ns)
    log, what = about["log"], (about["hold"], about["label"], actual)
    try:
        settle(BudgetGuard.of_log(log), *what)
    except SpendLogUnusable:
        if not is_url(log):
            raise
        settle_later(log, *what)
    return actual
