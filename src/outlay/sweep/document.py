"""A grid's text as plain data, and the line on which each of its keys stands. Opens no file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outlay.errors import Finding
from outlay.sweep.errors import InvalidGrid

Path = tuple[str | int, ...]
_DEEPEST: Final = 100
"""How deep a grid may be nested."""
_SURROGATES = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Hydra reads it: 1e-3 is a number, and dates stay text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and shape are PyYAML's
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d+)"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Document:
    """What a grid file says: its tree, interpolations resolved, and where each key stands."""

    source: str
    tree: Mapping[str, Any]
    lines: Mapping[Path, int]

    def line_of(self, path: Path) -> int:
        """Return the 1-based line of a key, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(text: str, source: str) -> Document:
    """Return the document in a YAML or JSON text.

    Raises:
        InvalidGrid: It is no mapping, or an interpolation in it leads nowhere.
    """
    text = _as_yaml(text)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = _lines(node, source)
        tree = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = mark.line + 1 if mark is not None else 1
        raise _invalid(source, line, f"cannot be read: {problem}") from None
    if not isinstance(tree, dict):
        raise _invalid(source, 1, "a grid is a mapping with a list `grid` of entries")
    if "${" not in text:
        return Document(source, tree, lines)
    config = OmegaConf.create(tree)
    problems: list[tuple[Path, str]] = []
    document = Document(source, _resolved(config, (), problems), lines)
    if problems:
        raise InvalidGrid(
            [
                Finding(source=source, line=document.line_of(path), message=message)
                for path, message in problems
            ]
        )
    return document


def _as_yaml(text: str) -> str:
    """Return JSON as the YAML it almost is: without tabs, and with one character per pair."""
    if not text.lstrip().startswith("{"):
        return text
    # Tabs stand only between the tokens of JSON, never inside its strings.
    return _SURROGATES.sub(lambda pair: pair[1] + json.loads(f'"{pair[2]}"'), text).replace(
        "\t", " "
    )


def _invalid(source: str, line: int, message: str) -> InvalidGrid:
    return InvalidGrid([Finding(source=source, line=line, message=message)])


def _resolved(node: Any, path: Path, problems: list[tuple[Path, str]]) -> Any:
    """Return a node as plain data; what cannot be resolved becomes a problem, and None."""
    if isinstance(node, DictConfig):
        keys = list(node.keys())
        return {str(key): _child(node, key, (*path, str(key)), problems) for key in keys}
    if isinstance(node, ListConfig):
        return [_child(node, i, (*path, i), problems) for i in range(len(node))]
    return node


def _child(node: Any, key: Any, path: Path, problems: list[tuple[Path, str]]) -> Any:
    try:
        value = node[key]
    except OmegaConfBaseException as error:
        problems.append((path, str(error).splitlines()[0]))
        return None
    return _resolved(value, path, problems)


def _lines(root: Any, source: str) -> dict[Path, int]:
    """Return the line of every key.

    Raises:
        InvalidGrid: A key stands twice in one mapping, of which the second would silently win; or
            something stands inside itself.
    """
    lines: dict[Path, int] = {}
    waiting: list[tuple[Any, Path]] = [(root, ())]
    while waiting:
        node, path = waiting.pop()
        if len(path) > _DEEPEST:
            where = node.start_mark.line + 1
            raise _invalid(source, where, "this is nested too deep, or refers to itself")
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = (*path, str(key.value))
                if below in lines:
                    where = key.start_mark.line + 1
                    raise _invalid(source, where, f"the key {key.value!r} stands here twice")
                lines[below] = key.start_mark.line + 1
                waiting.append((value, below))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[(*path, index)] = value.start_mark.line + 1
                waiting.append((value, (*path, index)))
    return lines
