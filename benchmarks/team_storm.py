"""Clients on two hosts draw on one book while they, the server and the links between them fail.

Run: python benchmarks/team_storm.py [CLIENTS OPERATIONS FAULTS]

Needs root, Debian's PostgreSQL and iproute2. The hosts are network namespaces, each with an outlay
home of its own. Clients log in as users of two teams, or as a service that acts for two of them,
and authorise, extend, record and void at random. Now and then one is killed with SIGKILL and
another goes on in its place. So many times each: the one that holds the book's lock is killed; it
is stopped with SIGSTOP for longer than it may hold the lock; the server is stopped at once and
started again; the link of a host is cut and mended; an owner lowers a limit below what is held and
raises it again; he sets another for a moment, which ends.

Before it asks, a client writes down what it will ask, with a key of its own, and afterwards the
answer. Both are on the disk before it goes on. In the end the book is exported, and its lines are
counted by plain arithmetic here: nothing may be granted above a limit in force at its line, nothing
answered may be missing, nothing may be there twice or without having been asked for, and the
database may refuse nothing that a client's own decision granted; else it exits with 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import selectors
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import psycopg

from foster_parent import die_with_parent
from network import Host, hosts
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import LimitChange
from outlay.guard.entries import timestamp
from outlay.guard.errors import BudgetGuardExceeded, SpendLogAltered, SpendLogUnusable
from outlay.guard.scopes import ScopePattern
from outlay.guard.spend_log import FileSpendLog
from outlay.team import PostgresSpendLog, PostgresUrl
from outlay.team.session import Patience
from outlay.team.transfer import export_book
from outlay.units import Money, Rate
from postgres import PostgresServer, TeamDatabase

CLIENTS, OPERATIONS, FAULTS = 32, 300, 5
KILLED_EVERY = 60
LABS = ("00", "01", "02", "03")
PATIENCE = Patience(lock=5, idle=1, away=10)
CONNECT_S, NETWORK_S = 2, 4
NETWORK = {
    "connect_timeout": CONNECT_S, "tcp_user_timeout": 2000, "keepalives_idle": 1,
    "keepalives_interval": 1,
}  # fmt: skip
LONGEST_S = 2 * (3 * PATIENCE.lock + 5 * NETWORK_S + 2 * CONNECT_S + PATIENCE.away)
"""Of one call: twice begun, once begun again, and asked for its line, each over a dying network."""
MARGIN_S = 30  # of a machine with more processes than cores
DISAGREEMENTS = (
    "exceeds the limit", "no limit applies", "may not act", "is not in team", "is not today",
    "is not of user", "is not that of the database",
)  # fmt: skip
"""What the database says of a line that the client should not have decided to write."""

Line = dict[str, Any]


# -- limits ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Person:
    """Who a client is: its login, and for whom that acts."""

    login: str
    acts_for: str = ""


TEAMS = {"ada": "vision", "ben": "vision", "cem": "audio", "dee": "audio"}
ROBOT = "robot"
PEOPLE = (*map(Person, TEAMS), Person(ROBOT, "ada"), Person(ROBOT, "cem"))
DAY = ScopePattern("whole", "", "day")
SHARES = {
    DAY: 1.0,
    ScopePattern("team", "vision", "month"): 0.4,
    ScopePattern("user", "ben", "day"): 0.15,
    ScopePattern("user", "*", "month"): 0.4,
    ScopePattern("lab", "02"): 0.25,
    ScopePattern("whole", "", "hour"): 2.0,
}
"""The limits of a storm, as parts of what may be spent in all."""
MICROS_OF_ONE = 150_000  # per operation: about half of what is asked for
MOMENT_NS = 10**9
REFUSED_S = 0.25
"""How long a client waits after a refusal: a limit that ends refuses a part of the storm only."""


class Owner:
    """Sets the limits, each with a key."""

    def __init__(self, url: str, whole: int) -> None:
        self._guard = BudgetGuard(None, url, environ={})
        self._whole = whole
        self.asked: list[Line] = []

    def set_all(self) -> None:
        """Set every limit to what it is but for the faults."""
        for pattern, share in SHARES.items():
            self.set(pattern, round(self._whole * share))

    def set(self, pattern: ScopePattern, micros: int, until: str = "") -> None:
        """Set one."""
        key = f"limit-{len(self.asked)}"
        change = LimitChange(pattern=pattern, amount=Money(micros), until=until)
        self._guard.set_limit(change, "storm", key=key)
        self.asked.append({"key": key, "act": "limit", "hold": ""})

    def committed(self) -> int:
        """Return what is spent and held."""
        return round(self._guard.committed * 1_000_000)


# -- a client --------------------------------------------------------------------------------------


class Diary:
    """Lines of JSON in a file, each on the disk before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: Line) -> None:
        """Write one and wait for the disk."""
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


