"""From a grid to a plan: the meaning of each key, and all problems reported at once."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import outlay
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.launch import Place, command_of, environment_of
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import command_lines, make_plan, plan_document
from outlay.units import Duration, Money

HOUR_NS = 3600 * 10**9


def plan_of(text: str) -> SweepPlan:
    return make_plan(read_grid(text, source="grid.yaml", default_name="grid"))


def plan_of_entry(**entry: Any) -> SweepPlan:
    return plan_of(json.dumps({"grid": [entry]}))


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(InvalidGrid) as caught:
        plan_of(text)
    return [(finding.line, finding.message) for finding in caught.value.findings]


def place(plan: SweepPlan, index: int = 0) -> Place:
    return Place(directory=f"/s/{plan.runs[index].id}", port=4242)


def command(plan: SweepPlan, index: int = 0) -> list[str]:
    return command_of(plan, plan.runs[index], place(plan, index))


def environment(plan: SweepPlan, index: int = 0) -> dict[str, str]:
    return environment_of(plan.runs[index], place(plan, index))


# -- expansion ------------------------------------------------------------------------------


def test_lists_expand_to_their_product_with_the_last_key_fastest() -> None:
    plan = plan_of_entry(params={"a": [1, 2], "b": ["x", "y"], "c": 0})
    combos = [(run.params["a"], run.params["b"], run.params["c"]) for run in plan.runs]
    assert combos == [(1, "x", 0), (1, "y", 0), (2, "x", 0), (2, "y", 0)]


def test_ids_count_over_all_runs_and_name_the_combination_only_where_there_are_several() -> None:
    plan = plan_of("""
        grid:
          - {name: my group!, params: {a: [1, 2]}}
          - {params: {a: 1}}
    """)
    assert [run.id for run in plan.runs] == ["001_my-group_00", "002_my-group_01", "003_group01"]


@pytest.mark.parametrize("written", [[[1, 2]], {"value": [1, 2]}, [{"value": [1, 2]}]])
def test_a_parameter_can_be_a_list_itself(written: object) -> None:
    plan = plan_of_entry(params={"layers": written})
    assert [run.params["layers"] for run in plan.runs] == [[1, 2]]
    assert "layers=[1, 2]" in command(plan)


def test_seeds_are_replicates_and_reach_the_program() -> None:
    plan = plan_of_entry(params={"lr": [0.1, 0.2]}, seeds=[7, 8])
    assert [(run.params["lr"], run.params["seed"]) for run in plan.runs] == [
        (0.1, 7), (0.1, 8), (0.2, 7), (0.2, 8),
    ]  # fmt: skip
    assert "seed=7" in command(plan)


def test_excluded_combinations_are_left_out_and_true_is_not_one() -> None:
    plan = plan_of_entry(
        params={"a": [1, 2, True], "b": [1, 2]}, exclude=[{"a": 1, "b": [1, 2]}, {"a": 2, "b": 2}]
    )
    assert [(run.params["a"], run.params["b"]) for run in plan.runs] == [
        (2, 1),
        (True, 1),
        (True, 2),
    ]


def test_interpolations_and_numbers_read_as_hydra_reads_them() -> None:
    plan = plan_of("grid: [{params: {lr: 1e-3, n: 3}}]")
    assert plan.runs[0].params == {"lr": 0.001, "n": 3}
    plan = plan_of("name: abc\ngrid: [{name: '${name}-x', params: {tag: '${name}'}}]")
    assert plan.runs[0].entry.name == "abc-x"
    assert plan.runs[0].params["tag"] == "abc"


def test_a_root_key_may_only_serve_interpolations_and_others_are_unknown() -> None:
    plan = plan_of("""
        rates: {low: 0.1}
        who: {rank: [3]}
        grid: [{params: {lr: '${rates.low}', rank: '${who.rank[0]}'}}]
    """)
    assert plan.runs[0].params == {"lr": 0.1, "rank": 3}
    with pytest.raises(InvalidGrid, match="unknown key 'rates'"):
        plan_of("rates: {low: 0.1}\ngrid: [{params: {lr: '${oc.env:HOME}'}}]")


def test_names_of_sweeps_and_entries_may_be_numbers() -> None:
    plan = plan_of("name: 2026\ngrid: [{name: 7, params: {x: 1}}]")
    assert (plan.grid.name, plan.runs[0].id) == ("2026", "001_7")


def test_json_indented_with_tabs_is_a_grid_too() -> None:
    assert len(plan_of(json.dumps({"grid": [{"params": {"a": [1, 2]}}]}, indent="\t")).runs) == 2


# -- commands and environment ---------------------------------------------------------------


def test_documented_aliases_and_literals() -> None:
    plan = plan_of_entry(
        params={
            "model": "resnet18", "method": "simclr", "batch_size": 128, "tau": 0.2,
            "amp_dtype": "bf16", "name": "größe", "flag": True, "nothing": None,
        }
    )  # fmt: skip
    assert {
        "model=resnet18", "method=simclr", "data.batch_size=128", "method.tau=0.2",
        "train.loss_fp32=false", 'name="größe"', "flag=true", "nothing=null",
    } <= set(command(plan))  # fmt: skip
    assert environment(plan)["MFCL_AMP_DTYPE"] == "bf16"


def test_fp32_switches_the_loss_and_aliases_can_be_added() -> None:
    plan = plan_of("""
        aliases: {lr: optim.lr, optimizer: {group: optim}}
        grid: [{params: {amp_dtype: fp32, lr: 0.1, optimizer: adam}}]
    """)
    assert {"train.loss_fp32=true", "optim.lr=0.1", "optim=adam"} <= set(command(plan))


def test_modes_and_dtypes_are_read_in_any_case() -> None:
    plan = plan_of_entry(
        params={"amp_dtype": "FP32"}, budget={"mode": "ISO_TOKENS", "limit": "50k"}
    )
    assert {"train.loss_fp32=true", "runtime.budget.max_tokens=50000"} <= set(command(plan))
    assert environment(plan)["MFCL_AMP_DTYPE"] == "fp32"
    assert json.loads(environment(plan)["OUTLAY_BUDGET"])["mode"] == "iso_tokens"


@pytest.mark.parametrize(
    ("mode", "limit", "expected"),
    [
        ("iso_time", 2.5, "max_minutes=2.5"),
        ("iso_time", "2h", "max_minutes=120"),
        ("iso_tokens", "50k", "max_tokens=50000"),
        ("comm_cap", 1000, "max_comm_bytes=1000"),
        ("energy_cap", 1.5, "max_energy_Wh=1.5"),
        ("iso_cost", "5 USD", "max_cost_usd=5"),
        ("iso_flops", "1e18", "max_flops=1000000000000000000"),
    ],
)
def test_every_budget_mode_becomes_its_override(mode: str, limit: object, expected: str) -> None:
    plan = plan_of_entry(budget={"mode": mode, "limit": limit})
    assert "runtime.budget.enabled=true" in command(plan)
    assert f"runtime.budget.{expected}" in command(plan)
    assert json.loads(environment(plan)["OUTLAY_BUDGET"])["mode"] == mode


@pytest.mark.parametrize(
    "budget",
    [{"mode": "iso_cost", "limit": "5 EUR"}, {"mode": "iso_cost", "max_cost_eur": 5}],
)
def test_a_budget_in_euros_is_planned_and_passed_on(budget: dict[str, object]) -> None:
    plan = plan_of_entry(budget=budget, price="2 EUR/h")
    (run,) = plan.runs
    assert run.prediction.cost == Money.parse("5 EUR")
    assert run.prediction.ns == 2.5 * HOUR_NS
    assert run.metadata["budget_limit_key"] == "max_cost_eur"
    assert "++runtime.budget.max_cost_eur=5" in command(plan)
    assert json.loads(environment(plan)["OUTLAY_BUDGET"])["max_cost_eur"] == 5


def test_explicit_limits_and_targets_are_kept() -> None:
    budget = {"mode": "iso_epochs", "max_epochs": 3, "steps_per_epoch": 10, "max_comm_bytes": 9}
    plan = plan_of_entry(budget=budget | {"target_metric": "val.loss", "target_value": 0.5})
    assert plan.runs[0].metadata == {
        "budget_mode": "iso_epochs", "budget_limit_key": "max_epochs", "budget_limit_value": 3,
        "target_metric": "val.loss", "target_value": 0.5, "target_direction": "min",
    }  # fmt: skip


def test_a_single_node_is_standalone_and_its_environment_is_the_documented_one() -> None:
    plan = plan_of_entry(name="g", params={"world_size": 2}, metadata={"k": "v"}, price="1.5 USD/h")
    assert command(plan)[3:5] == ["--standalone", "--nproc_per_node=2"]
    expected = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NPROC_PER_NODE": "2", "NNODES": "1",
        "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4242",
        "MFCL_SWEEP_RUN_ID": "001_g", "MFCL_SWEEP_RUN_DIR": "/s/001_g",
        "MFCL_SWEEP_PARAMS": '{"world_size": 2}', "MFCL_SWEEP_METADATA": '{"k": "v"}',
        "HYDRA_FULL_ERROR": "1", "OUTLAY_RUN_DIR": "/s/001_g", "OUTLAY_GPUS": "2",
        "OUTLAY_PRICE": "1.50 USD/h",
    }  # fmt: skip
    assert environment(plan) == expected


def test_several_nodes_meet_at_the_rendezvous_and_an_entry_overrides_the_root() -> None:
    plan = plan_of("""
        nnodes: 2
        node_rank: 1
        rendezvous: {backend: c10d, endpoint: "root:29500", id: 7, conf: timeout=900}
        grid:
          - {params: {world_size: 2}}
          - {params: {world_size: 2}, rendezvous: {endpoint: "own:29501"}}
    """)
    assert command(plan)[3:10] == [
        "--nnodes=2", "--node_rank=1", "--rdzv_backend=c10d", "--rdzv_endpoint=root:29500",
        "--rdzv_id=7", "--rdzv_conf=timeout=900", "--nproc_per_node=2",
    ]  # fmt: skip
    assert "--rdzv_endpoint=own:29501" in command(plan, 1)
    seen = environment(plan)
    assert [seen[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES", "NODE_RANK")] == [
        "4", "2", "2", "1",
    ]  # fmt: skip


def test_an_elastic_range_names_no_world_size_and_is_priced_at_its_most() -> None:
    plan = plan_of_entry(nnodes="1:4", params={"world_size": 2}, price=1, timeout="1h")
    assert "WORLD_SIZE" not in environment(plan)
    assert environment(plan)["NNODES"] == "1:4"
    assert plan.predicted_cost == Money.parse("8 USD")


def test_several_nodes_without_an_endpoint_are_warned_of() -> None:
    (warning,) = plan_of_entry(nnodes=2).warnings
    assert "MASTER_PORT" in warning.message


def test_a_stated_port_is_respected() -> None:
    plan = plan_of_entry(nnodes=1, node_rank=0, env={"MASTER_PORT": 1111})
    assert environment(plan)["MASTER_PORT"] == "1111"
    assert "--master_port=1111" in command(plan)


def test_a_plain_command_takes_flags_and_placeholders() -> None:
    plan = plan_of("""
        engine: process
        arguments: flags
        entrypoint: python train.py --dir {run_dir} --lr={lr}
        grid: [{params: {lr: 0.1, batch_size: 4, fast: true, slow: false, dims: [[1, 2]]}}]
    """)
    assert command(plan) == [
        "python", "train.py", "--dir", "/s/001_group00", "--lr=0.1", "--batch-size", "4", "--fast",
        "--no-slow", "--dims", "1", "2",
    ]  # fmt: skip


def test_a_flag_is_called_what_the_grid_says_a_parameter_is_called() -> None:
    plan = plan_of("""
        engine: process
        arguments: flags
        entrypoint: train
        aliases: {batch_size: bs, lr: rate}
        grid: [{params: {batch_size: 4, lr: 0.1, tau: 2}}]
    """)
    assert command(plan) == ["train", "--bs", "4", "--rate", "0.1", "--tau", "2"]


# -- what is wrong --------------------------------------------------------------------------


def test_everything_wrong_is_named_at_once_with_its_line() -> None:
    text = """\
