"""What costs money now: machines, jobs and runs that nobody told outlay about, each in one row."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from command_line import in_process
from outlay.cost.machines.owned_machines import OwnedMachine
from outlay.errors import InvalidValue
from outlay.export.live_runs import LiveRuns
from outlay.export.prometheus import exposition
from outlay.guard.rental.vendor_commands import LISTED_RATES, PRESETS, parse_page
from outlay.ledger import Price
from outlay.runs.inventory.machines_now import PARTS, MachinesNow, machines_now
from outlay.runs.inventory.watch_settings import read_watch_settings
from outlay.slurm import count_nodes, expand_nodes
from outlay.store import open_store
from outlay.store.machine_lists import MachineClaim, MachineList, SeenMachine
from outlay.store.run_row import RunRow
from outlay.units import Money, Rate
from outlay.units.money import sum_by_unit
from outlay.web.book_reader import BookReader
from outlay.web.now import now_page
from outlay.web.page import PageQuery
from rented import PROGRAM, StandIn

SACCT = """\
JobID|JobIDRaw|JobName|User|Account|Partition|Cluster|State|Submit|Eligible|Start|End|AllocTRES|NodeList
40|40|old|ben|lab|main|c|COMPLETED|1700000000|1700000000|1700000000|1700003600|gres/gpu=1,node=1|n1
41|41|plain|ben|lab|main|c|RUNNING|1700000000|1700000000|1700000000|Unknown|gres/gpu=2,node=1|n2
42|42|waits|ben|lab|main|c|PENDING|1700000000|1700000000|Unknown|Unknown||None assigned
"""


class Site:
    """A host that is told to ask a vendor and Slurm, and owns a node."""

    def __init__(self, root: Path, home: Path) -> None:
        self.vendor = StandIn(root / "vendor")
        self.vendor.directory.mkdir()
        command = shlex.join([*PROGRAM, str(self.vendor.directory), "list"])
        (home / "outlay.toml").write_text(
            f"""
            [watch]
            slurm = true
            [[watch.vendor]]
            name = "pods"
            list = '''{command}'''
            created_key = "created_at"
            rate = "7 USD/h"
            """
        )
        self.accounts = root / "accounts.txt"
        self.accounts.write_text(SACCT)
        (root / "bin").mkdir()
        script = root / "bin" / "sacct"
        script.write_text(f"#!/bin/sh\nexec cat {self.accounts}\n")
        script.chmod(0o755)

    def round(self) -> None:
        done = in_process("watch", "--once")
        assert done.code == 0, done.err

    def overview(self) -> Any:
        return in_process("--json").json

    def rows(self) -> dict[str, tuple[str, int]]:
        """Return the part and the burn of each row, by its kind and name."""
        return {
            f"{row['kind']} {row['name']}": (
                "in runs" if row["runs"] else row["part"], (row["rate"] or {}).get(MICROS, 0),
            )
            for row in self.overview()["machines"]
        }  # fmt: skip


MICROS = "micros_per_hour"


@pytest.fixture
def site(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = Site(tmp_path, private_home)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found.vendor.add("x9f", created="2026-11-17T12:00:00Z")
    assert in_process("rates", "set", "main", "3 USD/h cash").code == 0
    words = ("cost", "machines", "set", "node7", "14 USD/h cash", "--since", "2026-01-01")
    assert in_process(*words).code == 0
    yield found
    assert "terminate" not in (found.vendor.directory / "calls").read_text()


def test_everything_has_its_row_after_one_round(site: Site, tmp_path: Path) -> None:
    with outlay.run("bert", dir=tmp_path / "live", price="1.50 USD/h", gpus=8):
        site.round()
        rows = site.rows()
        (burn,) = site.overview()["burn_per_hour"]
    run = rows.pop(next(name for name in rows if rows[name][0] == "in runs"))
    assert run == ("in runs", 0)  # No price of the machine is known but that of its run.
    assert rows == {
        "machine x9f": ("claimed by nobody", 7_000_000),
        "node node7": ("idle", 14_000_000),
        "job plain": ("claimed without a run", 6_000_000),
    }
    assert burn == {"micros": 39_000_000, "currency": "USD"}


LINE = (
    "39.00 USD/h: 12.00 in runs, 6.00 claimed without a run, 14.00 idle, "
    "7.00 claimed by nobody: pods pod-1 (x9f) since 2026-11-17 12:00Z"
)


def test_every_screen_has_the_same_line(site: Site, tmp_path: Path) -> None:
    rule = (
        '[[alerts.rule]]\nwhen = "burn"\nabove = "1 USD/h"\n[[alerts.rule]]\nwhen = "unclaimed"\n'
    )
    settings = tmp_path / "alerts.toml"
    settings.write_text(rule)
    with outlay.run("bert", dir=tmp_path / "live", price="1.50 USD/h", gpus=8):
        site.round()
        books = BookReader()
        page = now_page(PageQuery(path="/"), books)
        books.close()
        assert isinstance(page.document, dict)
        alerts = in_process("watch", "--check", "--json", OUTLAY_CONFIG=str(settings)).json
        live = LiveRuns(open_store())
        scraped = exposition(live.read())
        live.close()
        burn = site.overview()["burn_per_hour"][0]["micros"]
        said = {
            "outlay": in_process().out,
            "outlay --json": site.overview()["burn"]["text"],
            "web": "".join(page.parts),
            "web JSON": page.document["burn"]["text"],
            "digest": in_process("digest").out,
            "digest JSON": in_process("digest", "--json").json["now"]["text"],
            "alert": next(each["text"] for each in alerts["alerts"] if each["when"] == "burn"),
            "team claim": in_process("team", "claim").out,
        }
    assert {name for name, text in said.items() if LINE not in " ".join(text.split())} == set()
    parts = re.findall(r"^outlay_burn_usd_per_hour{part=.*} (.*)$", scraped, re.MULTILINE)
    assert len(parts) > 2
    assert sum(map(float, parts)) * 1e6 == burn
    (unclaimed,) = (each for each in alerts["alerts"] if each["when"] == "unclaimed")
    assert "outlay team claim pods/pod-1" in unclaimed["text"]


def test_claiming_a_machine_moves_it(site: Site) -> None:
    site.round()
    done = in_process("team", "claim", "x9f", "--project", "vision", "--reason", "Friday's demo")
    assert done.out == "pods pod-1 is claimed for vision.\n"
    assert site.rows()["machine x9f"] == ("claimed without a run", 7_000_000)
    assert site.overview()["burn_per_hour"] == [{"micros": 27_000_000, "currency": "USD"}]
    assert in_process("team", "claim", "pods/pod-1", "--release").code == 0
    assert site.rows()["machine x9f"] == ("claimed by nobody", 7_000_000)


def test_what_is_not_listed_cannot_be_claimed(site: Site) -> None:
    site.round()
    done = in_process("team", "claim", "nobody")
    assert done.code == 2
    assert "one of pods/pod-1, slurm/41" in done.err


@pytest.mark.parametrize("mode", ["fail", "garbage", "empty"])
def test_a_list_that_fails_is_unknown_since_and_never_zero(site: Site, mode: str) -> None:
    site.round()
    site.vendor.behave("list", mode)
    site.round()
    assert site.rows()["machine x9f"] == ("claimed by nobody", 7_000_000)
    assert "pods unknown since" in site.overview()["burn"]["text"]
    site.vendor.behave("list", "ok")
    site.round()
    assert site.overview()["burn"]["unknown"] == {}


def test_a_list_that_never_answered_is_unknown(site: Site) -> None:
    site.vendor.behave("list", "fail")
    site.round()
    assert site.overview()["burn"]["unknown"] == {"pods": "unknown ever: it never answered"}


def test_a_machine_that_is_no_longer_listed_goes(site: Site) -> None:
    site.round()
    site.vendor.reclaim()
    site.round()
    assert "machine x9f" not in site.rows()


def test_a_list_that_is_no_longer_asked_goes(site: Site, private_home: Path) -> None:
    site.round()
    (private_home / "outlay.toml").write_text("")
    site.round()
    assert set(site.rows()) == {"node node7"}


def test_a_job_that_ended_is_a_run_once(site: Site) -> None:
    for _ in range(2):
        site.round()
    listed = in_process("runs", "--all", "--json").json["runs"]
    assert [(run["name"], run["cost_micros"]) for run in listed] == [("old", 3_000_000)]


def test_what_has_no_price_is_named_unless_it_costs_nothing(site: Site) -> None:
    assert in_process("rates", "remove", "main").code == 0
    line = SACCT.splitlines()[2]
    free = line.replace("41|41|plain", "50|50|compile").replace("gres/gpu=2", "cpu=8")
    site.accounts.write_text(f"{SACCT}{free}\n")
    site.round()
    text = site.overview()["burn"]["text"]
    assert text.endswith("no price is known of slurm 41 (plain) since 2023-11-14 22:13Z")


def test_a_cluster_without_accounts_is_unknown(site: Site) -> None:
    site.accounts.write_text("Slurm accounting storage is disabled\n")
    site.round()
    assert set(site.overview()["burn"]["unknown"]) == {"slurm"}


# What is to be asked


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('[[watch.vendor]]\npreset = "runpd"', "dstack, lambda, prime, runpod, skypilot, vast"),
        ('[[watch.vendor]]\nname = "ours"', "preset, or name and list"),
        ('[[watch.vendor]]\npreset = "vast"\n[[watch.vendor]]\npreset = "vast"', "account ="),
        ('[[watch.vendor]]\nname = "x"\nlist = "x --api-key=0123456789"', "without a key in it"),
        ('[[watch.vendor]]\npreset = "vast"\nrate = "cheap"', "rate"),
        ("[watch]\nslrum = true", "slrum"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_asked_are_refused(
    private_home: Path, settings: str, message: str
) -> None:
    (private_home / "outlay.toml").write_text(settings)
    with pytest.raises(InvalidValue, match=re.escape(message)):
        read_watch_settings()
    assert message in in_process("watch", "--once").err


@pytest.mark.parametrize(
    ("name", "listed", "rate"),
    [
        ("runpod", [{"id": "a", "costPerHr": 0.69}], "0.69 USD/h"),
        ("vast", [{"id": 7, "dph_total": 0.4123456}], "0.412346 USD/h"),
        ("lambda", {"data": [{"id": "a", "instance_type": {"price_cents_per_hour": 129}}]},
         "1.29 USD/h"),
        ("runpod", [{"id": "a", "costPerHr": "unknown"}], None),
        ("runpod", [{"id": "a"}], None),
    ],
)  # fmt: skip
def test_the_price_of_a_listed_machine_is_read(name: str, listed: object, rate: str | None) -> None:
    page = parse_page(PRESETS[name], json.dumps(listed), LISTED_RATES[name])
    (machine,) = page.machines
    assert machine.rate == (None if rate is None else Rate.parse(rate))


# The join, without files


def row(run_id: str, *, burn: int = 0, **more: Any) -> RunRow:
    return RunRow(
        run_id=run_id, dir=f"/{run_id}", model="m", name=run_id, status="running", attempts=1,
        steps=0, tokens=0, started_ns=0, last_seen_ns=0, cost=Money(1),
        burn_micros_per_hour=burn, **more,
    )  # fmt: skip


def answer(*machines: SeenMachine, source: str = "pods") -> MachineList:
    return MachineList(
        source=source, machines=machines, asked_from="here", answered_ns=1, failed_ns=0,
        problem="", unknown="",
    )  # fmt: skip


def owned(host: str, dollars: int) -> OwnedMachine:
    return OwnedMachine(host=host, price=Price(dollars * 10**6), since_ns=0)


def parts_of(*places: Any) -> dict[str, int]:
    now = MachinesNow(places=tuple(places))
    return {p: r.micros_per_hour // 10**6 for p, r in now.by_part(Rate(0).unit).items()}


def test_a_job_on_owned_nodes_is_no_row_of_its_own() -> None:
    job = SeenMachine(kind="job", id="41", user="ben", nodes="n[1-2]", rate="99 USD/h")
    places = machines_now([], [owned("n1", 3), owned("n2", 3)], [], [answer(job)])
    assert [(each.name, each.part, each.owner) for each in places] == [
        ("n1", "claimed without a run", "ben"), ("n2", "claimed without a run", "ben"),
    ]  # fmt: skip
    assert parts_of(*places) == {"claimed without a run": 6}


def test_a_run_on_several_owned_nodes_has_all_of_them() -> None:
    job = SeenMachine(kind="job", id="41", user="ben", nodes="n[1-2]")
    run = row("r", burn=6_000_000, host="n1", slurm_job="41")
    places = machines_now([], [owned("n1", 3), owned("n2", 3)], [run], [answer(job)])
    assert parts_of(*places) == {"in runs": 6}


def test_the_rest_of_an_owned_node_is_idle() -> None:
    run = row("r", burn=2_000_000, host="n1")
    assert parts_of(*machines_now([], [owned("n1", 8)], [run])) == {"in runs": 2, "idle": 6}


def test_a_machine_with_a_run_on_it_is_not_nobodys() -> None:
    pod = SeenMachine(kind="machine", id="x9f", rate="7 USD/h")
    run = row("r", instance_id="x9f", host="abc")
    assert parts_of(*machines_now([], [], [run], [answer(pod)])) == {"in runs": 7}


def test_a_rental_of_another_host_is_not_nobodys() -> None:
    pod = SeenMachine(kind="machine", id="x9f", rate="7 USD/h")
    rental = SeenMachine(kind="rental", id="x9f", name="outlay-1", rate="6 USD/h")
    places = machines_now([], [], [], [answer(pod), answer(rental, source="rentals/gpu1")])
    assert [(each.kind, each.part) for each in places] == [("rental", "idle")]
    assert parts_of(*places) == {"idle": 6}


names = st.sampled_from(["a", "b", "c", "d"])
rates = st.sampled_from(["", "1 USD/h", "0.000001 USD/h", "2.50 EUR/h", "3 USD/h showback"])
machines = st.builds(
    SeenMachine, kind=st.sampled_from(["machine", "rental", "job", "node"]), id=names,
    name=st.sampled_from(["", "a", "b"]), user=st.sampled_from(["", "ben"]), rate=rates,
    nodes=st.sampled_from(["", "a", "a,b", "z"]),
)  # fmt: skip
runs = st.builds(
    row, names, burn=st.integers(0, 5), host=names, instance_id=st.sampled_from(["", "a", "b"]),
    slurm_job=st.sampled_from(["", "a", "c"]),
)  # fmt: skip


@given(
    st.lists(st.lists(machines, max_size=4, unique_by=lambda each: each.id), max_size=3),
    st.lists(runs, max_size=4, unique_by=lambda each: each.run_id),
    st.lists(names, max_size=2, unique=True),
    st.lists(names, max_size=2),
)
def test_the_parts_sum_to_the_rows_and_the_rows_to_the_burn(
    lists: list[list[SeenMachine]], running: list[RunRow], hosts: list[str], claimed: list[str]
) -> None:
    answers = [answer(*each, source=str(place)) for place, each in enumerate(lists)]
    claims = {("0", each): MachineClaim(source="0", machine=each, user="ana") for each in claimed}
    places = machines_now([], [owned(host, 2) for host in hosts], running, answers, claims)
    now = MachinesNow(places=tuple(places))
    for whole in now.burn:
        parts = now.by_part(whole.unit)
        assert list(parts) == [part for part in PARTS if part in parts]
        assert sum_by_unit(parts.values()) == [whole]
    assert {run.run_id for place in places for run in place.runs} == {r.run_id for r in running}
    for place in places:
        assert sum_by_unit(rate for _, rate in place.parts) == place.burn
    listed = {(each.source, one.id) for each in answers for one in each.machines}
    assert {(place.source, place.id) for place in places if place.source} <= listed
    strangers = [place for place in now.unclaimed if (place.source, place.id) in claims]
    assert strangers == []


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n[1-3,7],gpu4", ["n1", "n2", "n3", "n7", "gpu4"]), ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1-2]b[1-2]", ["a1b1", "a1b2", "a2b1", "a2b2"]), ("", []), ("one", ["one"]),
    ],
)  # fmt: skip
def test_a_list_of_nodes_is_expanded(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes
    assert count_nodes(text) == max(1, len(nodes))


def test_a_list_of_more_nodes_than_there_are_is_counted_only() -> None:
    text = f"n[1-{10**30}]"
    assert expand_nodes(text) == []
    assert count_nodes(text) == 10**30
