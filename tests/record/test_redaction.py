"""Secrets that are removed from records, and settings that must not be taken for secrets."""

from __future__ import annotations

import pytest

from outlay.record.redaction import REDACTED, Redactor, is_secret_name, recorded


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "accessToken", "API_TOKENS", "db_password", "SLACK_WEBHOOK"],
)
def test_secret_names_are_recognised(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["tokenizer", "TOKENIZERS_PARALLELISM", "tokenization", "monkey", "bypass", "optim.lr"]
)
def test_similar_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-0123456789abcdef", "key=hf_abcdefghijklmnopqrstuvwxyz", "ghp_0123456789abcdef",
        "x_AKIAIOSFODNN7EXAMPLE", "postgres://user:hunter22@host/db",
    ],
)  # fmt: skip
def test_text_in_the_form_of_a_secret_is_redacted(text: str) -> None:
    assert REDACTED in Redactor([]).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "task_image_classification_large", "/disk-with-all-of-the-data", "mask-generation-pipeline",
        "hf-internal-testing/tiny-random-gpt2",
    ],
)  # fmt: skip
def test_words_that_contain_a_secret_prefix_are_kept(text: str) -> None:
    assert Redactor([]).text(text) == text


def test_a_secret_is_removed_wherever_its_value_occurs() -> None:
    redact = Redactor([{"API_KEY": "s3cr3t"}])
    assert redact.data({"url": "https://host/s3cr3t", "deep": [{"a": "s3cr3t!"}]}) == {
        "url": f"https://host/{REDACTED}", "deep": [{"a": f"{REDACTED}!"}],
    }  # fmt: skip


def test_boolean_under_a_secret_name_is_not_redacted_elsewhere() -> None:
    redact = Redactor([{"USE_AUTH": "false"}])
    assert redact.text("hydra.job.chdir=false") == "hydra.job.chdir=false"


@pytest.mark.parametrize(
    "form",
    [
        "Server=db;Password={};Database=x", "AccountName=a;AccountKey={};Suffix=x",
        "https://host/x?password={}&page=1", "postgres://host/db?sslpassword={}",
        "https://hooks.slack.com/services/{}", "https://discord.com/api/webhooks/1/{}",
        "Authorization: Bearer {}", "Bearer {}", "python x.py --token {} --lr 1", "--api-key={}",
        "MYSQL_PWD={} mysqldump", '{{"private_key": "{}"}}', '{{\\"password\\": \\"{}\\"}}',
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "curl -u me:{} https://host", "--user=me:{}", "https://host/bot12:{}/send",
        "OTEL_EXPORTER_OTLP_HEADERS=x-team={}", "--otel-exporter-otlp-headers x-team={}",
        "postgresql+psycopg2://u:{}@h", "gsk_0123{}", "wandb_v1_0123{}", "nvapi-0123{}",
        "mysql -u root -p {}", "tool -t {} run", "tool -p 'me:{}'", "psql -c \"password {}\"",
        "ALTER USER me WITH PASSWORD '{}'", "password {}", "wget --user me:{}",
        "password: '{}'", "https://me:{}@host/db", "https://me:p@{}@host/db", "sig={}",
    ],
)  # fmt: skip
def test_secrets_are_recognised_by_form(form: str) -> None:
    shown = Redactor([]).text(form.format("Zq9secretZq9"))
    assert "Zq9secretZq9" not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--token", "{}"],
        ["--api-key", "{}"],
        ["-password", "{}"],
        ["--db.password", "{}"],
        ["-p", "{}"],
        ["-t", "{}"],
    ],
)
def test_the_word_after_a_secret_flag_is_removed(words: list[str]) -> None:
    shown = Redactor([]).command([word.format("Zq9secretZq9") for word in [*words, "--lr", "0.1"]])
    assert shown == [words[0], REDACTED, "--lr", "0.1"]


@pytest.mark.parametrize("flag", ["-p", "-t", "-u", "--user"])
@pytest.mark.parametrize("password", ["hunter2", "Tr0ub4dor&3", "correct-horse"])
def test_the_password_of_a_user_after_a_flag_is_removed(flag: str, password: str) -> None:
    shown = Redactor([]).command(["curl", flag, f"me:{password}", "https://host"])
    assert shown == ["curl", flag, f"me:{REDACTED}", "https://host"]


@pytest.mark.parametrize("flag", ["-p", "-t"])
@pytest.mark.parametrize("password", ["hunter2", "Tr0ub4dor&3", "s3cret!", "0123abcd4567"])
def test_what_looks_like_a_password_after_a_flag_is_removed(flag: str, password: str) -> None:
    assert Redactor([]).command(["tool", flag, password]) == ["tool", flag, REDACTED]


def test_a_quoted_password_is_removed_from_a_word() -> None:
    words = ["tool", "password hunter2", "--sql", "CREATE USER me PASSWORD 'hunter2' LOGIN"]
    shown = ["tool", f"password {REDACTED}", "--sql", f"CREATE USER me PASSWORD '{REDACTED}' LOGIN"]
    assert Redactor([]).command(words) == shown


@pytest.mark.parametrize(
    "text",
    [
        "-p 8080", "-p 8080:80", "-p 127.0.0.1:80:80", "-p gpu", "-p a100", "-p gpu-h100",
        "-p rtx4090", "-t 2-00:00:00", "-t 30m", "-t team/image:v1.2", "-t image:latest",
        "-t v1.2.3-rc1", "-u train2.py", "-u -m train", "-p data/part1", "--user ubuntu2204",
        "the password is missing",
        "max_tokens=2048", "tokens=50k", "--max-tokens 512", "model.key_dim=64", "lr=0.1",
        "special_tokens=[a,b]", "token_mixer=attention", "hydra.job.chdir=false",
        "data.root=s3://bucket/key", "https://example.org/data.tar?part=1", "PWD=/data",
        "train.save_dir=/a/b", "use_auth=false", "-u train.py", "r8_augment", "--user me",
        "model=gsk_small", "/robots/bot1/run",
    ],
)  # fmt: skip
def test_settings_are_not_redacted(text: str) -> None:
    assert Redactor([]).text(text) == text
    assert Redactor([]).command(text.split()) == text.split()


def test_only_listed_variables_of_the_environment_are_recorded() -> None:
    environment = {
        "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "7", "SLURM_JWT": "x",
        "MY_OWN": "x", "MYSQL_PWD": "x", "HYDRA_API_KEY": "x", "DATABASE_URL": "x",
    }  # fmt: skip
    assert set(recorded(environment)) == {"PATH", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"}


@pytest.mark.parametrize(
    "unit",
    [
        "a=",
        "-p ",
        "password ",
        "password '",
        "-token ",
        "Bearer ",
        "https://",
        "eyJ",
        "a.",
        'key="',
    ],
)
def test_redacting_a_long_text_takes_linear_time(unit: str) -> None:
    assert Redactor([]).text(unit * 20_000)