nme: typo
nnodes: 0
grid:
  - params: {a: []}
    budget: {mode: iso_foo, limit: 3}
  - params: {world_size: 0}
    engine: teleport
    node_rank: -1
    retries: 1.5
"""
    found = problems(text)
    assert [line for line, _ in found] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert "unknown key 'nme'" in found[0][1]
    assert "iso_tokens" in found[3][1]


BOMB = "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
AXIS = list(range(1000))


def test_a_commit_that_looks_like_a_number_is_text() -> None:
    runs = plan_of("grid:\n- params: {rev: [5e3a9c1, 1e3]}").runs
    assert [run.params["rev"] for run in runs] == ["5e3a9c1", 1000.0]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[1, 2]", 1, "a grid is a mapping"),
        ("", 1, "a grid is a mapping"),
        ("a: ]", 1, "cannot be read"),
        ("a: \x00", 1, "cannot be read"),
        ("grid:\n- params: {world_size: []}", 2, "world_size: got []"),
        ("grid:\n- params: {lr: []}", 2, "lr: got []; expected a value, or a list of one or more"),
        ("grid:\n- {params: {a: 1}, exclude: [{a: []}]}", 2, "a: got []"),
        ("retries: -1\ngrid: [{}]", 1, "retries: got -1"),
        ("name: x", 1, "expected `grid`"),
        ("name: x\ngrid: []", 2, "expected `grid`"),
        ("grid:\n- {params: {a: 1}}\n- 3", 3, "expected a mapping"),
        ("grid:\n- budget: {mode: [a], limit: 2}", 2, "budget mode: got ['a']"),
        ("grid:\n- budget: {mode: iso_time, limit: [1]}", 2, "max_minutes: got [1]"),
        ("grid:\n- budget: {mode: iso_time}", 2, "requires 'max_minutes'"),
        ("grid:\n- budget: {mode: iso_time, limit: 1, max_minutes: 2}", 2, "one of them"),
        ("grid:\n- params: {amp_dtype: fp8}", 2, "fp16"),
        ("grid:\n- params: {a: '${nowhere}'}", 2, "nowhere"),
        ("grid:\n- {name: x, name: y}", 2, "duplicate key"),
        ("grid:\n- {params: {seed: 1}, seeds: [1]}", 2, "not both"),
        ("entrypoint: x {lr}\ngrid:\n- {params: {a: 1}}", 3, "{lr}, which is no parameter"),
        ("grid:\n- {params: {a: 1}, exclude: [{a: 1}]}", 1, "leaves out every run"),
        ("ceiling: lots\ngrid: [{}]", 1, "ceiling"),
        ("price: 2 EUR/h\ngrid:\n- budget: {mode: iso_cost, limit: 5}", 3, "the price in EUR"),
        ("price: 2\ngrid:\n- budget: {mode: iso_cost, limit: 5 EUR}", 3, "max_cost_eur is in EUR"),
        ("grid:\n- budget: {mode: iso_time, limit: 1h, max_cost_EUR: 5}", 2, "unknown key"),
        ("grid: &all\n- params: {a: *all}", 2, "refers to itself"),
        ("name: ../../x\ngrid: [{}]", 1, "without slashes"),
        ("name: ..\ngrid: [{}]", 1, "without slashes"),
        ("a: &a [x,x,x,x,x,x,x,x,x]\n" + BOMB + "grid: [{}]", 1, "its aliases expand to"),
        ("grid:\n- params: {a: " + "[" * 100 + "]" * 100 + "}", 2, "nested deeper"),
        (f"grid:\n- params: {{a: {AXIS}, b: {AXIS}}}", 2, "its axes multiply to 1,000,000 runs"),
        ("grid:\n- params: {a: !!binary aGk=}", 2, "are not read"),
        ("grid:\n- params: {a: 0b_}", 1, "cannot be read"),
    ],
)
def test_a_wrong_grid_is_reported_with_line_and_problem(text: str, line: int, message: str) -> None:
    (found,) = problems(text)
    assert found[0] == line
    assert message in found[1]


# -- where runs ship themselves -----------------------------------------------------------------


def test_runs_get_the_variables_that_ship_them_and_keep_their_fingerprint() -> None:
    plain = plan_of_entry(params={"a": 1})
    shipped = plan_of_entry(params={"a": 1}, ship={"to": "memory://kept/runs", "every": "10s"})
    found = environment(shipped)
    assert found["OUTLAY_SHIP_TO"] == "memory://kept/runs"
    assert Duration.parse(found["OUTLAY_SHIP_EVERY"], name="every") == Duration(10 * 10**9)
    assert "OUTLAY_SHIP_TO" not in environment(plain)
    assert shipped.runs[0].fingerprint == plain.runs[0].fingerprint


def test_an_entry_ships_elsewhere_than_the_grid() -> None:
    plan = plan_of("""
        ship: file:///kept
        grid:
          - params: {a: 1}
          - params: {a: 2}
            ship: /other
    """)
    places = [environment(plan, index)["OUTLAY_SHIP_TO"] for index in (0, 1)]
    assert places == ["file:///kept", "/other"]


@pytest.mark.parametrize(
    ("ship", "expected"),
    [
        ("runs", "a URL such as s3://bucket/runs, or an absolute directory"),
        ("7", "a non-empty text"),
        ("nowhere://kept", "a protocol that fsspec knows"),
        ("s3://user:word@kept", "a URL without a login"),
        ("{every: 10s}", "expected `to`, a storage URL"),
        ("{to: /kept, every: 0s}", "a duration above zero"),
        ("{to: /kept, often: 1}", "unknown key 'often'"),
    ],
)
def test_a_wrong_place_to_ship_to_is_reported_with_the_other_problems(
    ship: str, expected: str
) -> None:
    text = f"ship: {ship}\ntimeout: never\ngrid: [{{params: {{a: 1}}}}]\n"
    (first, second) = sorted(problems(text))
    assert (first[0], second[0]) == (1, 2)
    assert expected in first[1]
    assert "user:" not in first[1]


def test_exclusions_that_name_no_parameter_are_warned_of_in_one_order() -> None:
    names = [f"p{number}" for number in range(9)]
    plan = plan_of_entry(params={"a": 1}, exclude=[dict.fromkeys(reversed(names), 1)])
    found = [warning.message for warning in plan.warnings]
    assert [message.split("'")[1] for message in found] == names


# -- identity -------------------------------------------------------------------------------


def test_inserting_an_entry_changes_ids_and_no_fingerprint() -> None:
    before = plan_of("grid: [{name: a, params: {x: [1, 2]}}]")
    after = plan_of("grid: [{name: new, params: {x: 9}}, {name: a, params: {x: [1, 2]}}]")
    assert [run.fingerprint for run in after.runs[1:]] == [run.fingerprint for run in before.runs]
    assert [run.id for run in after.runs[1:]] != [run.id for run in before.runs]


def test_price_time_limits_and_secrets_are_not_in_the_fingerprint() -> None:
    (plain,) = plan_of_entry(params={"a": 1}).runs
    (priced,) = plan_of_entry(
        params={"a": 1}, price=2, retries=3, timeout="1h", env={"WANDB_API_KEY": "abc"}
    ).runs
    assert priced.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    "other", [{"params": {"a": 2}}, {"params": {"a": 1}, "overrides": ["b=1"]}]
)
def test_parameters_and_overrides_are_part_of_the_fingerprint(other: dict[str, Any]) -> None:
    assert plan_of_entry(params={"a": 1}).runs[0].fingerprint != (
        plan_of_entry(**other).runs[0].fingerprint
    )


def test_two_runs_of_the_same_content_have_different_fingerprints() -> None:
    plan = plan_of("grid: [{params: {a: 1}}, {params: {a: 1}}]")
    assert len({run.fingerprint for run in plan.runs}) == 2


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda n: n != "world_size")
scalars = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5).filter(lambda t: "$" not in t)
)
entries = st.fixed_dictionaries(
    {"params": st.dictionaries(names, st.lists(scalars, min_size=1, max_size=3), max_size=3)}
)


@given(st.lists(entries, min_size=1, max_size=3))
def test_the_same_grid_gives_the_same_plan_and_every_run_its_own_identity(
    listed: list[dict[str, Any]],
) -> None:
    for entry in listed:
        entry["params"].pop("amp_dtype", None)
    text = json.dumps({"grid": listed})
    one, two = plan_of(text), plan_of(text)
    assert json.dumps(plan_document(one, {})) == json.dumps(plan_document(two, {}))
    sizes = [_product(entry["params"]) for entry in listed]
    assert len({run.id for run in one.runs}) == len({r.fingerprint for r in one.runs}) == sum(sizes)


def _product(params: dict[str, list[object]]) -> int:
    size = 1
    for values in params.values():
        size *= len(values)
    return size


# -- predictions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "hours", "cost"),
    [
        ({"budget": {"mode": "iso_time", "limit": 30}, "price": 2}, 0.5, "1 USD"),
        ({"timeout": "2h", "price": 2, "params": {"world_size": 4}}, 2, "16 USD"),
        ({"timeout": "2h", "price": 2, "gpus": 0.5}, 2, "2 USD"),
        ({"timeout": "7h", "price": 2, "gpus": "1/7"}, 7, "1.999998 USD"),
        ({"budget": {"mode": "iso_cost", "limit": 5}}, None, "5 USD"),
        ({"budget": {"mode": "iso_cost", "limit": 5}, "price": 2}, 2.5, "5 USD"),
        ({"budget": {"mode": "iso_cost", "limit": 5}, "price": 2, "timeout": "1h"}, 1, "2 USD"),
        ({"budget": {"mode": "iso_time", "limit": 30}}, 0.5, None),
        ({"budget": {"mode": "iso_tokens", "limit": 30}, "price": 2}, None, None),
    ],
)
def test_the_tightest_limit_predicts_time_and_cost(
    entry: dict[str, Any], hours: float | None, cost: str | None
) -> None:
    (run,) = plan_of_entry(**entry).runs
    assert run.prediction.ns == (None if hours is None else hours * HOUR_NS)
    assert run.prediction.cost == (None if cost is None else Money.parse(cost))


# -- the command ----------------------------------------------------------------------------

GRID = """\
name: demo
price: 1.5
ceiling: 5 USD
grid:
  - name: small
    params: {lr: [0.1, 0.2], world_size: 8}
    budget: {mode: iso_time, limit: 30}
    env: {HF_TOKEN: hf_abcdefgh, A: "1"}
