"""No secret enters a file of a sweep, whatever the environment and the arguments are."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import in_process, outlay
from ledgers import scratch_dir
from outlay import run
from outlay.clock import ManualClock
from outlay.sweep.grid.grid import read_grid
from outlay.sweep.plan.launch import Place, environment_of
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.devices import Tasks
from outlay.sweep.state.manifest import Journal
from outlay.sweep.state.outcomes import Event
from outlay.sweep.state.setup import create

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# Long and mixed, so that it stands nowhere by chance.
secrets = st.text(LETTERS, min_size=12, max_size=24).map(lambda text: f"Zq{text}9x")
names = st.sampled_from(
    ["MYSQL_PWD", "API_KEY", "apiKey", "HF_TOKEN", "db_password", "AccountKey", "client_secret",
     "SLACK_WEBHOOK", "AWS_SECRET_ACCESS_KEY", "auth", "PGPASSWORD", "access-token",
     "OTEL_EXPORTER_OTLP_HEADERS", "WANDB_API_KEY", "HUGGING_FACE_HUB_TOKEN", "AWS_SESSION_TOKEN",
     "SENTRY_DSN", "MLFLOW_TRACKING_PASSWORD", "KAGGLE_KEY", "SLACK_WEBHOOK_URL"]
)  # fmt: skip
unlisted = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12).map(
    lambda name: f"MINE_{name}"
)
forms = st.sampled_from(
    ["Server=x;Password={};", "https://h/?password={}&a=1", "Bearer {}", "https://u:{}@h/x",
     "https://hooks.example.org/services/{}", '{{"private_key": "{}"}}', "--token {}", "token={}",
     "curl -H 'Authorization: Bearer {}'", "AccountKey={}==;x", "--api-key={}",
     "postgresql://u:{}@h", "postgresql+psycopg2://u:{}@h/db", "redis://:{}@h:6379/0",
     "mongodb+srv://u:{}@h/?w=1", "https://{}@o1.example.org/2", "curl -u me:{} https://h",
     "OTEL_EXPORTER_OTLP_HEADERS=x-team={}", "https://h/bot12:{}/send", "AKIA{}", "wandb_v1_{}",
     "https://h/k?X-Amz-Signature={}&a=1", "https://discord.com/api/webhooks/1/{}",
     '{{"type": "service_account", "private_key_id": "{}"}}',
     "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----"]
)  # fmt: skip


def plan_of(env: dict[str, str], words: list[str], params: dict[str, str]) -> SweepPlan:
    grid = {
        "name": "g", "engine": "process", "arguments": "flags", "env": env,
        "entrypoint": ["true", *words], "grid": [{"params": params}],
    }  # fmt: skip
    text = msgspec.json.encode(grid).decode()
    return make_plan(read_grid(text, source="grid.json", default_name="g"))


def written(plan: SweepPlan, environ: dict[str, str], root: Path) -> tuple[bytes, list[int]]:
    """Write a sweep's manifest and the journal of its first start; return their bytes and modes."""
    clock = ManualClock()
    create(plan, root, environ, clock, cwd=root)
    tasks, run = Tasks(plan=plan, root=root, cwd=root, environ=environ), plan.runs[0]
    task = tasks.make(run, "1", replace(tasks.place(run), port=1))
    command, env = tasks.without_secrets(task)
    journal = Journal(root)
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
    with scratch_dir() as root:
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
def test_settings_are_written_unredacted(env: dict[str, str]) -> None:
    env = {name: value for name, value in env.items() if name != "KEY_DIM" or value.isdecimal()}
    plan = plan_of(env, ["--lr", "0.1", "data.root=/x"], {})
    place = Place(directory="/s/r", port=1)
    assert env.items() <= environment_of(plan.runs[0], place).items()
    with scratch_dir() as root:
        content, _ = written(plan, {}, Path(root))
    assert b'"--lr","0.1","data.root=/x"' in content
    assert [v for v in env.values() if v.encode() not in content] == []


SECRET = "Zq7hunterhunter29x"
FORMS = ["--token={}", "postgresql://u:{}@h", "https://hooks.example.org/services/{}"]
VARIABLES = ["HF_TOKEN", "WANDB_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "SENTRY_DSN"]
SECRET_VARIABLES = dict.fromkeys(VARIABLES, SECRET) | {"DATABASE_URL": FORMS[1].format(SECRET)}


def files_with_the_secret(*folders: Path) -> list[str]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def fail_to_log_in(run_dir: Path) -> None:
    with run("m", dir=run_dir, price=1) as training:
        for _ in training.steps([1, 2, 3]):
            pass
        raise RuntimeError(f"cannot log in with {SECRET}")


@pytest.fixture
def secret_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRET_VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secret_environment")
def test_a_run_keeps_nothing_of_its_environment_and_its_errors(
    tmp_path: Path, private_home: Path
) -> None:
    with pytest.raises(RuntimeError):
        fail_to_log_in(tmp_path / "run")
    assert in_process("report", tmp_path / "run").code == 0
    assert in_process("runs").code == 0
    assert files_with_the_secret(tmp_path / "run", private_home) == []


@pytest.mark.usefixtures("secret_environment")
def test_a_command_that_is_recorded_leaves_none_of_its_arguments(
    tmp_path: Path, private_home: Path
) -> None:
    words = [form.format(SECRET) for form in FORMS]
    ended = outlay(
        "exec", "--dir", tmp_path / "run", "--", "true", *words, "--password", SECRET
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert in_process("report", tmp_path / "run").code == 0
    assert files_with_the_secret(tmp_path / "run", private_home) == []


@pytest.mark.usefixtures("secret_environment")
def test_a_sweep_its_pages_and_its_tables_hold_no_secret(
    tmp_path: Path, private_home: Path
) -> None:
    """All but the grid, which the user wrote, and what a run itself prints."""
    grid = tmp_path / "grid.json"
    stated = {
        "name": "g", "engine": "process", "arguments": "flags", "env": SECRET_VARIABLES,
        "entrypoint": ["true", *(form.format(SECRET) for form in FORMS)],
        "grid": [{"params": {"api_key": SECRET, "lr": 0.1}}],
    }  # fmt: skip
    grid.write_bytes(msgspec.json.encode(stated))
    planned = in_process("sweep", "plan", grid, "--commands")
    assert SECRET not in planned.out + planned.err
    folder = tmp_path / "sweep"
    ran = outlay("sweep", "run", grid, "--output-dir", folder, "--yes")
    assert ran.code == 0, ran.err
    assert SECRET not in ran.out + ran.err
    assert in_process("sweep", "aggregate", folder, "--allow-missing").code == 0
    assert files_with_the_secret(folder, private_home) == []
