"""Parses a budget from a value, a dict, text, a file, the environment, or Hydra.

All of them are reduced to one block of keys, which ``outlay.budget.terms`` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.budget.limits import MODES, dimension_for
from outlay.budget.terms import DISABLED, SHOWN_KEYS, Budget, is_limit_key, refuse_bare_time
from outlay.decoding import BadDocument, decode, parse_yaml, read_text
from outlay.errors import InvalidValue, choices

VARIABLE: Final = "OUTLAY_BUDGET"
_FLAGS = ("enabled", "allow_change", "pauses")
_BLOCK_KEYS: Final = ("mode", "charge", *_FLAGS)
_EXPECTED = (
    'a budget such as "iso_cost=5 USD", "iso_time=2h" or outlay.iso_time("2h"), a dict or JSON '
    'object with "mode" and its limit, or the path of a YAML or JSON file'
)


def read_budget(value: object) -> Budget | None:
    """Return a budget from any of its forms; None if it is not enabled.

    A block on its own is enabled unless it has ``enabled: false``. A whole configuration
    (``{"runtime": {"budget": {...}}}``) is enabled only with ``enabled: true``.

    Raises:
        InvalidValue: It is not valid; the message names the key and the valid ones.
    """
    stated = read_stated(value)
    return None if stated is DISABLED else stated


def read_stated(value: object) -> Budget | None:
    """Return the same as ``read_budget``, but ``DISABLED`` for an explicitly disabled budget."""
    name = "budget"
    match value:
        case None | Budget():
            return value
        case Path():
            return _from_tree(_load_yaml(value, name=name), name=name)
        case str():
            return _from_text(value, name=name)
        case _:
            plain = _plain(value, name=name)
            if not isinstance(plain, Mapping):
                raise InvalidValue(name, value, _EXPECTED)
            return _from_tree(plain, name=name)


def stated_in_environ(environ: Mapping[str, str]) -> Budget | None:
    """Return the budget of ``OUTLAY_BUDGET``, like ``read_stated``; None if it is not set."""
    text = environ.get(VARIABLE, "").strip()
    return _from_text(text, name=VARIABLE) if text else None


def as_text(budget: Budget) -> str:
    """Return the budget as one line of JSON, for ``OUTLAY_BUDGET``."""
    block: dict[str, object] = {"mode": budget.mode, "allow_change": budget.allow_change}
    if budget.pauses:
        block["pauses"] = True
    if budget.stated_charge is not None:
        block["charge"] = budget.stated_charge
    limits = {**budget.limits, "steps_per_epoch": budget.steps_per_epoch}
    return msgspec.json.encode(block | limits).decode()


def _from_text(text: str, *, name: str) -> Budget | None:
    text = text.strip()
    if text.startswith("{"):
        return _from_tree(_decode_json(text, name=name), name=name)
    if "\n" not in text and "=" in text:
        return _from_pairs(text, name=name)
    if "\n" not in text and text.endswith((".yaml", ".yml", ".json")):
        return _from_tree(_load_yaml(Path(text), name=name), name=name)
    return _from_tree(_parse_yaml(text, name=name), name=name)


def _from_pairs(text: str, *, name: str) -> Budget | None:
    """Parse ``iso_time=2h`` or ``iso_tokens=50k,max_cost_usd=5``."""
    block: dict[str, object] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (equals and key and value):
            raise InvalidValue(name, text, _EXPECTED)
        if key in MODES:
            refuse_bare_time(key, value)
            block |= {"mode": key, dimension_for(key, value).key: value}
        else:
            block[key] = value
    return _from_block(block, name=name)


def _from_tree(tree: Mapping[str, Any], *, name: str, whole: bool = False) -> Budget | None:
    for parent in ("runtime", "budget"):
        inner = tree.get(parent)
        if isinstance(inner, Mapping):
            return _from_tree(inner, name=name, whole=True)
    if whole and "enabled" not in tree:
        return None  # Not enabled, and not disabled explicitly either.
    return _from_block(tree, name=name)


def _from_block(block: Mapping[str, Any], *, name: str) -> Budget | None:
    flags = {key: _flag(block.get(key), key) for key in _FLAGS}
    if "enabled" in block and not flags["enabled"]:
        return DISABLED
    if flags["allow_change"] and block.keys() <= set(_FLAGS):
        return DISABLED  # A change to nothing.
    for key in block:
        if key not in _BLOCK_KEYS and not is_limit_key(key):
            known = MODES if str(key).startswith("iso_") else (*_BLOCK_KEYS, *SHOWN_KEYS)
            raise InvalidValue(f"{name} key", key, choices(known))
    if "mode" not in block:
        raise InvalidValue(f"{name} mode", None, choices(MODES))
    return Budget.of(
        str(block["mode"]),
        {key: value for key, value in block.items() if is_limit_key(key)},
        charge=None if block.get("charge") is None else str(block["charge"]),
        allow_change=flags["allow_change"],
        pauses=flags["pauses"],
    )


def _flag(value: object, key: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False, "none": False}
    word = str(value).lower()
    if word not in words:
        raise InvalidValue(key, value, "true or false")
    return words[word]


def _decode_json(text: str, *, name: str) -> dict[str, Any]:
    try:
        return decode(text, dict[str, Any])
    except BadDocument as error:
        raise InvalidValue(name, text, f"{_EXPECTED} ({error})") from None


def _load_yaml(path: Path, *, name: str) -> Mapping[str, Any]:
    try:
        text = read_text(path)
    except (OSError, BadDocument) as error:
        raise InvalidValue(name, str(path), f"a file that can be read ({error})") from None
    return _parse_yaml(text, name=name)


def _parse_yaml(text: str, *, name: str) -> Mapping[str, Any]:
    # OmegaConf reads YAML as Hydra does, interpolations included.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        stated = parse_yaml(text).tree
        if not isinstance(stated, dict):  # A text would be read once more.
            raise InvalidValue(name, text, _EXPECTED)
        tree = _plain(OmegaConf.create(stated), name=name)
    except (BadDocument, OmegaConfBaseException) as error:
        raise InvalidValue(name, text, f"{_EXPECTED} ({error})") from None
    if not isinstance(tree, Mapping) or set(tree) == {text.strip()}:
        raise InvalidValue(name, text, _EXPECTED)
    return tree


def _plain(value: object, *, name: str) -> object:
    """Return an OmegaConf node as plain data, interpolations resolved; anything else unchanged."""
    if not type(value).__module__.startswith("omegaconf"):
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(value, resolve=True)
    except OmegaConfBaseException as error:
        raise InvalidValue(name, str(value), f"{_EXPECTED} ({error})") from None