"""


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    return path


def test_plan_shows_runs_and_their_predicted_cost(grid_file: Path, tmp_path: Path) -> None:
    shown = outlay("sweep", "plan", grid_file, columns=200)
    assert shown.code == 0
    assert re.search(r"001_small_00 +lr=0.1 +iso_time 30m00s +8 +30m00s +6.00 USD", shown.out)
    assert "2 runs: 1h00m of training, 12.00 USD (estimated)" in shown.out
    assert "not enough for all" in shown.out
    assert sorted(tmp_path.iterdir()) == [grid_file]


def words_in(command: str) -> list[str]:
    """Return the words of a command as a shell splits them."""
    script = f"printf '%s\\n' {command.strip()}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_plan_shows_commands_that_fit_80_columns_and_a_shell_reads(grid_file: Path) -> None:
    shown = outlay("sweep", "plan", grid_file)
    assert "hf_abcdefgh" not in shown.out
    blocks = shown.out.split("\n\n")
    assert blocks[1].startswith("Commands ({sweep} is the sweep's directory)")
    written = [block.partition("\n")[::2] for block in blocks[2:4]]
    assert max(len(line) for _, text in written for line in text.splitlines()) <= 80
    planned = outlay("sweep", "plan", grid_file, "--json").json["runs"]
    assert [name for name, _ in written] == [run["id"] for run in planned]
    assert [words_in(text) for _, text in written] == [run["command"] for run in planned]


def test_a_word_wider_than_the_terminal_is_kept_whole() -> None:
    assert command_lines(["python", "x" * 90, "a b"], 80) == [
        "python \\", f"  {'x' * 90} \\", "  'a b'",
    ]  # fmt: skip


def test_plan_in_json_is_byte_identical_and_holds_no_secret(grid_file: Path) -> None:
    one, two = (outlay("sweep", "plan", grid_file, "--json").out for _ in range(2))
    assert one == two
    assert "hf_abcdefgh" not in one


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_plan_shows_no_secret_of_the_environment_that_a_parameter_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("grid: [{params: {login: '${oc.env:MY_API_KEY}'}}]")
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-from-env")
    shown = outlay("sweep", "plan", path, *options, columns=200)
    assert shown.code == 0
    assert "s3cr3t-from-env" not in shown.out
    assert "<redacted>" in shown.out


def test_plan_of_a_wrong_grid_exits_2_and_names_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("grid:\n- params: {a: []}\n")
    shown = outlay("sweep", "plan", path)
    assert shown.code == 2
    assert "g.yaml:2:" in shown.err
