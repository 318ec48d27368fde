"""The repository is tidy: pages whose links lead somewhere, files that speak of the project alone.

Whether the reference pages agree with the code is the subject of test_docs_reference.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from statistics import median

import grimp
import pytest

import outlay
from papers import ROOT, anchors, headings, links, markdown_files, project_files

# Written so that this file does not hold what it looks for.
DEVELOPER_PATH = re.compile(
    r"(?<![\w.~$}-])/(?:home|Users|root|work|workspaces?|builds)/[\w.-]+|\b[A-Z]:\\+Users\\"
)
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("anaconda", "org"),
        ("npmjs", "com"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("download", "pytorch", "org"),
    )
]
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) — (\d{4}-\d{2}-\d{2})")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(errors="replace")


def modules() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def broken_links(path: Path) -> list[str]:
    """Return the links of a page that lead nowhere; other sites are not asked."""
    broken = []
    for link in links(text_of(path)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, fragment = link.partition("#")
        to = (path.parent / target).resolve() if target else path
        if not to.exists() or (fragment and fragment not in anchors(text_of(to))):
            broken.append(link)
    return broken


def test_the_project_has_pages_and_modules() -> None:
    """The tests below look at lists; an empty one would make them say nothing."""
    assert len(markdown_files()) >= 10
    assert len(modules()) >= 40


@pytest.mark.parametrize("path", markdown_files(), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_a_link_to_a_missing_file_or_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](#one-heading) [b](#two) [c](gone.md) [d](page.md#three)\n"
        "[e](https://example.org/x) `[f](in/code)`\n```\n[g](in/a/block)\n```\n"
    )
    assert broken_links(page) == ["#two", "gone.md", "page.md#three"]


def test_pages_have_one_title_and_it_comes_first() -> None:
    untitled = [name_of(p) for p in markdown_files() if not text_of(p).startswith("# ")]
    assert untitled == []


@pytest.mark.parametrize("path", project_files(), ids=name_of)
def test_no_file_names_a_developers_machine_or_a_package_registry(path: Path) -> None:
    text = text_of(path)
    assert [found[0] for found in DEVELOPER_PATH.finditer(text)] == []
    assert [host for host in REGISTRY_HOSTS if host in text] == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("/".join(["", "home", "ada", "outlay"]), True),
        ("cd " + "/".join(["", "Users", "ada"]), True),
        ('"' + "/".join(["", "root", ".cache"]), True),
        ("\\".join(["C:", "Users", "ada"]), True),
        ("https://example.org/home/page", False),
        ("$HOME/work/runs", False),
        ("runs/work/001", False),
    ],
)
def test_what_counts_as_a_developers_path(text: str, is_one: bool) -> None:
    assert bool(DEVELOPER_PATH.search(text)) is is_one


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(text_of(path)))


def test_public_names_can_be_imported_and_are_sorted() -> None:
    assert [name for name in outlay.__all__ if not hasattr(outlay, name)] == []
    assert list(outlay.__all__) == sorted(outlay.__all__)


@pytest.mark.parametrize(
    "name",
    [
        "Checkpointing",
        "Circumstances",
        "CsvFile",
        "JsonLinesFile",
        "PluginSink",
        "measured_memory",
        "noise_scale",
    ],
)
def test_what_public_methods_are_given_has_a_public_name(name: str) -> None:
    assert name in outlay.__all__
    assert getattr(outlay, name).__module__.startswith("outlay.")


def test_the_package_and_the_project_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert outlay.__version__ == project["version"]


def test_the_licence_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("MIT", ["LICENSE"])
    assert text_of(ROOT / "LICENSE").startswith("MIT License\n")


def changelog_versions(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    text = text_of(ROOT / "CHANGELOG.md")
    assert headings(text)[0] == "Changelog"
    assert changelog_versions(text)[0] == "Unreleased"


def test_releases_are_dated_and_the_newest_comes_first() -> None:
    titles = changelog_versions(text_of(ROOT / "CHANGELOG.md"))[1:]
    releases = [RELEASE.fullmatch(title) for title in titles]
    assert None not in releases, f"expected '1.2.3 — 2026-12-31' in {titles}"
    numbers = [tuple(map(int, release.groups()[:3])) for release in releases if release]
    assert numbers == sorted(set(numbers), reverse=True)


def test_every_version_says_what_happened_to_file_formats() -> None:
    versions = text_of(ROOT / "CHANGELOG.md").split("\n## ")[1:]
    silent = [text.splitlines()[0] for text in versions if "\n### File formats\n" not in text]
    assert silent == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert links(text_of(ROOT / "docs/adr/README.md")) == [page.name for page in pages]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")), ids=lambda path: path.name[:4]
)
def test_a_decision_has_its_number_a_status_and_what_speaks_against_it(path: Path) -> None:
    text = text_of(path)
    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert re.search(r"^Status: (accepted|replaced by .+), \d{4}-\d{2}\.$", text, re.MULTILINE)
    assert {"Decision", "What speaks against it"} <= set(headings(text))


DECODERS = {
    ("msgspec", "convert"), ("json", "decode"), ("json", "Decoder"), ("json", "loads"),
    ("json", "load"), ("csv", "reader"), ("csv", "DictReader"), ("tomllib", "load"),
    ("tomllib", "loads"), ("yaml", "load"), ("yaml", "safe_load"), ("yaml", "parse"),
    ("OmegaConf", "load"), ("pickle", "load"), ("pickle", "loads"), ("marshal", "loads"),
    ("ast", "literal_eval"), ("zlib", "decompress"), ("zlib", "decompressobj"),
    ("gzip", "decompress"), ("gzip", "open"),
}  # fmt: skip
MAY_DECODE = {
    "src/outlay/decoding.py",  # The edge itself.
    "src/outlay/ledger/codec.py",  # The run log's own codec, which checks every line's checksum.
    # It runs without packages, and reads what a process of outlay of the same user wrote.
    "src/outlay/proc/keeper_process.py",
}


def decoder_calls(source: str) -> list[str]:
    """Return the calls of a module that turn bytes or text into values."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
                if (owner, name) in DECODERS:
                    found.append(f"{owner}.{name}")
            case ast.ImportFrom(module=str(module), names=names):
                owner = module.rpartition(".")[2]
                found += [f"{owner}.{n.name}" for n in names if (owner, n.name) in DECODERS]
            case _:
                pass
    return found


