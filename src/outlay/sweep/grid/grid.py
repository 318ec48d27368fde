"""A grid: entries, each with axes, a budget and launch settings. Pure.

Reading a grid reports all of its problems at once. Its runs are the subject of
``outlay.sweep.plan.plan``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from outlay.budget.terms import Budget, is_limit_key
from outlay.errors import InvalidValue
from outlay.ledger import Price
from outlay.ledger.price import AUTO, is_price_name, split_kind, typed_price
from outlay.prices.names import parse_name
from outlay.runs.options import gpu_count
from outlay.sweep.engines.base import EngineOptions
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid import parsing as readers
from outlay.sweep.grid.parsing import (
    ALIASES,
    BUDGET_KEYS,
    NO_TARGET,
    Alias,
    Block,
    GridDocument,
    Target,
    parse,
    read_alias,
    read_budget,
    read_ship,
    read_target,
)
from outlay.sweep.search.samplers import points_if_too_few
from outlay.sweep.search.search_options import ALL_POINTS, Search, read_search
from outlay.sweep.search.space import Axis, Range, Space, is_range, read_range, values_of
from outlay.units import Duration, Money
from outlay.units.money import GPU_HOURS

SHARED_KEYS: Final = (
    "entrypoint", "engine", "arguments", "overrides", "env", "metadata", "budget", "nnodes",
    "node_rank", "rendezvous", "seeds", "exclude", "price", "gpu", "gpus", "timeout", "retries",
    "launcher", "search", "ship",
)  # fmt: skip
ROOT_KEYS: Final = (*SHARED_KEYS, "name", "output_dir", "work_dir", "ceiling", "aliases", "grid")
ENTRY_KEYS: Final = (*SHARED_KEYS, "name", "params")
RENDEZVOUS_KEYS: Final = ("backend", "endpoint", "id", "conf")
CEILING_KEYS: Final = ("book", "limit")
MOST_RUNS: Final = 100_000
"""The largest sweep; a larger manifest would take too long to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEntry:
    """One entry of a grid, with the root's settings where it states none of its own.

    Attributes:
        line: Where it is stated; the root, which all entries extend, has neither line nor axes.
        entrypoint: The program and its arguments, with ``{name}`` for a parameter.
        engine: ``torchrun``, ``process``, ``slurm``, or that of a plug-in.
        arguments: How parameters are passed to the program: one of ``parsing.STYLES``.
        enforce: Whether the harness ends a run that records nothing at its limits.
        nnodes: The number of nodes, or a range such as ``"1:4"``; None for this node alone.
        seeds: One replicate per seed; empty for none.
        exclude: Combinations to leave out, as parameters and their values.
        price: Per GPU-hour; also None for a price name before its lookup.
        price_name: The name of the price, such as ``lambda:8xH100``; "" for a typed one.
        gpus: GPUs that each run is charged for; None for one per process.
        timeout: Time limit of one attempt.
        retries: How often a failed run is started again.
        launcher: ``torchrun`` or ``none``; "" to choose by engine and number of processes.
        engine_options: By the engine's name.
        search: How its points are chosen; all of a grid by default, which has no ranges.
        ship: The variables by which its runs ship themselves; empty if they do not.
    """

    name: str = ""
    axes: Space = field(default_factory=dict)
    line: int = 0
    entrypoint: tuple[str, ...] = ("train.py",)
    engine: str = "torchrun"
    arguments: str = "overrides"
    overrides: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    target: Target = NO_TARGET
    enforce: bool = False
    nnodes: int | str | None = None
    node_rank: int | None = None
    rendezvous: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    exclude: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    price: Price | None = None
    price_name: str = ""
    gpu: str = ""
    gpus: Fraction | None = None
    timeout: Duration | None = None
    retries: int = 0
    launcher: str = ""
    engine_options: Mapping[str, EngineOptions] = field(default_factory=dict)
    search: Search = ALL_POINTS
    ship: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> EngineOptions | None:
        """The options of these runs' engine; None where it has none."""
        return self.engine_options.get(self.engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid, checked.

    Attributes:
        ceiling: The most that the sweep may commit; None for no limit of its own.
        book: The spend log that it shares with others, a path or a URL; "" for one of its own.
    """

    source: str
    name: str
    output_dir: str | None
    work_dir: str | None
    ceiling: Money | None
    aliases: Mapping[str, Alias]
    entries: tuple[GridEntry, ...]
    book: str = ""

    @property
    def is_guarded(self) -> bool:
        """Whether every launch holds money first."""
        return self.ceiling is not None or bool(self.book)


def read_grid(text: str, *, source: str, default_name: str) -> Grid:
    """Return the grid in a YAML or JSON text.

    Raises:
        InvalidGrid: It has problems; names all of them.
    """
    document = parse(text, source)
    grid = _read_root(document, default_name)
    if document.findings:
        raise InvalidGrid(sorted(set(document.findings)))
    return grid


def _read_root(document: GridDocument, default_name: str) -> Grid:
    root = Block(document.tree, (), document)
    blocks = readers.option_blocks(root, ROOT_KEYS)
    root.allow((*ROOT_KEYS, *blocks, *document.referenced))
    listed = root.values.get("grid")
    if not isinstance(listed, list) or not listed:
        root.report(("grid",), "expected `grid`, a list of one entry or more")
        listed = []
    shared = _read_settings(root, GridEntry(), blocks)
    aliases = root.block("aliases")
    stated = {name: aliases.read(name, read_alias, None) for name in aliases.values}
    ceiling, book = _read_ceiling(root)
    entries = tuple(_read_entry(document, shared, i, item) for i, item in enumerate(listed))
    _check_names(document, entries)
    return Grid(
        source=document.source,
        name=root.read("name", readers.file_name, default_name),
        output_dir=root.read("output_dir", readers.text, None),
        work_dir=root.read("work_dir", readers.text, None),
        ceiling=ceiling,
        book=book,
        aliases={**ALIASES, **{name: alias for name, alias in stated.items() if alias}},
        entries=entries,
    )


def _check_names(document: GridDocument, entries: Sequence[GridEntry]) -> None:
    """Report entries of one name if a search keeps results by it."""
    names = [entry.name for entry in entries]
    for index, entry in enumerate(entries):
        if entry.search != ALL_POINTS and names.index(entry.name) < index:
            document.report(("grid", index), f"name {entry.name!r}: a search needs one of its own")


def _read_ceiling(root: Block) -> tuple[Money | None, str]:
    """Return the sweep's own limit, and the book that it draws on; "" without one."""
    if not isinstance(root.values.get("ceiling"), Mapping):
        return root.read("ceiling", _amount, None), ""
    block = root.block("ceiling")
    block.allow(CEILING_KEYS)
    book = block.read("book", readers.text, "")
    if "book" not in block.values:
        block.report((), "expected `book`, the URL of a book or the path of a spend log")
    return block.read("limit", read_limit, None), book


def _amount(value: object) -> Money:
    if isinstance(value, str) and "://" in value:  # It may have a password.
        raise InvalidValue("ceiling", "a URL", "an amount, or {book: URL, limit: 50 USD}")
    return Money.parse(value, name="ceiling")


def read_limit(value: object) -> Money:
    """Return a sweep's own limit, which may be in the GPU-hours that its book counts."""
    if isinstance(value, str) and value.rstrip().upper().endswith(GPU_HOURS.upper()):
        return Money.parse(value, name="ceiling", currency=GPU_HOURS)
    return _amount(value)


def _read_entry(document: GridDocument, shared: GridEntry, index: int, item: object) -> GridEntry:
    block = Block(item, ("grid", index), document)
    blocks = readers.option_blocks(block, ENTRY_KEYS)
    block.allow((*ENTRY_KEYS, *blocks))
    params = block.block("params")
    others = [name for name in params.values if name != "world_size"]
    axes: dict[str, Axis] = {str(name): params.read(name, _axis, (None,)) for name in others}
    sizes = params.read("world_size", readers.counts_from_one, None)
    if sizes is not None:
        axes["world_size"] = sizes
    name = block.read("name", readers.word, f"group{index:02d}")
    line = document.line_of(("grid", index))
    entry = _read_settings(block, shared, blocks, name=name, axes=axes, line=line)
    if "seed" in axes and entry.seeds:
        block.report(("params", "seed"), "state either the parameter `seed` or `seeds`, not both")
    for problem in _search_problems(entry, params):
        block.report(("search",), problem)
    return _searched(entry)


def _axis(value: object) -> Axis:
    return read_range(value) if is_range(value) else readers.axis(value)


def _search_problems(entry: GridEntry, params: Block) -> Iterator[str]:
    """Yield what is wrong in an entry's search; ranges of a grid are reported at their lines."""
    search, metric = entry.search, entry.target.metric
    if search.needs_metric and not metric:
        yield "its runs are compared while it runs; state `budget: {target_metric: ...}`"
    if search.halving is not None and entry.budget is not None:
        yield "halving states the budget of each run; leave only target_ keys in `budget`"
    if search.is_adaptive and entry.exclude:
        yield f"method {search.method} cannot leave out points; remove `exclude`"
    if search.method != "grid" and (found := points_if_too_few(entry.axes, search)) is not None:
        yield f"{search.trials} trials, and its parameters have {found} points; use method grid"
    for name, axis in entry.axes.items() if search.method == "grid" else ():
        if isinstance(axis, Range) and (problem := _grid_problem(axis)):
            params.report((name,), f"{name}: {problem}")


def _grid_problem(axis: Range) -> str:
    """Return why a range has no list of values; "" if it has."""
    if axis.log or axis.count is None:
        return "a grid needs a list or a range with `step`; other methods of `search` take this one"
    if axis.count > MOST_RUNS:
        return f"{axis.count:,} values, and a sweep has at most {MOST_RUNS:,} runs"
    return ""


def _searched(entry: GridEntry) -> GridEntry:
    """Return an entry with the values of its ranges, and the budget of its last rung."""
    search = entry.search
    if search is ALL_POINTS and not any(isinstance(axis, Range) for axis in entry.axes.values()):
        return entry
    if search.halving is not None:
        entry = replace(entry, budget=search.halving.rungs[-1])
    if search.method != "grid":
        return entry
    if any(isinstance(axis, Range) and _grid_problem(axis) for axis in entry.axes.values()):
        return entry  # Which is reported.
    axes = {name: values_of(axis) for name, axis in entry.axes.items()}
    return replace(entry, axes=axes)


def _read_settings(
    block: Block, shared: GridEntry, blocks: tuple[str, ...], **own: Any
) -> GridEntry:
    """Return a block's settings: lists and mappings extend the shared ones, others replace.

    ``own`` are the settings that no other entry shares.
    """
    budget, target = _read_budget(block, shared)
    price, price_name = _read_price(block, shared)
    rendezvous = block.block("rendezvous")
    rendezvous.allow(RENDEZVOUS_KEYS)
    stated = {key: rendezvous.read(key, readers.word, "") for key in rendezvous.values}
    return GridEntry(
        entrypoint=block.read("entrypoint", readers.command, shared.entrypoint),
        engine=block.read("engine", readers.engine, shared.engine),
        arguments=block.read("arguments", readers.arguments, shared.arguments),
        overrides=shared.overrides + block.read("overrides", readers.texts, ()),
        env={**shared.env, **block.read("env", readers.environment, {})},
        metadata={**shared.metadata, **block.read("metadata", readers.mapping, {})},
        budget=budget,
        target=target,
        enforce=_read_enforce(block, shared),
        nnodes=block.read("nnodes", readers.nodes, shared.nnodes),
        node_rank=block.read("node_rank", readers.count_from_zero, shared.node_rank),
        rendezvous={**shared.rendezvous, **{key: text for key, text in stated.items() if text}},
        seeds=block.read("seeds", readers.seeds, shared.seeds),
        exclude=shared.exclude + block.read("exclude", readers.exclusions, ()),
        price=price,
        price_name=price_name,
        gpu=block.read("gpu", readers.text, shared.gpu),
        gpus=block.read("gpus", lambda value: gpu_count(value, name="gpus"), shared.gpus),
        timeout=block.read("timeout", readers.timeout, shared.timeout),
        retries=block.read("retries", readers.count_from_zero, shared.retries),
        launcher=block.read("launcher", readers.launcher, shared.launcher),
        engine_options=readers.engine_options(block, blocks, shared.engine_options),
        ship=read_ship(block, shared.ship),
        search=read_search(block, shared.search),
        **own,
    )


def _read_price(block: Block, shared: GridEntry) -> tuple[Price | None, str]:
    """Return a typed price, or the name of one, which is looked up later."""
    stated = block.read("price", _stated_price, None)
    if stated is None:
        return shared.price, shared.price_name
    return (None, stated) if isinstance(stated, str) else (stated, "")


def _stated_price(value: object) -> Price | str:
    if isinstance(value, str) and is_price_name(value):
        if split_kind(value)[0].lower() != AUTO:
            parse_name(split_kind(value)[0], name="price")
        return value
    return typed_price(value, name="price", source="grid")


def _read_budget(block: Block, shared: GridEntry) -> tuple[Budget | None, Target]:
    if "budget" not in block.values:
        return shared.budget, shared.target
    inner = block.block("budget")
    known, text = inner.document.budgets, repr(inner.values)
    if text in known:
        return known[text]
    inner.allow({*BUDGET_KEYS, *filter(is_limit_key, map(str, inner.values))})
    budget, target = shared.budget, shared.target
    try:
        target = read_target(inner.values)
        budget = read_budget(inner.values) if inner.values else None
    except InvalidValue as error:
        inner.report((), str(error))
    if not inner.document.findings:  # Else each block must report its own.
        known[text] = budget, target
    return budget, target


def _read_enforce(block: Block, shared: GridEntry) -> bool:
    if "budget" not in block.values:
        return shared.enforce
    return block.block("budget").read("enforce", readers.truth, False)  # noqa: FBT003