def entries(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True, slots=True)
class Place:
    """One of the clients, whichever process it is at the moment."""

    number: int
    host: Host
    directory: Path

    @property
    def person(self) -> Person:
        """Who it is."""
        return PEOPLE[self.number % len(PEOPLE)]

    @property
    def asked(self) -> Path:
        """What was asked, before it was."""
        return self.directory / f"asked-{self.number}.jsonl"

    @property
    def answered(self) -> Path:
        """What was answered, in the same order."""
        return self.directory / f"answered-{self.number}.jsonl"

    @property
    def name(self) -> str:
        """Of its sessions."""
        return f"storm-{self.number}"


class Client:
    """Asks and writes down; begins with what its predecessor wrote."""

    def __init__(self, place: Place, guard: BudgetGuard, tell: int) -> None:
        self._place, self._guard, self._tell = place, guard, tell
        self._chance = random.Random(f"{place.number} {os.getpid()}")
        asked, answers = entries(place.asked), entries(place.answered)
        self.done = len(answers)
        self._asked, self._answered = Diary(place.asked), Diary(place.answered)
        self._mine = self._open_holds(asked, answers)
        self._left = asked[len(answers) :]

    @staticmethod
    def _open_holds(asked: list[Line], answers: list[Line]) -> dict[str, int]:
        """Return the amounts of holds that are not to be settled, without extensions."""
        settled = {line["hold"] for line in asked if line["act"] in ("capture", "void")}
        return {
            answer["hold"]: request["micros"]
            for request, answer in zip(asked, answers, strict=False)
            if (answer["act"], answer["came"]) == ("hold", "done") and answer["hold"] not in settled
        }

    def step(self) -> None:
        """Ask one thing until it is answered; first what the predecessor was not told."""
        again = bool(self._left)
        request = self._left.pop() if again else self._request()
        if not again:
            self._asked.write(request)
        answer = {"key": request["key"], "act": request["act"], "hold": request["hold"]}
        answer |= self._ask(request)
        if (request["act"], answer["came"]) == ("hold", "done"):
            self._mine[answer["hold"]] = request["micros"]
        self._answered.write(answer)
        self.done += 1
        is_refused = any(scope.startswith("day ") for scope in answer.get("by", ()))
        os.write(self._tell, b".-" if is_refused else b".")
        if answer["came"] == "refused":
            SYSTEM.sleep(REFUSED_S)

    def _request(self) -> Line:
        number = self.done
        act = self._chance.choice(["hold", "hold", "extend", "capture", "void"])
        act = act if self._mine else "hold"
        micros = self._chance.randrange(1, 200) * 10_000 + number
        hold = "" if act == "hold" else self._chance.choice(list(self._mine))
        if act in ("capture", "void"):
            micros = self._mine.pop(hold) // 2
        lab = self._chance.choice(LABS)
        key = f"{self._place.number}-{number}"
        rate = self._chance.choice([0, self._chance.randrange(1, 20)])
        return {"key": key, "act": act, "hold": hold, "micros": micros, "lab": lab, "rate": rate}

    def _ask(self, request: Line) -> Line:
        slowest_s = 0.0
        while True:
            begun, came = time.monotonic(), Line()
            try:
                came = {"came": "done", "hold": self._do(request)}
            except BudgetGuardExceeded as refused:
                parts = [part for part in str(refused).split("; ") if " asked > " in part]
                came = {"came": "refused", "by": [part.partition(":")[0] for part in parts]}
            except SpendLogAltered:
                raise
            except SpendLogUnusable as error:
                if any(text in error.problem for text in DISAGREEMENTS):
                    raise
                os.write(self._tell, b"!")
            slowest_s = max(slowest_s, time.monotonic() - begun)
            if came:
                return came | {"slowest_s": slowest_s}

    def _do(self, request: Line) -> str:
        hold, amount, key = request["hold"], Money(request["micros"]), request["key"]
        match request["act"]:
            case "hold":
                rate = Rate.parse(f"{request['rate']} USD/h") if request["rate"] else None
                label = f"lab{request['lab']}-storm"
                return self._guard.authorize(label, amount, key=key, rate=rate).id
            case "extend":
                self._guard.extend(hold, amount, key=key)
            case "capture":
                self._guard.record_actual("storm", amount, hold=hold, key=key)
            case "void":
                self._guard.void(hold, "not needed", key=key)
            case act:
                raise AssertionError(act)
        return str(hold)


