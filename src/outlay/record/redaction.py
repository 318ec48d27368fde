"""Keeping secrets out of what is written down: by their names, their forms and their values.

Pure. Of the inherited environment only variables on a list are written. What the grid states is
kept, unless its name or its form is that of a secret. A secret that was found under one name is
also removed wherever else its value stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

REDACTED: Final = "<redacted>"
STANDS_FOR: Final = "{outlay:"
"""How a word begins that names the variable in which a secret travels."""
_SECRET_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|PRIVATE|WEBHOOK|BEARER|AUTHORIZATION"
    r"|(?:API|ACCESS|ACCOUNT|SHARED|SIGNING|ENCRYPTION|MASTER|LICEN[CS]E)[_.-]?KEY"
    r"|(?:API|AUTH|ACCESS|SECRET)[_.-]?TOKENS|TOKEN(?![A-Z])(?!_(?:MIXER|TYPE|LEN|DIM|COUNT|DROP|MASK|EMB|PER))|CONN(?:ECTION)?[_.-]?STR"
    r"|OTEL[_.-][A-Z_.-]*HEADERS|[A-Z0-9][_.-]PWD|(?:^|[_.-])(?:KEY|KEYS|PASS|PW|AUTH|PAT|DSN|COOKIE|COOKIES|SALT|SIG"
    r"|SIGNATURE|OAUTH|JWT|PWD|UID_PWD)(?:[_.-]|$)",
    re.IGNORECASE,
)
"""A tokenizer has no token, and a number of tokens is none."""
_NEVER_A_NUMBER = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|(?:^|[_.-])(?:PASS|PW)(?:[_.-]|$)",
    re.IGNORECASE,
)
"""What is kept under these names may be a number; under the others it is a setting."""
_SETTING = re.compile(
    r"[+-]?[0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?(?:[kKMGBT]|tok|[num]?s|min|h|d)?"
    r"|true|false|yes|no|on|off|none|null|auto|\[[0-9., ]*\]", re.IGNORECASE
)  # fmt: skip
_SECRET_LOOK = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}"
    r"|(?:sk|pk|rk|ghp|gho|ghs|glpat|github_pat|xox[abeprs]|AKIA|ASIA|AIza|npm|pypi|dckr_pat"
    r"|wandb_v1|gsk|r8|rpa|nvapi|ya29\.|SG\.[A-Za-z0-9_-]{16,}\.)"
    r"[-_]?[A-Za-z0-9_-]{16,})"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s]+(?=@)")
_URL = re.compile(r"(https?://[^\s/\"']*)([^\s\"']*)", re.IGNORECASE)
_USER = re.compile(r"(?<!\S)(-u|--user)([= ])([^\s:]+):[^\s\"']+")
_BOT = re.compile(r"(?<=/bot)[0-9]+:[A-Za-z0-9_-]+")
_SCHEME = re.compile(
    r"\b(Bearer|Basic|Digest|Negotiate|AWS4-HMAC-SHA256)\s+[^\s\"',]+", re.IGNORECASE
)
_VALUE: Final = r"\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|\\\".*?\\\"|[^\s\"',;&|)}]+"
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_])([A-Za-z_][\w.-]{0,80})(?:(?:\\?[\"'])?\s*[=:]\s*|(?<=[\w])\s+)"
)
_VALUE_HERE = re.compile(_VALUE)
_A_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")
_SHORTEST_SECRET: Final = 4
_HARMLESS: Final = frozenset(["budget_limit_key", "pwd", "oldpwd"])
"""Names that sound secret and are the documented ones of something that is not."""
_RECORDED = re.compile(
    r"(?:CUDA|NVIDIA|NCCL|GLOO|UCX|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|OPENBLAS|NUMEXPR|XLA|JAX|"
    r"TF|ROCR|HIP|HSA|MIOPEN|HYDRA|MALLOC|LC)_[A-Z0-9_]+"
    r"|PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED|PYTHONUNBUFFERED|PYTHONOPTIMIZE"
    r"|VIRTUAL_ENV|CONDA_DEFAULT_ENV|CONDA_PREFIX|LANG|TZ|HOSTNAME|USER|HOME|SHELL|PWD|TMPDIR"
    r"|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|NNODES"
    r"|SLURM_(?:JOB_ID|JOB_NAME|JOB_PARTITION|JOB_NUM_NODES|NTASKS|NNODES|CPUS_PER_TASK|GPUS"
    r"|GPUS_ON_NODE|GPUS_PER_NODE|CLUSTER_NAME|ARRAY_JOB_ID|ARRAY_TASK_ID|RESTART_COUNT)"
    r"|HF_HOME|HF_DATASETS_CACHE|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
    r"|WANDB_MODE|WANDB_PROJECT|OUTLAY_(?:HOME|PRICE|GPUS|BUDGET|HEARTBEAT|DISABLED)"
)
"""Which variables of the inherited environment are written down: those that change what is computed
or where, and of which none is known to hold a secret."""


@lru_cache(maxsize=4096)  # The same variables again for every attempt that is started.
def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name usually holds a secret."""
    return name.lower() not in _HARMLESS and _SECRET_NAME.search(name) is not None


