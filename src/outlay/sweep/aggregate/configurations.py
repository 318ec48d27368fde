"""Configurations of a sweep: which runs differ in their seed alone, and what they are called. Pure.

A name says as little as it can: the parameters, and what else differs only where those are equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

Static = Mapping[str, Any]
"""What the manifest says of a run."""

_OTHERWISE: Final = ("group", "params", "metadata", "budget", "engine", "world_size", "nnodes")
"""What tells configurations apart in manifests that keep no hash of them."""


def labels_of(statics: Sequence[Static]) -> list[str]:
    """Return each run's configuration as one line: the same for two runs that differ in seed alone.

    Different configurations have different lines.
    """
    keys = [_key(static) for static in statics]
    firsts: dict[Hashable, Static] = {}
    for key, static in zip(keys, statics, strict=True):
        firsts.setdefault(key, static)
    labels = dict(zip(firsts, _distinct(list(firsts.values())), strict=True))
    return [labels[key] for key in keys]


def _key(static: Static) -> Hashable:
    """Return what only the runs of one configuration have in common."""
    if known := static.get("configuration"):
        return str(known)
    kept = {name: static.get(name) for name in _OTHERWISE} | {"params": _params(static)}
    return ("kept", json.dumps(kept, sort_keys=True, default=str))


def _params(static: Static) -> dict[str, Any]:
    return {name: value for name, value in static.get("params", {}).items() if name != "seed"}


def _distinct(firsts: Sequence[Static]) -> list[str]:
    """Return a line for the first run of each configuration, no two alike."""
    sizes = {static.get("world_size") for static in firsts}
    hidden = () if len(sizes) > 1 else ("world_size",)
    labels = [_named(static, hidden) for static in firsts]
    alike: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        alike.setdefault(label, []).append(place)
    for places in alike.values():
        for place, more in zip(places, _differences([firsts[p] for p in places]), strict=True):
            labels[place] += more
    # A user's own words may look like what was added. Ids differ, so that this comes to an end.
    while repeated := {label for label, count in Counter(labels).items() if count > 1}:
        for place, label in enumerate(labels):
            if label in repeated:
                labels[place] += f" ({firsts[place]['id']})"
    return labels


def _named(static: Static, hidden: Sequence[str]) -> str:
    """Return a configuration's parameters as one line; without any, its group's name."""
    params = {name: value for name, value in _params(static).items() if name not in hidden}
    stated = ", ".join(f"{name}={_text(value)}" for name, value in params.items())
    return stated or str(static.get("group") or static["id"])


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differences(alike: Sequence[Static]) -> list[str]:
    """Return what to add to names that are alike: the first things that tell them apart."""
    every = [_aspects(static) for static in alike]
    chosen: list[str] = []
    for aspect in dict.fromkeys(name for aspects in every for name in aspects):
        if len(set(_added(every, chosen))) == len(alike):
            break
        if len({aspects.get(aspect) for aspects in every}) > 1:
            chosen.append(aspect)
    return _added(every, chosen)


def _added(every: Sequence[Mapping[str, str]], chosen: Sequence[str]) -> list[str]:
    shown = [[aspects[name] for name in chosen if name in aspects] for aspects in every]
    return [f" ({', '.join(texts)})" if texts else "" for texts in shown]


def _aspects(static: Static) -> dict[str, str]:
    """Return what is known of a configuration besides its parameters, the most telling first."""
    stated = static.get("stated") or {}
    named = {
        "env": stated.get("env", {}),
        "budget": (static.get("budget") or {}).get("limits", {}),
        "metadata": static.get("metadata", {}),
        "place": {name: static.get(name) for name in ("engine", "nnodes", "gpu", "price")},
    }
    aspects = {"group": str(static.get("group") or "")}
    aspects |= {f"override {text}": text for text in stated.get("overrides", ())}
    aspects |= {
        f"{kind} {name}": f"{name}={_text(value)}"
        for kind, values in named.items()
        for name, value in values.items()
        if value not in (None, "")
    }
    aspects["entrypoint"] = " ".join(stated.get("entrypoint", ()))
    return {name: text for name, text in aspects.items() if text}
