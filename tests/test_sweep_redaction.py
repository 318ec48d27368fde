"""What is kept out of the files of a sweep, and what must not be mistaken for a secret."""

from __future__ import annotations

import pytest

from outlay.sweep.redaction import REDACTED, Redactor, is_secret_name


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "accessToken", "API_TOKENS", "db_password", "SLACK_WEBHOOK"],
)
def test_a_name_that_usually_holds_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["tokenizer", "TOKENIZERS_PARALLELISM", "tokenization", "monkey", "bypass", "optim.lr"]
)
def test_a_name_that_only_sounds_like_one_is_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-0123456789abcdef", "key=hf_abcdefghijklmnopqrstuvwxyz", "ghp_0123456789abcdef",
        "x_AKIAIOSFODNN7EXAMPLE", "postgres://user:hunter22@host/db",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_removed(text: str) -> None:
    assert REDACTED in Redactor([]).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "task_image_classification_large", "/disk-with-all-of-the-data", "mask-generation-pipeline",
        "hf-internal-testing/tiny-random-gpt2",
    ],
)  # fmt: skip
def test_a_word_with_the_letters_of_a_secret_inside_stays(text: str) -> None:
    assert Redactor([]).text(text) == text


def test_a_secret_is_removed_wherever_its_value_stands() -> None:
    redact = Redactor([{"API_KEY": "s3cr3t"}])
    assert redact.data({"url": "https://host/s3cr3t", "deep": [{"a": "s3cr3t!"}]}) == {
        "url": f"https://host/{REDACTED}", "deep": [{"a": f"{REDACTED}!"}],
    }  # fmt: skip


def test_a_switch_under_a_secret_name_takes_no_word_out_of_other_texts() -> None:
    redact = Redactor([{"USE_AUTH": "false"}])
    assert redact.text("hydra.job.chdir=false") == "hydra.job.chdir=false"