def work(place: Place, url: str, operations: int, tell: int) -> None:
    """Be a client on its host until all is answered."""
    place.host.enter()
    os.environ["OUTLAY_HOME"] = str(place.directory / place.host.name)
    log = PostgresSpendLog(PostgresUrl.parse(url), patience=PATIENCE)
    guard = BudgetGuard(None, url, user=place.person.acts_for, environ={}, log=log)
    client = Client(place, guard, tell)
    while client.done < operations:
        client.step()


# -- the storm -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Worker:
    """The process that is a client now."""

    place: Place
    pid: int
    reading: int


@dataclass
class Storm:
    """Clients, their server and their hosts, and what was done to them."""

    team: TeamDatabase
    directory: Path
    hosts: list[Host]
    owner: Owner
    book: str
    operations: int
    done: Counter[str] = field(default_factory=Counter)  # faults
    answers: Counter[int] = field(default_factory=Counter)  # by client
    troubles: Counter[str] = field(default_factory=Counter)  # by host
    refusals: int = 0  # by the limit of the whole day
    stopped_s: Counter[int] = field(default_factory=Counter)  # by client
    workers: dict[int, Worker] = field(default_factory=dict)  # by client

    def __post_init__(self) -> None:
        self.chance = random.Random(self.operations)
        self.selector = selectors.DefaultSelector()

    def run(self, clients: int, faults: int) -> None:
        """Run until all is answered, with the faults on the way."""
        self.owner.set_all()
        for number in range(clients):
            self._start(Place(number, self.hosts[number % len(self.hosts)], self.directory))
        acts = [
            self.kill_holder, self.stop_holder, self.restart, self.cut, self.lower, self.tighten,
        ] * faults  # fmt: skip
        self.chance.shuffle(acts)
        total = clients * self.operations
        for number, act in enumerate(acts, 1):
            due = total * number * 2 // (3 * len(acts) + 1)  # All in the first two thirds.
            self._pump(lambda due=due: self.answers.total() >= due)  # type: ignore[misc]
            act()
        self._pump(lambda: not self.workers)
        self.selector.close()

    def url(self, place: Place) -> str:
        """Return the URL of the book for one client."""
        options = {"application_name": place.name} | NETWORK
        words = "&".join(f"{name}={value}" for name, value in options.items())
        server, login = self.team.server, place.person.login
        url = server.url(self.team.name, login, login)
        return f"{url.replace('@127.0.0.1:', f'@{place.host.gateway}:')}?book={self.book}&{words}"

    def _start(self, place: Place) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                die_with_parent()
                work(place, self.url(place), self.operations, writing)
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - the last chance to say it
                os.write(2, f"{place.name}: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        os.close(writing)
        self.workers[place.number] = worker = Worker(place, pid, reading)
        self.selector.register(reading, selectors.EVENT_READ, worker)

    def _pump(self, is_enough: Callable[[], object]) -> None:
        """Take what clients say, and replace them, until something holds or all are done."""
        while self.workers and not is_enough():
            for key, _ in self.selector.select(0.05):
                self._take(key.data)

    def _take(self, worker: Worker) -> None:
        place = worker.place
        if said := os.read(worker.reading, 65_536):
            self.answers[place.number] += said.count(b".")
            self.troubles[place.host.name] += said.count(b"!")
            self.refusals += said.count(b"-")
            if self.chance.randrange(KILLED_EVERY) == 0:
                os.kill(worker.pid, signal.SIGKILL)
                self.done["kill"] += 1
            return
        self.selector.unregister(worker.reading)
        os.close(worker.reading)
        del self.workers[place.number]
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"{place.name} ended with {code}")
        self.answers[place.number] = len(entries(place.answered))
        if code:
            self._start(place)

    # -- faults ---------------------------------------------------------------------------------

    def kill_holder(self) -> None:
        """Kill the client that holds the book's lock."""
        with self._watching() as watch, self._held_up(watch) as worker:
            if worker is not None:
                os.kill(worker.pid, signal.SIGKILL)
                self.done["kill of the lock's holder"] += 1

    def stop_holder(self) -> None:
        """Stop the client that holds the book's lock until the server has ended its session."""
        with self._watching() as watch, self._held_up(watch) as worker:
            if worker is not None:
                self._pump(lambda: not _holds(watch, worker.place))
                self._go_on(lambda other: other.number != worker.place.number)
                self.done["stop of the lock's holder"] += 1

    def restart(self) -> None:
        """Stop the server as a crash does, and start it again."""
        self.team.server.stop_at_once()
        self.team.server.start()
        self.done["crash of the server"] += 1

    def cut(self) -> None:
        """Cut a host's link until it is noticed there, and others have gone on."""
        host = self.hosts[self.done["cut link"] % len(self.hosts)]
        before = self.troubles[host.name]
        host.cut()
        self._pump(lambda: self.troubles[host.name] > before)
        self._go_on(lambda place: place.host is not host)
        host.restore()
        self.done["cut link"] += self.troubles[host.name] > before

    def lower(self) -> None:
        """Lower the day's limit below what is held until it has refused something."""
        self.owner.set(DAY, self.owner.committed() // 4)
        before = self.refusals
        self._pump(lambda: self.refusals > before)
        self.owner.set_all()
        self.done["lowered limit"] += self.refusals > before

    def tighten(self) -> None:
        """Let a lower limit be in force for a moment, and wait until it has ended."""
        end_ns = SYSTEM.wall_ns() + MOMENT_NS
        try:
            self.owner.set(DAY, self.owner.committed() // 4, timestamp(end_ns))
        except InvalidValue:  # The owner has waited for the lock until then.
            return self.tighten()
        self._pump(lambda: SYSTEM.wall_ns() > end_ns)
        self._go_on(lambda _: True)
        self.done["limit that ended"] += 1
        return None

    def _go_on(self, counts: Callable[[Place], bool]) -> None:
        """Wait until one of these clients has got another answer, or there is none."""
        before = dict(self.answers)

        def is_enough() -> bool:
            places = [worker.place for worker in self.workers.values() if counts(worker.place)]
            return not places or any(
                self.answers[place.number] > before.get(place.number, 0) for place in places
            )

        self._pump(is_enough)

    @contextmanager
    def _watching(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        with self.team.server.connect(self.team.name) as watch:
            yield watch

    @contextmanager
    def _held_up(self, watch: psycopg.Connection[tuple[object, ...]]) -> Iterator[Worker | None]:
        """Stop the client that holds the lock between its two round trips; None if all are done."""
        found: Worker | None = None

        def is_found() -> bool:
            nonlocal found
            for worker in list(self.workers.values()):
                if _holds(watch, worker.place):
                    os.kill(worker.pid, signal.SIGSTOP)
                    if _holds(watch, worker.place, "state = 'idle in transaction'"):
                        found = worker
                        return True
                    os.kill(worker.pid, signal.SIGCONT)
            return False

        self._pump(is_found)
        begun = time.monotonic()
        try:
            yield found
        finally:
            if found is not None:
                self.stopped_s[found.place.number] += time.monotonic() - begun  # type: ignore[assignment]
                with suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGCONT)


def _holds(
    watch: psycopg.Connection[tuple[object, ...]], place: Place, which: str = "true"
) -> bool:
    """Return whether a client holds the lock of the book."""
    found = watch.execute(
        "SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
        f" AND granted AND application_name = '{place.name}' AND {which}"
    )
    return found.rowcount > 0


# -- what came of it -------------------------------------------------------------------------------


def micros(amount: object) -> int:
    return int(Decimal(str(amount)) * 1_000_000)


def check_chain(raw: list[bytes]) -> Iterator[str]:
    """Yield lines whose hash is not that of the hash and the bytes before it."""
    last, joint = hashlib.sha256(b"outlay spend log").hexdigest(), ""
    for number, line in enumerate(raw, 1):
        body, _, tail = line.rpartition(b',"hash":"')
        digest = hashlib.sha256(f"{last}{joint}".encode() + body).hexdigest()
        if tail != f'{digest}"}}'.encode():
            yield f"line {number} is outside the chain"
        last, joint = digest, "\n"


class Policy:
    """The limits that lines have set so far, in micro-units."""

    def __init__(self) -> None:
        self._lasting: dict[tuple[str, str, str], int] = {}
        self._passing: dict[tuple[str, str, str], tuple[int, str]] = {}

    def set(self, line: Line) -> None:
        """Take a line that sets one; one that lasts ends one that does not."""
        place = line["of"], line.get("name", ""), line.get("period", "")
        if line.get("until"):
            self._passing[place] = (micros(line["limit"]), line["until"])
        else:
            self._passing.pop(place, None)
            self._lasting[place] = micros(line["limit"])

    def of(self, of: str, name: str, period: str, ts: str) -> int | None:
        """Return the limit in force then: of this name, else of each; None if there is none."""
        for place in ((of, name, period), (of, "*", period)):
            amount, until = self._passing.get(place, (0, ""))
            if ts < until:
                return amount
            if place in self._lasting:
                return self._lasting[place]
        return None


def counted_in(opened: Line) -> Iterator[tuple[str, str, str, str]]:
    """Yield where the money of a hold counts: of what, whose, which kind of period, and when."""
    day = opened["day"]
    for of in ("whole", "lab", "user", "team"):
        for period, when in (("", ""), ("day", day), ("month", day[:7]), ("hour", "")):
            yield of, "" if of == "whole" else opened[of], period, when


def check_limits(lines: list[Line]) -> Iterator[str]:
    """Yield what was granted above a limit in force at its line, or settled without a hold."""
    policy, counted = Policy(), Counter[tuple[str, str, str, str]]()
    held = dict[str, tuple[Line, int]]()
    for number, line in enumerate(lines, 1):
        kind = line["kind"]
        if kind == "limit":
            policy.set(line)
            continue
        if (line["hold"] in held) == (kind == "hold"):
            yield f"line {number} opens what is held, or settles what is not: {line}"
            continue
        opened, before = held.pop(line["hold"], (line, 0))
        is_over = kind in ("capture", "void")
        after = micros(line["actual"]) if is_over else before + micros(line["estimated"])
        if not is_over:
            held[line["hold"]] = (opened, after)
        rate = {"hold": 1, "extend": 0}.get(kind, -1) * micros(opened.get("rate", 0))
        for place in counted_in(opened):
            counted[place] += rate if place[2] == "hour" else after - before
            limit = policy.of(*place[:3], line["ts"])
            asks = not is_over and (place[2] != "hour" or rate > 0)
            if asks and limit is not None and counted[place] > limit:
                yield f"{counted[place]} of {place} at line {number}, above {limit}: {line}"


def check_answers(lines: list[Line], asked: list[Line], answers: dict[str, Line]) -> Iterator[str]:
    """Yield what was answered and is not there, and what is there twice or was never asked."""
    written = Counter((line["kind"], line["key"]) for line in lines)
    opened = {line["key"]: line["hold"] for line in lines if line["kind"] == "hold"}
    yield from (f"written {count} times: {one}" for one, count in written.items() if count > 1)
    for request in asked:
        kind, key = request["act"], request["key"]
        answer, is_written = answers[key], written.pop((kind, key), 0) > 0
        if is_written != (answer["came"] == "done"):
            yield f"answered: {answer}; {'' if is_written else 'not '}written"
        if kind == "hold" and is_written and opened[key] != answer["hold"]:
            yield f"answered with another hold: {answer}"
    yield from (f"never asked: {one}" for one in written)


def problems(storm: Storm, clients: int) -> Iterator[str]:
    """Yield what is wrong with the book, by its own verification and by counting."""
    exported = storm.directory / "spend.jsonl"
    log = storm.team.log(storm.team.owner_url(storm.book))
    export_book(log, exported)
    for each in (log, FileSpendLog(exported)):
        yield from (str(one) for one in each.verify().findings if one.severity == "error")
    raw = exported.read_bytes().splitlines()
    lines = [json.loads(line, parse_float=Decimal) for line in raw]
    places = [Place(number, storm.hosts[0], storm.directory) for number in range(clients)]
    asked = [line for place in places for line in entries(place.asked)]
    answers = {line["key"]: line for place in places for line in entries(place.answered)}
    yield from check_chain(raw)
    yield from check_limits(lines)
    of_owner = {line["key"]: {"came": "done"} for line in storm.owner.asked}
    yield from check_answers(lines, asked + storm.owner.asked, answers | of_owner)
    for key, answer in answers.items():
        allowed_s = LONGEST_S + MARGIN_S + storm.stopped_s[int(key.partition("-")[0])]
        if answer["slowest_s"] > allowed_s:
            yield f"took longer than {allowed_s:.0f} s: {answer}"
    came = Counter(f"{answer['act']} {answer['came']}" for answer in answers.values())
    refused = Counter(by for answer in answers.values() for by in answer.get("by", ()))
    slowest = max(answer["slowest_s"] for answer in answers.values())
    print(f"{len(lines)} lines; {dict(sorted(came.items()))}")
    print(f"refused by {dict(sorted(refused.items()))}")
    print(f"the longest call took {slowest:.1f} s; {LONGEST_S} are allowed")


@contextmanager
def book_for(places: list[Host]) -> Iterator[TeamDatabase]:
    """A server of its own, which the hosts reach."""
    server = PostgresServer()
    try:
        server.create()
        for host in places:
            server.listen(host.gateway, host.subnet)
        server.start()
        team = TeamDatabase(server)
        team.create()
        for login in {person.login for person in PEOPLE}:
            team.add_login(login, login)
        for login, name in TEAMS.items():
            team.add_member(login, name)
        for person in PEOPLE:
            if person.acts_for:
                row = f"('{person.login}', '{person.acts_for}')"
                team.execute(f"INSERT INTO outlay.service VALUES {row}")
        yield team
    finally:
        server.remove()


def main(clients: int, operations: int, faults: int) -> int:
    with (
        tempfile.TemporaryDirectory() as name,
        hosts("north", "south") as both,
        book_for(both) as team,
    ):
        os.environ["OUTLAY_HOME"] = f"{name}/home"
        book = team.new_book().rpartition("=")[2]
        owner = Owner(team.owner_url(book), MICROS_OF_ONE * clients * operations)
        storm = Storm(team, Path(name), both, owner, book, operations)
        begun = time.monotonic()
        storm.run(clients, faults)
        took_s = time.monotonic() - begun
        print(
            f"{clients} clients x {operations}: {took_s:.1f} s; {dict(sorted(storm.done.items()))}"
        )
        found = list(problems(storm, clients))
        team.remove()
    print("\n".join(found[:20]) or "nothing above a limit, nothing lost, nothing twice")
    return int(bool(found))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(given or [CLIENTS, OPERATIONS, FAULTS])))