def test_bytes_become_values_at_one_edge() -> None:
    calls = {name_of(p): decoder_calls(text_of(p)) for p in (ROOT / "src").rglob("*.py")}
    assert {name for name, found in calls.items() if found} == MAY_DECODE


@pytest.mark.parametrize(
    "source",
    [
        "import msgspec\nmsgspec.json.decode(b'')",
        "import json\njson.loads('1')",
        "from json import loads\nloads('1')",
        "import yaml\nyaml.safe_load('a')",
        "d = msgspec.json.Decoder(int).decode",
    ],
)
def test_a_decoder_elsewhere_is_noticed(source: str) -> None:
    assert decoder_calls(source)


WRITERS = {
    ("csv", "writer"), ("csv", "DictWriter"), ("html", "escape"), ("rich.console", "Console"),
    ("console", "Console"), ("stdout", "write"), ("stderr", "write"), ("typer", "secho"),
}  # fmt: skip
MAY_WRITE = {
    "src/outlay/escaping.py",  # The edge itself.
    "src/outlay/cli/output.py",  # The terminal: its console escapes whatever it is given.
    "src/outlay/budget/display.py",  # Shows amounts of a budget, and no text of anybody.
    "src/outlay/cli/guard/options.py",  # These three escape the line that they write.
    "src/outlay/guard/rental/watch.py",
    "src/outlay/proc/keeper_process.py",  # Numbers of processes.
    "src/outlay/guard/budget_guard.py",  # A constant.
    "src/outlay/sweep/aggregate/__main__.py",  # A constant.
}


