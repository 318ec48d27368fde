"""Configurations, commands and environments as recorded: plain data without secrets.

Pure. Secrets are recognised by name, by form and by value. Of the inherited environment only listed
variables are recorded. Values that a user states are recorded unless their name or form is that of
a secret. The value of a secret found under one name is removed everywhere else too.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from outlay.errors import InvalidValue

REDACTED: Final = "<redacted>"
STANDS_FOR: Final = "{outlay:"
"""Prefix of a word that names the variable through which a secret is passed."""
_SECRET_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|PRIVATE|WEBHOOK|BEARER|AUTHORIZATION"
    r"|(?:API|ACCESS|ACCOUNT|SHARED|SIGNING|ENCRYPTION|MASTER|LICEN[CS]E)[_.-]?KEY"
    r"|(?:API|AUTH|ACCESS|SECRET)[_.-]?TOKENS|TOKEN(?![A-Z])(?!_(?:MIXER|TYPE|LEN|DIM|COUNT|DROP|MASK|EMB|PER))|CONN(?:ECTION)?[_.-]?STR"
    r"|OTEL[_.-][A-Z_.-]*HEADERS|[A-Z0-9][_.-]PWD|(?:^|[_.-])(?:KEY|KEYS|PASS|PW|AUTH|PAT|DSN|COOKIE|COOKIES|SALT|SIG"
    r"|SIGNATURE|OAUTH|JWT|PWD|UID_PWD)(?:[_.-]|$)",
    re.IGNORECASE,
)
"""Does not match ``tokenizer`` or numbers of tokens."""
_NEVER_A_NUMBER = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|(?:^|[_.-])(?:PASS|PW)(?:[_.-]|$)",
    re.IGNORECASE,
)
"""Names whose secrets may be numbers; a number under any other name is a setting."""
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
_BRIEF = re.compile(r"(?<!\S)(-[ptu]|--user)(=| +)([\"']?)([^\s\"']+)")
"""Flags that take a password, a token or ``user:password`` in one program and a setting, a port or
a partition in another: the form of their value decides."""
_PASSWORD_FORM = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9!#$%^&*+~@])[^\s/]{6,}")
_NO_PASSWORD = re.compile(
    r"latest|v?[0-9]+(?:\.[0-9]+)+.*|.*\.[a-z][a-z0-9]{0,4}"
    r"|(?:[a-z]+[-_])*(?:[abhlptv]|gb|gh|mi|rtx|tpu-?v)[0-9]{1,4}[a-z]{0,3}(?:[-_][a-z0-9]+)*",
    re.IGNORECASE,
)
"""Versions, files and GPUs: the tag of an image, a script, a partition."""
_SPOKEN = re.compile(
    r"(?P<open>^|[\"'])(?P<name>\s*(?:password|passwd|passphrase|passcode)\s+)[^\s\"']+(?=\s*(?:$|[\"']))"
    r"|(?<!\w)(?P<named>(?:password|passwd|passphrase|passcode)\s+(?P<quote>[\"']))[^\s\"']+(?=(?P=quote))",
    re.IGNORECASE,
)
"""``password X`` as a whole argument or between quotes, and ``password 'X'``."""
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
"""Documented names that look secret but are not."""
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
"""Variables of the inherited environment that are recorded: they change what is computed or where,
and none is known to hold a secret."""


@lru_cache(maxsize=4096)  # Every attempt has the same variables.
def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret."""
    return name.lower() not in _HARMLESS and _SECRET_NAME.search(name) is not None


def is_secret(name: str, value: str) -> bool:
    """Return whether a value under this name is a secret; ``max_token=512`` is not."""
    if not is_secret_name(name) or value.startswith(STANDS_FOR):
        return False
    return bool(value) and (
        _NEVER_A_NUMBER.search(name) is not None or _SETTING.fullmatch(value) is None
    )


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an inherited environment that may be recorded."""
    return {
        name: value
        for name, value in environment.items()
        if _RECORDED.fullmatch(name) and not is_secret_name(name)
    }


class Redactor:
    """Removes the secrets of some environments from anything that is recorded."""

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
        return _without_forms(text if self._known is None else self._known.sub(REDACTED, text))

    def command(self, words: Iterable[str]) -> list[str]:
        """Return a command without secrets; the word after ``--token`` is one."""
        shown: list[str] = []
        flag = ""
        for word in words:
            name = flag.lstrip("-")
            is_value = not word.startswith("--") and is_secret(name, word)
            brief = _brief(flag, word) if flag in _BRIEF_FLAGS else word
            shown.append(REDACTED if is_value else brief if brief != word else self.text(word))
            flag = word if _A_FLAG.fullmatch(word) else ""
        return shown

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with secret values redacted."""
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


@lru_cache(maxsize=1024)  # The runs of a sweep have most of their words and variables in common.
def _without_forms(text: str) -> str:
    """Redact what has the form of a secret."""
    text = _SECRET_LOOK.sub(REDACTED, text)
    text = _IN_ADDRESS.sub(REDACTED, text)
    text = _URL.sub(_without_hook, text)
    text = _BOT.sub(REDACTED, text)
    text = _BRIEF.sub(
        lambda found: found[1] + found[2] + found[3] + _brief(*found.group(1, 4)), text
    )
    text = _SPOKEN.sub(_without_spoken, text)
    text = _SCHEME.sub(rf"\1 {REDACTED}", text)
    text = _without_values(text)
    # Variables may hold bytes that are not UTF-8; records must be UTF-8.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _without_values(text: str) -> str:
    """Redact the values after secret names: ``name=value``, ``--name value``."""
    parts: list[str] = []
    at = 0
    for found in _NAMED.finditer(text):
        if found.start() < at or not is_secret_name(found[1]) or not _has_value(text, found):
            continue
        value = _VALUE_HERE.match(text, found.end())
        bare = "" if value is None else value[0].strip("\"'\\")
        if value is None or REDACTED in bare or not is_secret(found[1], bare):
            continue
        parts += [text[at : found.end()], value[0].replace(bare, REDACTED, 1)]
        at = value.end()
    return "".join([*parts, text[at:]])