def is_secret(name: str, value: str) -> bool:
    """Say whether a value under this name is a secret: ``max_token=512`` is none."""
    if not is_secret_name(name) or value.startswith(STANDS_FOR):
        return False
    return bool(value) and (
        _NEVER_A_NUMBER.search(name) is not None or _SETTING.fullmatch(value) is None
    )


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an inherited environment that may be written down at all."""
    return {
        name: value
        for name, value in environment.items()
        if _RECORDED.fullmatch(name) and not is_secret_name(name)
    }


class Redactor:
    """Removes the secrets of some environments from anything that is written."""

    def __init__(self, environments: Iterable[Mapping[str, str]]) -> None:
        values = {
            value
            for environment in environments
            for name, value in environment.items()
            if is_secret_name(name)
            and len(value) >= _SHORTEST_SECRET
            and _SETTING.fullmatch(value) is None
        }
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _SECRET_LOOK.sub(REDACTED, text)
        text = _IN_ADDRESS.sub(REDACTED, text)
        text = _URL.sub(_without_hook, text)
        text = _BOT.sub(REDACTED, text)
        text = _USER.sub(rf"\1\2\3:{REDACTED}", text)
        text = _SCHEME.sub(rf"\1 {REDACTED}", text)
        text = _without_values(text)
        # Variables may hold bytes that are no UTF-8, and what is written is.
        return text if text.isascii() else text.encode(errors="backslashreplace").decode()

    def command(self, words: Iterable[str]) -> list[str]:
        """Return a command without secrets: a word behind ``--token`` is one, too."""
        shown: list[str] = []
        flag = ""
        for word in words:
            is_value = not word.startswith("--") and is_secret(flag, word)
            shown.append(REDACTED if is_value else self.text(word))
            found = _A_FLAG.fullmatch(word)
            flag = found[1] if found else ""
        return shown

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables without the values that are secret."""
        return {
            self.text(name): REDACTED if is_secret(name, value) else self.text(value)
            for name, value in sorted(environment.items())
        }

    def data(self, value: Any) -> Any:
        """Return JSON-like data without secrets, in keys and values."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(key)): self._item(key, item) for key, item in value.items()}
            case list() | tuple():
                words: Sequence[Any] = value
                if all(isinstance(word, str) for word in words):
                    return self.command(words)
                return [self.data(item) for item in words]
            case _:
                return value

    def _item(self, key: object, item: Any) -> Any:
        if isinstance(item, str) and is_secret(str(key), item):
            return REDACTED
        if isinstance(item, list | tuple) and is_secret_name(str(key)):
            return [self._item(key, each) for each in item]
        return self.data(item)


def _without_values(text: str) -> str:
    """Return a text without what follows secret names: ``name=value``, ``--name value``."""
    parts: list[str] = []
    at = 0
    for found in _NAMED.finditer(text):
        if found.start() < at or not is_secret_name(found[1]):
            continue
        if not _binds(text, found):
            continue
        value = _VALUE_HERE.match(text, found.end())
        bare = "" if value is None else value[0].strip("\"'\\")
        if value is None or REDACTED in bare or not is_secret(found[1], bare):
            continue
        parts += [text[at : found.end()], value[0].replace(bare, REDACTED, 1)]
        at = value.end()
    return "".join([*parts, text[at:]])


def _without_hook(url: re.Match[str]) -> str:
    """Return the address of a webhook without its path, which is its secret."""
    is_hook = "hook" in url[0].lower() and len(url[2]) > 1
    return f"{url[1]}/{REDACTED}" if is_hook else url[0]


def _binds(text: str, found: re.Match[str]) -> bool:
    """Say whether a name is followed by its value: behind a sign, or a blank after a flag."""
    if found[0].rstrip()[-1] in "=:":
        return True
    is_flag = text.endswith("-", 0, found.start())
    return is_flag and not text.startswith("-", found.end())