def writer_calls(source: str) -> list[str]:
    """Return what a module uses to put text where people see it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
                found += [f"{owner}.{name}"] if (owner, name) in WRITERS else []
            case ast.ImportFrom(module=str(module), names=names):
                found += [f"{module}.{n.name}" for n in names if (module, n.name) in WRITERS]
            case _:
                pass
    return found


def test_text_reaches_people_at_one_edge() -> None:
    calls = {name_of(p): writer_calls(text_of(p)) for p in (ROOT / "src").rglob("*.py")}
    assert {name for name, found in calls.items() if found} == MAY_WRITE


@pytest.mark.parametrize(
    "source",
    ["import csv\ncsv.writer(f)", "from html import escape", "import sys\nsys.stdout.write('x')"],
)
def test_a_writer_elsewhere_is_noticed(source: str) -> None:
    assert writer_calls(source)


# Rooms: how many modules, how long, and that a class name means one thing

SOURCES = sorted((ROOT / "src").rglob("*.py"))
ROOMS = [path for path in SOURCES if path.name != "__init__.py"]
LONGEST, MOST_IN_A_FOLDER, LEAST_MEDIAN = 450, 14, 100
MOST_MODULES, MOST_LINES = 260, 54_000


def lines_of(path: Path) -> int:
    return sum(1 for line in text_of(path).splitlines() if line.strip())


@pytest.mark.parametrize("path", ROOMS, ids=name_of)
def test_no_module_is_too_long_to_read_at_once(path: Path) -> None:
    assert lines_of(path) <= LONGEST


def test_no_folder_has_more_modules_than_a_reader_can_overlook() -> None:
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in ROOMS)
    assert not {name: count for name, count in folders.items() if count > MOST_IN_A_FOLDER}


def test_modules_are_few_and_most_of_them_are_more_than_a_paragraph() -> None:
    assert len(ROOMS) <= MOST_MODULES
    assert sum(map(lines_of, ROOMS)) <= MOST_LINES
    assert median(map(lines_of, ROOMS)) >= LEAST_MEDIAN


def test_a_class_name_means_one_thing() -> None:
    # What other tools call their classes is theirs to say: ``compat`` repeats it. Every framework's
    # callback is an OutlayCallback, as its users look for it.
    own = [path for path in SOURCES if not {"compat", "integrations"} & set(path.parts)]
    names = Counter(
        node.name
        for path in own
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


def test_a_module_name_means_one_thing() -> None:
    # Commands and pages are named after their subject, and ``compat`` after other tools' modules.
    own = [path for path in ROOMS if not {"cli", "web", "compat"} & set(path.parts)]
    names = Counter(path.stem for path in own if path.stem != "__main__")
    everywhere = {"errors", "files", "gate"}  # What a package has of its own under the same name.
    assert {name for name, count in names.items() if count > 1} <= everywhere


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("outlay")
    remaining = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    while leaves := [name for name, found in remaining.items() if not found & remaining.keys()]:
        for name in leaves:
            del remaining[name]
    assert not remaining, f"in or above a circle: {sorted(remaining)}"


def test_every_module_that_the_architecture_names_exists() -> None:
    found = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text_of(ROOT / "docs" / "ARCHITECTURE.md"))
    named = [name for name in found if not name.startswith(("tests/", "outlay/"))]
    assert len(named) > 60
    assert not [name for name in named if not (ROOT / "src" / "outlay" / name).is_file()]


def test_the_walks_of_a_reader_are_as_short_as_promised() -> None:
    text = text_of(ROOT / "docs" / "ARCHITECTURE.md")
    walks = re.findall(r"^\d\. \*\*.*?\*\* \((\d+)\): (.*?)(?=^\d\. |^## )", text, re.M | re.S)
    stated = [int(count) for count, _ in walks]
    modules = [re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", each) for _, each in walks]
    assert [len(set(each)) for each in modules] == stated
    most = [15, 20, 15, 12, 9]
    assert all(count <= limit for count, limit in zip(stated, most, strict=True))
    graph = grimp.build_graph("outlay")
    for walk in modules:
        names = {f"outlay.{name.removesuffix('.py').replace('/', '.')}" for name in walk}
        apart = {name for name in names if not _neighbours(graph, name) & (names - {name})}
        assert not apart, f"no other module of the walk imports or is imported by {apart}"


def _neighbours(graph: grimp.ImportGraph, name: str) -> set[str]:
    """Return what a module imports and who imports it; of a package, what it takes from where."""
    found = graph.find_modules_directly_imported_by(name) | graph.find_modules_that_directly_import(
        name
    )
    packages = {each for each in found if graph.find_children(each)}
    return found.union(*map(graph.find_modules_directly_imported_by, packages))