_BRIEF_FLAGS: Final = frozenset(["-p", "-t", "-u", "--user"])


def _brief(flag: str, value: str) -> str:
    """Return the value of one of ``_BRIEF_FLAGS``, redacted if it has the form of a secret."""
    user, colon, password = value.partition(":")
    is_user = flag in ("-u", "--user")
    if value.startswith("-") or REDACTED in value:
        return value
    if colon:
        is_pair = user[:1].isalpha() and "/" not in value and _SETTING.fullmatch(password) is None
        hides = password and (is_user or (is_pair and not _NO_PASSWORD.fullmatch(password)))
        return f"{user}:{REDACTED}" if hides else value
    if _SETTING.fullmatch(value) or _NO_PASSWORD.fullmatch(value) or is_user:
        return value  # A token in place of a user has a prefix, which is recognised anywhere.
    return REDACTED if _PASSWORD_FORM.fullmatch(value) else value


def _without_spoken(found: re.Match[str]) -> str:
    """Redact the password of ``password X``."""
    return f"{found['named'] or found['open'] + found['name']}{REDACTED}"


def _without_hook(url: re.Match[str]) -> str:
    """Redact the path of a webhook's URL, which is its secret."""
    is_hook = "hook" in url[0].lower() and len(url[2]) > 1
    return f"{url[1]}/{REDACTED}" if is_hook else url[0]


def _has_value(text: str, found: re.Match[str]) -> bool:
    """Return whether a name is followed by its value: after ``=`` or ``:``, or after a flag."""
    if found[0].rstrip()[-1] in "=:":
        return True
    is_flag = text.endswith("-", 0, found.start())
    return is_flag and not text.startswith("-", found.end())


# Configurations and commands

MOST_ENTRIES: Final = 2_000
LONGEST_TEXT: Final = 2_000
DEEPEST: Final = 12
MOST_WORDS: Final = 200
CONFIGURATION_NOTE: Final = "configuration"
"""The note that holds a configuration stated after the run was opened."""
_CUT: Final = "…"
_EXPECTED = "a mapping, an OmegaConf node, a dataclass or an argparse namespace"


def recorded_config(config: object, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration as JSON-like data without secrets; {} for None.

    A value that JSON does not have becomes its text.

    Raises:
        InvalidValue: It has no named settings.
    """
    if config is None:
        return {}
    settings = _settings(config)
    if settings is None:
        raise InvalidValue("config", type(config).__name__, _EXPECTED)
    plain = _PlainData().convert(settings, DEEPEST)
    redacted: dict[str, Any] = Redactor([environ]).data(plain)
    return redacted


def recorded_command(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command without secrets; ``…`` marks where it was cut."""
    redacted = Redactor([environ]).command(words[:MOST_WORDS])
    shown = (word if len(word) <= LONGEST_TEXT else word[:LONGEST_TEXT] + _CUT for word in redacted)
    return (*shown, *([_CUT] if len(words) > MOST_WORDS else []))


def _settings(value: object) -> Mapping[Any, Any] | None:
    """Return an object's named settings as a mapping; None if it has none."""
    if type(value).__module__.startswith("omegaconf"):
        omegaconf: Any = sys.modules["omegaconf"]  # Loaded, since the value is an instance of it.
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True)
        except omegaconf.errors.OmegaConfBaseException:  # An interpolation without a target.
            value = omegaconf.OmegaConf.to_container(value, resolve=False)
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    if type(value).__name__ == "Namespace":
        return vars(value)
    return None


class _PlainData:
    """Converts settings to JSON-like data, up to ``MOST_ENTRIES`` entries."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def convert(self, value: object, depth: int) -> Any:
        self._left -= 1
        settings = _settings(value)
        match value:
            case _ if depth == 0:
                return _text(value)
            case _ if settings is not None:
                pairs = ((_text(key), item) for key, item in settings.items())
                return {key: self._item(key, item, depth) for key, item in pairs if self._left > 0}
            case None | bool():
                return value
            case int() if type(value) is int and abs(value) < 2**62:
                return value
            case float() if type(value) is float and math.isfinite(value):
                return value
            case Sequence() if not isinstance(value, str | bytes | bytearray):
                return [self.convert(item, depth - 1) for item in value if self._left > 0]
            case _:
                return _text(value)

    def _item(self, key: str, item: object, depth: int) -> Any:
        # A number can be a secret, such as the value of ``password``.
        is_number = isinstance(item, int | float) and not isinstance(item, bool)
        if is_number and is_secret(key, _text(item)):
            return REDACTED
        return self.convert(item, depth - 1)


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - an object's __str__ is foreign code
        return f"<{type(value).__name__}>"
    return text.encode(errors="replace").decode()[:LONGEST_TEXT]
