"""What vendors answer, and the commands that are run against them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from outlay.errors import InvalidValue
from outlay.guard.rental.rental import expand, run_command, split_command
from outlay.guard.rental.vendor_commands import (
    PRESETS,
    ListedMachine,
    ListingPage,
    UnreadableReply,
    is_shown,
    join_pages,
    may_continue,
    parse_id,
    parse_page,
    preset,
)


@pytest.mark.parametrize(
    ("id_from", "output", "expected"),
    [
        ("json:.id", '{"id": "abc"}', "abc"),
        ("json:.new_contract", '{"success": true, "new_contract": 7835610}', "7835610"),
        ("json:.data.instance_ids[0]", '{"data": {"instance_ids": ["i-1"]}}', "i-1"),
        (r'regex:pod "(\w+)" created', 'pod "wu5ekmn" created for $0.35/hr', "wu5ekmn"),
        (r"regex:pod-\d+", "made pod-7", "pod-7"),
    ],
)
def test_the_id_is_read_from_what_creation_printed(
    id_from: str, output: str, expected: str
) -> None:
    assert parse_id(id_from, output, "outlay-a") == expected


@pytest.mark.parametrize(
    ("id_from", "output"),
    [
        ("json:.id", "<html>"),
        ("json:.id", '{"uuid": "abc"}'),
        ("json:.id", '{"id": null}'),
        ("json:.id", '{"id": true}'),
        ("json:.id", '{"id": " "}'),
        ("json:.ids[1]", '{"ids": ["a"]}'),
        ("regex:pod-\\d+", "nothing here"),
    ],
)
def test_an_id_that_is_not_there_is_garbled(id_from: str, output: str) -> None:
    with pytest.raises(UnreadableReply):
        parse_id(id_from, output, "outlay-a")


@pytest.mark.parametrize("id_from", ["xml:/id", "json:id", "json:.a b", "regex:pod-("])
def test_a_place_that_makes_no_sense_is_an_error_of_the_user(id_from: str) -> None:
    with pytest.raises(InvalidValue):
        parse_id(id_from, '{"id": "abc"}', "outlay-a")


def test_runpods_listing() -> None:
    output = '[{"id": "wu5", "name": "Pod1", "desiredStatus": "EXITED"}]'
    assert parse_page(preset("runpod"), output).machines == (ListedMachine("wu5", "Pod1"),)


def test_vasts_listing_names_by_label() -> None:
    output = '[{"id": 12741302, "label": "mine", "actual_status": "stopped"}, {"id": 2}]'
    listed = parse_page(preset("vast"), output).machines
    assert listed == (ListedMachine("12741302", "mine"), ListedMachine("2", ""))


def test_primes_listing() -> None:
    output = '{"pods": [{"id": "3f9c", "name": "mine", "status": "ACTIVE"}], "total_count": 1}'
    assert parse_page(preset("prime"), output).machines == (ListedMachine("3f9c", "mine"),)


def test_skypilots_clusters_are_known_by_their_name() -> None:
    output = '[{"name": "outlay-a", "status": "STOPPED"}]'
    assert parse_page(preset("skypilot"), output).machines == (
        ListedMachine("outlay-a", "outlay-a"),
    )
    assert parse_id(preset("skypilot").id_from, "Cluster launched", "outlay-a") == "outlay-a"


def test_dstacks_runs_are_known_by_their_name_until_they_are_over() -> None:
    output = (
        '{"project": "main", "runs": ['
        '{"id": "u1", "status": "running", "run_spec": {"run_name": "outlay-a"}},'
        ' {"id": "u2", "status": "terminated", "run_spec": {"run_name": "outlay-b"}}]}'
    )
    assert parse_page(preset("dstack"), output).machines == (ListedMachine("outlay-a", "outlay-a"),)


def test_lambdas_listing_leaves_out_what_is_terminated() -> None:
    output = (
        '{"data": [{"id": "i-1", "name": "a", "status": "active"},'
        ' {"id": "i-2", "name": "b", "status": "terminated"},'
        ' {"id": "i-3", "name": null, "status": "unhealthy"}]}'
    )
    assert parse_page(preset("lambda"), output).machines == (
        ListedMachine("i-1", "a"),
        ListedMachine("i-3", ""),
    )


def test_prime_follows_its_pages() -> None:
    prime = preset("prime")
    first = parse_page(prime, '{"pods": [{"id": "a"}, {"id": "b"}], "total_count": 3}')
    last = parse_page(prime, '{"pods": [{"id": "c"}], "total_count": 3}')
    assert may_continue(prime, [first])
    assert not join_pages(prime, [first], all_rows=False).complete
    assert not may_continue(prime, [first, last])
    assert join_pages(prime, [first, last], all_rows=False).complete
    assert any("{offset}" in word for word in prime.list)


@pytest.mark.parametrize("total", ["null", '"3"', "true"])
def test_a_total_that_is_no_number_proves_nothing(total: str) -> None:
    with pytest.raises(UnreadableReply):
        parse_page(preset("prime"), f'{{"pods": [], "total_count": {total}}}')


@pytest.mark.parametrize(
    ("vendor", "rows", "complete"),
    [
        ("runpod", 500, True), ("vast", 500, True), ("lambda", 500, True),
        ("skypilot", 500, True), ("dstack", 99, True), ("dstack", 100, False),
    ],
)  # fmt: skip
def test_a_preset_knows_what_may_be_a_page(vendor: str, rows: int, complete: bool) -> None:
    page = ListingPage((), tuple(map(str, range(rows))))
    assert join_pages(preset(vendor), [page], all_rows=False).complete == complete


@pytest.mark.parametrize("vendor", PRESETS)
def test_a_vendor_that_can_show_a_machine_is_asked_by_its_id(vendor: str) -> None:
    shows = vendor not in ("skypilot", "dstack")  # whose ids are the names that are listed
    assert ("{id}" in " ".join(preset(vendor).show)) == shows


@pytest.mark.parametrize(
    ("vendor", "output", "shown"),
    [
        ("runpod", '{"id": "wu5", "name": "a", "ssh": {}}', True),
        ("runpod", '{"id": "other"}', False),
        ("runpod", "pod not found", False),
        ("vast", '{"id": 7, "label": "a"}', True),
        ("lambda", '{"data": {"id": "wu5", "status": "active"}}', True),
        ("lambda", '{"data": {"id": "wu5", "status": "terminated"}}', False),
        ("lambda", '{"error": {"code": "global/object-does-not-exist"}}', False),
        ("prime", '{"id": "wu5", "status": "ACTIVE"}', True),
    ],
)
def test_a_shown_machine_is_recognised(vendor: str, output: str, shown: bool) -> None:
    assert is_shown(preset(vendor), output, "7" if vendor == "vast" else "wu5") == shown


@pytest.mark.parametrize(
    "created",
    [
        '"2023-11-14T22:13:20Z"', '"2023-11-14T22:13:20.000Z"', '"2023-11-14T23:13:20+01:00"',
        '"2023-11-14 22:13:20 +0000 UTC"', '"2023-11-14 22:13:20.0 +0000 UTC"', "1700000000",
        "1700000000.0", '"1700000000"',
    ],
)  # fmt: skip
def test_a_creation_time_is_read_as_vendors_write_it(created: str) -> None:
    (machine,) = parse_page(preset("runpod"), f'[{{"id": "a", "createdAt": {created}}}]').machines
    assert machine.created_ns == 1_700_000_000 * 10**9


@pytest.mark.parametrize("created", ["null", '""', "true", '"soon"', "1e300", "[]"])
def test_a_creation_time_that_cannot_be_read_is_none(created: str) -> None:
    (machine,) = parse_page(preset("runpod"), f'[{{"id": "a", "createdAt": {created}}}]').machines
    assert machine.created_ns is None


@pytest.mark.parametrize("output", ["", "null", "{}", '{"data": null}', '[{"label": "x"}]', "[1]"])
@pytest.mark.parametrize("vendor", PRESETS)
def test_a_listing_that_is_none_proves_nothing(vendor: str, output: str) -> None:
    with pytest.raises(UnreadableReply):
        parse_page(preset(vendor), output)


@pytest.mark.parametrize("vendor", PRESETS)
def test_presets_end_for_good_and_never_merely_stop(vendor: str) -> None:
    command = " ".join(preset(vendor).terminate)
    # A run of dstack that is stopped is over; with every other vendor, stopping keeps what bills.
    assert ("stop" in command) == (vendor == "dstack")
    ends = ("delete", "destroy", "terminate", "down", "dstack stop")
    assert any(word in command for word in ends)
    assert "{id}" in command


def test_no_preset_holds_a_key() -> None:
    assert "$LAMBDA_API_KEY" in preset("lambda").stdin
    assert not any("Bearer" in word for word in preset("lambda").list)


def test_an_unknown_vendor_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="one of dstack, lambda, prime, runpod, skypilot, vast"):
        preset("acme")


@pytest.mark.parametrize(
    "text",
    ['curl -H "Authorization: Bearer sk-12345678"', "vastai --api-key 0123456789abcdef list"],
)
def test_a_key_in_a_command_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        split_command(text, name="list")
    assert "12345678" not in str(caught.value)


def test_a_variable_in_a_command_is_allowed_and_filled_in_when_it_runs() -> None:
    command = split_command('curl -H "Authorization: Bearer $KEY" {id}', name="list")
    assert command[2] == "Authorization: Bearer $KEY"
    assert expand(command[2], {"KEY": "secret"}, {}) == "Authorization: Bearer secret"
    assert expand("{id}-${KEY}", {"KEY": "x"}, {"id": "7"}) == "7-x"


@pytest.mark.parametrize("text", ["", "a 'b"])
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        split_command(text, name="list")


def test_a_command_reads_what_it_is_given_and_no_shell_comes_between() -> None:
    echo = (sys.executable, "-c", "import sys; print(sys.stdin.read() + sys.argv[1])", "$X; ls")
    reply = run_command(echo, {"X": "a"}, stdin="$X-")
    assert (reply.output.strip(), reply.problem) == ("a-a; ls", "")


def test_a_command_that_does_not_exist_is_a_problem_and_no_exception() -> None:
    assert "No such file" in run_command(("/no/such/tool",), {}).problem


def test_a_zero_byte_in_a_command_is_a_problem_and_no_exception() -> None:
    assert "null byte" in run_command((sys.executable, "{id}"), {}, places={"id": "\0"}).problem


def test_a_command_that_hangs_is_left_even_if_a_child_holds_its_output(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    leaves = ("sh", "-c", "setsid sleep 600 & echo $! > $PID_FILE; sleep 600")
    reply = run_command(leaves, {**os.environ, "PID_FILE": str(pid_file)}, timeout_s=1.0)
    assert (reply.finished, "did not answer" in reply.problem) == (False, True)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)  # raises if it were not there any more


def test_what_a_failing_command_prints_is_not_repeated() -> None:
    noisy = (sys.executable, "-c", "import sys; sys.exit('the key is sk-1234')")
    assert run_command(noisy, {}).problem == f"{sys.executable} exited with 1"
