"""A grid's text as plain data, and the line on which each of its keys stands. Opens no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlay.decoding import BadYaml, YamlPath, parse_yaml
from outlay.errors import Finding
from outlay.sweep.errors import InvalidGrid

Path = YamlPath


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
    try:
        read = parse_yaml(text)
    except BadYaml as error:
        raise _invalid(source, error.line, f"cannot be read: {error}") from None
    tree, lines = read.tree, read.lines
    if not isinstance(tree, dict):
        raise _invalid(source, 1, "a grid is a mapping with a list `grid` of entries")
    if "${" not in text:
        return Document(source, tree, lines)
    from omegaconf import OmegaConf  # Here: it takes a while to load, and few grids need it.

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


def _invalid(source: str, line: int, message: str) -> InvalidGrid:
    return InvalidGrid([Finding(source=source, line=line, message=message)])


def _resolved(node: Any, path: Path, problems: list[tuple[Path, str]]) -> Any:
    """Return a node as plain data; what cannot be resolved becomes a problem, and None."""
    from omegaconf import DictConfig, ListConfig

    if isinstance(node, DictConfig):
        keys = list(node.keys())
        return {str(key): _child(node, key, (*path, str(key)), problems) for key in keys}
    if isinstance(node, ListConfig):
        return [_child(node, i, (*path, i), problems) for i in range(len(node))]
    return node


def _child(node: Any, key: Any, path: Path, problems: list[tuple[Path, str]]) -> Any:
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = node[key]
    except OmegaConfBaseException as error:
        problems.append((path, str(error).splitlines()[0]))
        return None
    return _resolved(value, path, problems)
