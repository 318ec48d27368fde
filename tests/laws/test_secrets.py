"""No secret enters a file of a sweep, whatever the environment and the arguments are."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.clock import ManualClock
from outlay.sweep.grid import read_grid
from outlay.sweep.journal import Event, Journal
from outlay.sweep.launch import Place, environment_of
from outlay.sweep.plan import Plan
from outlay.sweep.planning import make_plan
from outlay.sweep.room import Share
from outlay.sweep.setup import create
from outlay.sweep.tasks import Tasks

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# Long and mixed, so that it stands nowhere by chance.
secrets = st.text(LETTERS, min_size=12, max_size=24).map(lambda text: f"Zq{text}9x")
names = st.sampled_from(
    ["MYSQL_PWD", "API_KEY", "apiKey", "HF_TOKEN", "db_password", "AccountKey", "client_secret",
     "SLACK_WEBHOOK", "AWS_SECRET_ACCESS_KEY", "auth", "PGPASSWORD", "access-token"]
)  # fmt: skip
unlisted = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12).map(
    lambda name: f"MINE_{name}"
)
forms = st.sampled_from(
    ["Server=x;Password={};", "https://h/?password={}&a=1", "Bearer {}", "https://u:{}@h/x",
     "https://hooks.example.org/services/{}", '{{"private_key": "{}"}}', "--token {}", "token={}",
     "curl -H 'Authorization: Bearer {}'", "AccountKey={}==;x", "--api-key={}"]
)  # fmt: skip


def plan_of(env: dict[str, str], words: list[str], params: dict[str, str]) -> Plan:
    grid = {
        "name": "g", "engine": "process", "arguments": "flags", "env": env,
        "entrypoint": ["true", *words], "grid": [{"params": params}],
    }  # fmt: skip
    text = msgspec.json.encode(grid).decode()
    return make_plan(read_grid(text, source="grid.json", default_name="g"))


def written(plan: Plan, environ: dict[str, str], root: Path) -> tuple[bytes, list[int]]:
    """Write a sweep's manifest and the journal of its first start; return their bytes and modes."""
    clock = ManualClock()
    create(plan, root, environ, clock, cwd=root)
    tasks = Tasks(plan=plan, root=root, cwd=root, environ=environ)
    task = tasks.make(plan.runs[0], "1", Share(port=1))
    command, env = tasks.without_secrets(task)
    journal = Journal(root, clock)
    journal.append(Event(t_ns=0, run=plan.runs[0].id, status="running", command=command, env=env))
    journal.close()
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) == 2
    modes = [stat.S_IMODE(path.stat().st_mode) for path in files]
    return b"".join(path.read_bytes() for path in files), modes


@given(
    inherited=st.dictionaries(names | unlisted, secrets, max_size=4),
    stated=st.dictionaries(names, secrets, max_size=3),
    spoken=st.lists(st.tuples(forms, secrets), max_size=3),
    flags=st.dictionaries(names.filter(str.isidentifier), secrets, max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_no_secret_is_written(
    inherited: dict[str, str],
    stated: dict[str, str],
    spoken: list[tuple[str, str]],
    flags: dict[str, str],
) -> None:
    words = [form.format(secret).replace("{", "{{").replace("}", "}}") for form, secret in spoken]
    plan = plan_of(stated, words, flags)
    with tempfile.TemporaryDirectory() as root:
        content, modes = written(plan, inherited, Path(root))
    every = [*inherited.values(), *stated.values(), *(s for _, s in spoken), *flags.values()]
    assert [secret for secret in every if secret.encode() in content] == []
    assert set(modes) == {0o600}


settings_stated = st.dictionaries(
    st.sampled_from(["LR", "DATA_ROOT", "MAX_TOKENS", "SEED", "MODE", "KEY_DIM"]),
    st.integers(min_value=0, max_value=10**9).map(str) | st.sampled_from(["fast", "/data/x"]),
    max_size=4,
)


@given(env=settings_stated)
@settings(max_examples=40, deadline=None)
def test_what_is_no_secret_is_kept(env: dict[str, str]) -> None:
    env = {name: value for name, value in env.items() if name != "KEY_DIM" or value.isdecimal()}
    plan = plan_of(env, ["--lr", "0.1", "data.root=/x"], {})
    place = Place(root="/s", run_dir="r", python="python", port=1)
    assert env.items() <= environment_of(plan.runs[0], place).items()
    with tempfile.TemporaryDirectory() as root:
        content, _ = written(plan, {}, Path(root))
    assert b'"--lr","0.1","data.root=/x"' in content
    assert [v for v in env.values() if v.encode() not in content] == []
