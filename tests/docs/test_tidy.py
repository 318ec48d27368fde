"""Rules for all files: links, paths, docstrings, size, names, imports, and who may decode or write.

Each rule is one test that lists every offender. That the reference pages agree with the code is
tested in test_docs_reference.
"""

from __future__ import annotations

import ast
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Set
from functools import cache
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import outlay
from papers import ROOT, anchors, headings, links, markdown_files, project_files

pytestmark = pytest.mark.xdist_group("tidy")  # One process reads the files and the import graph.

# Written so that this file does not contain what it looks for.
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
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULE_NAME = re.compile(r"outlay(?:\.[a-z_]+)+")
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) — (\d{4}-\d{2}-\d{2})")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text(errors="replace")


@cache
def anchors_of(path: Path) -> set[str]:
    return anchors(text_of(path))


def modules() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def broken_links(path: Path) -> list[str]:
    """Return the links of a page whose target does not exist; other sites are not checked."""
    broken = []
    for link in links(text_of(path)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, fragment = link.partition("#")
        to = (path.parent / target).resolve() if target else path
        if not to.exists() or (fragment and fragment not in anchors_of(to)):
            broken.append(link)
    return broken


def test_the_project_has_pages_and_modules() -> None:
    """On an empty list the tests below would pass."""
    assert len(markdown_files()) >= 10
    assert len(modules()) >= 40


def test_every_link_has_a_target() -> None:
    broken = {name_of(path): broken_links(path) for path in markdown_files()}
    assert {name: found for name, found in broken.items() if found} == {}


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](#one-heading) [b](#two) [c](gone.md) [d](page.md#three)\n"
        "[e](https://example.org/x) `[f](in/code)`\n```\n[g](in/a/block)\n```\n"
    )
    assert broken_links(page) == ["#two", "gone.md", "page.md#three"]


def test_every_page_begins_with_its_title() -> None:
    front_matter = re.compile(r"\A---\n.*?\n---\n\n", re.DOTALL)  # Of a skill for agents.
    texts = {name_of(page): front_matter.sub("", text_of(page)) for page in markdown_files()}
    untitled = [name for name, text in texts.items() if not text.startswith("# ")]
    assert untitled == []


def machine_names(text: str) -> list[str]:
    """Return the paths of a developer's machine and the hosts of package registries in a text."""
    paths = [found[0] for found in DEVELOPER_PATH.finditer(text)]
    return paths + [host for host in REGISTRY_HOSTS if host in text]


def test_no_file_names_a_developers_machine_or_a_package_registry() -> None:
    named = {name_of(path): machine_names(text_of(path)) for path in project_files()}
    assert {name: found for name, found in named.items() if found} == {}


def test_what_counts_as_a_developers_path_or_a_registry() -> None:
    found = [
        "/".join(["", "home", "ada", "outlay"]),
        "cd " + "/".join(["", "Users", "ada"]),
        '"' + "/".join(["", "root", ".cache"]),
        "\\".join(["C:", "Users", "ada"]),
        f"https://{REGISTRY_HOSTS[0]}/simple",
    ]
    allowed = ["https://example.org/home/page", "$HOME/work/runs", "runs/work/001"]
    assert [text for text in found if not machine_names(text)] == []
    assert [text for text in allowed if machine_names(text)] == []


def has_docstring(path: Path) -> bool:
    """Return whether a module begins with a string, without parsing the rest of it."""
    skipped = {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE}
    with path.open("rb") as stream:
        tokens = tokenize.tokenize(stream.readline)
        first = next(token for token in tokens if token.type not in skipped)
    return first.type == tokenize.STRING and first.string.strip("\"'").strip() != ""


def test_every_module_has_a_docstring(tmp_path: Path) -> None:
    assert [name_of(path) for path in modules() if not has_docstring(path)] == []
    for source in ("x = 1\n", "", '""""""\n', "# Comment\nimport os\n"):
        (tmp_path / "module.py").write_text(source)
        assert not has_docstring(tmp_path / "module.py")


def test_public_names_can_be_imported_and_are_sorted() -> None:
    assert [name for name in outlay.__all__ if not hasattr(outlay, name)] == []
    assert list(outlay.__all__) == sorted(outlay.__all__)


def test_types_of_public_arguments_are_public() -> None:
    names = {
        "Checkpointing", "Circumstances", "CsvFile", "JsonLinesFile", "PluginSink",
        "measured_memory", "noise_scale",
    }  # fmt: skip
    assert names <= set(outlay.__all__)
    assert all(getattr(outlay, name).__module__.startswith("outlay.") for name in names)


def test_the_package_and_the_project_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.+)$", text_of(ROOT / "CITATION.cff"), re.MULTILINE)
    assert cited is not None
    assert outlay.__version__ == project["version"] == cited[1]


def test_the_licence_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("MIT", ["LICENSE"])
    assert text_of(ROOT / "LICENSE").startswith("MIT License\n")


def changelog_versions(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_the_changelog_begins_with_unreleased() -> None:
    text = text_of(ROOT / "CHANGELOG.md")
    assert headings(text)[0] == "Changelog"
    assert changelog_versions(text)[0] == "Unreleased"


def test_releases_are_dated_and_the_newest_comes_first() -> None:
    titles = changelog_versions(text_of(ROOT / "CHANGELOG.md"))[1:]
    releases = [RELEASE.fullmatch(title) for title in titles]
    assert None not in releases, f"expected '1.2.3 — 2026-12-31' in {titles}"
    numbers = [tuple(map(int, release.groups()[:3])) for release in releases if release]
    assert numbers == sorted(set(numbers), reverse=True)


def test_every_version_has_a_section_on_file_formats() -> None:
    versions = text_of(ROOT / "CHANGELOG.md").split("\n## ")[1:]
    lacking = [text.splitlines()[0] for text in versions if "\n### File formats\n" not in text]
    assert lacking == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert links(text_of(ROOT / "docs/adr/README.md")) == [page.name for page in pages]


def test_every_decision_has_a_number_a_status_and_its_sections() -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert len(decisions) >= 10
    for path in decisions:
        text = text_of(path)
        assert text.startswith(f"# {int(path.name[:4])}. "), path
        assert re.search(r"^Status: (accepted|replaced by .+), \d{4}-\d{2}\.$", text, re.M), path
        assert {"Question", "Decision", "Drawbacks"} <= set(headings(text)), path


# Which modules may decode documents, and which may write for people

DECODERS = {
    ("msgspec", "convert"), ("json", "decode"), ("json", "Decoder"), ("json", "loads"),
    ("json", "load"), ("csv", "reader"), ("csv", "DictReader"), ("tomllib", "load"),
    ("tomllib", "loads"), ("yaml", "load"), ("yaml", "safe_load"), ("yaml", "parse"),
    ("OmegaConf", "load"), ("pickle", "load"), ("pickle", "loads"), ("marshal", "loads"),
    ("ast", "literal_eval"), ("zlib", "decompress"), ("zlib", "decompressobj"),
    ("gzip", "decompress"), ("gzip", "open"),
}  # fmt: skip
MAY_DECODE = {
    "src/outlay/decoding.py",  # Decodes all documents.
    "src/outlay/ledger/codec.py",  # The run log's own codec, which checks every line's checksum.
    # It runs without packages, and reads what another process of outlay of the same user wrote.
    "src/outlay/proc/keeper_process.py",
}


def calls(source: str, functions: Set[tuple[str, str]]) -> list[str]:
    """Return which of these functions, each a module and a name, a source uses or imports."""
    if not any(owner in source and name in source for owner, name in functions):
        return []  # Spares most modules the parsing.
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
                found += [f"{owner}.{name}"] if (owner, name) in functions else []
            case ast.ImportFrom(module=str(module), names=names):
                owners = {module, module.rpartition(".")[2]}
                found += [
                    f"{o}.{n.name}" for n in names for o in owners if (o, n.name) in functions
                ]
            case _:
                pass
    return found


def modules_that_call(functions: Set[tuple[str, str]]) -> set[str]:
    return {name_of(path) for path in SOURCES if calls(text_of(path), functions)}


def test_documents_are_decoded_only_in_the_listed_modules() -> None:
    assert modules_that_call(DECODERS) == MAY_DECODE


def test_a_decoder_is_found_however_it_is_imported() -> None:
    sources = [
        "import msgspec\nmsgspec.json.decode(b'')",
        "import json\njson.loads('1')",
        "from json import loads\nloads('1')",
        "import yaml\nyaml.safe_load('a')",
        "d = msgspec.json.Decoder(int).decode",
    ]
    assert [source for source in sources if not calls(source, DECODERS)] == []


WRITERS = {
    ("csv", "writer"), ("csv", "DictWriter"), ("html", "escape"), ("rich.console", "Console"),
    ("console", "Console"), ("stdout", "write"), ("stderr", "write"), ("typer", "secho"),
}  # fmt: skip
MAY_WRITE = {
    "src/outlay/escaping.py",  # Escapes all text.
    "src/outlay/cli/output.py",  # The terminal: its console escapes everything.
    "src/outlay/budget/display.py",  # Amounts of a budget, no text from outside.
    "src/outlay/cli/guard/options.py",  # These two escape the line that they write.
    "src/outlay/guard/rental/watch.py",
    "src/outlay/proc/keeper_process.py",  # Process ids.
    "src/outlay/guard/budget_guard.py",  # A constant.
    "src/outlay/sweep/aggregate/__main__.py",  # A constant.
}


def test_text_is_written_for_people_only_in_the_listed_modules() -> None:
    assert modules_that_call(WRITERS) == MAY_WRITE


def test_a_writer_is_found_however_it_is_imported() -> None:
    sources = [
        "import csv\ncsv.writer(f)",
        "from html import escape",
        "import sys\nsys.stdout.write('x')",
    ]
    assert [source for source in sources if not calls(source, WRITERS)] == []


# Size and names of modules and classes

MODULES = [path for path in SOURCES if path.name != "__init__.py"]
LONGEST, MOST_IN_A_FOLDER = 800, 14
LONGER: dict[str, str] = {}  # A module that is longer than that, and why it is one subject.


def lines_of(path: Path) -> int:
    return sum(1 for line in text_of(path).splitlines() if line.strip())


WORLDS = {
    r"\bfcntl\b": {"locks"},
    r'"(?:squeue|scancel|scontrol|sacct", "--)': {"slurm"},
    r'"CUDA_VISIBLE_DEVICES"|driver/nvidia|random/boot_id': {"machine"},
    r"\bLedgerReader\(": {
        "ledger/attempts", "ledger/reader", "goodput/follower", "budget/history",
        "sweep/run/attempt_log",
    },
}  # fmt: skip
"""What only these modules use: locks of files, Slurm's commands, the machine, run logs."""


@pytest.mark.parametrize(("pattern", "modules"), WORLDS.items(), ids=range(len(WORLDS)))
def test_an_outside_world_has_one_module(pattern: str, modules: set[str]) -> None:
    found = [path for path in SOURCES if re.search(pattern, text_of(path))]
    root = ROOT / "src" / "outlay"
    assert {str(path.relative_to(root).with_suffix("")) for path in found} == modules


def test_no_module_is_too_long() -> None:
    lengths = {name_of(path): lines_of(path) for path in SOURCES}
    assert {name for name, length in lengths.items() if length > LONGEST} == LONGER.keys()


def test_no_folder_has_too_many_modules() -> None:
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in MODULES)
    assert not {name: count for name, count in folders.items() if count > MOST_IN_A_FOLDER}


def repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_a_class_name_means_one_thing() -> None:
    # ``compat`` has the names of other tools, and every framework's callback is an OutlayCallback.
    own = [path for path in SOURCES if not {"compat", "integrations"} & set(path.parts)]
    defined = re.compile(r"^ *class (\w+)", re.MULTILINE)
    assert repeated(name for path in own for name in defined.findall(text_of(path))) == set()


def test_a_module_name_means_one_thing() -> None:
    # Commands and pages are named after their subject, and ``compat`` after other tools' modules.
    own = [path for path in MODULES if not {"cli", "web", "compat"} & set(path.parts)]
    shared = {"errors", "files", "gate"}  # The same part of several packages.
    assert repeated(path.stem for path in own if path.stem != "__main__") <= shared


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph("outlay")


def test_there_is_no_import_cycle() -> None:
    graph = import_graph()
    remaining = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    while leaves := [name for name, found in remaining.items() if not found & remaining.keys()]:
        for name in leaves:
            del remaining[name]
    assert not remaining, f"in or above a cycle: {sorted(remaining)}"


# Users import all modules of these: one per framework, and those of other tools.
FOR_USERS = {"compat", "integrations"}


def package_of(name: str) -> str:
    """Return the part of outlay that a module belongs to: a package, or a module beside them."""
    return name.split(".")[1] if "." in name else name


def listed(name: str) -> bool:
    """Return whether ``__all__`` of each package around a module has what is below it."""
    parts = name.split(".")
    above = [(".".join(parts[:end]), parts[end]) for end in range(2, len(parts))]
    return all(part in getattr(import_module(owner), "__all__", ()) for owner, part in above)


def imported_from_outside() -> set[tuple[str, str]]:
    """Return pairs of modules of different packages, the first of which imports the second."""
    graph = import_graph()
    return {
        (name, target)
        for name in graph.modules
        for target in graph.find_modules_directly_imported_by(name)
        if package_of(target) not in {package_of(name), *FOR_USERS}
    }


def test_a_package_lists_the_modules_that_others_import() -> None:
    private = {pair for pair in imported_from_outside() if not listed(pair[1])}
    assert private == set(), "add the module to __all__ of its package, or use one that is there"
    assert not listed("outlay.guard.decisions")


def test_no_package_lists_a_module_that_nobody_else_imports() -> None:
    named = {name for path in markdown_files() for name in MODULE_NAME.findall(text_of(path))}
    used = {target for _, target in imported_from_outside()} | named
    graph = import_graph()
    unused = {
        name
        for name in graph.modules
        if name.count(".") > 1 and package_of(name) not in FOR_USERS and listed(name)
        if name not in used and not graph.find_descendants(name) & used
    }
    assert unused == set()


def test_every_module_that_a_page_names_exists() -> None:
    roots = (ROOT, ROOT / "src", ROOT / "src/outlay")
    named = [
        (name_of(path), name)
        for path in markdown_files()
        if path.name != "CHANGELOG.md"
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text_of(path))
    ]
    assert len(named) > 60
    assert [pair for pair in named if not any((root / pair[1]).is_file() for root in roots)] == []


def test_every_name_that_the_architecture_places_in_a_module_is_there() -> None:
    text = text_of(ROOT / "docs" / "ARCHITECTURE.md")
    placed = re.findall(r"`(\w+)`,? in `([\w/]+\.py)`", text)
    assert len(placed) >= 8
    sources = {name: text_of(ROOT / "src/outlay" / name) for _, name in placed}
    assert [pair for pair in placed if not re.search(rf"\b{pair[0]}\b", sources[pair[1]])] == []


def test_the_five_walks_have_their_stated_length_and_are_connected() -> None:
    text = text_of(ROOT / "docs" / "ARCHITECTURE.md")
    walks = re.findall(r"^\d\. \*\*.*?\*\* \((\d+)\): (.*?)(?=^\d\. |^## )", text, re.M | re.S)
    stated = [int(count) for count, _ in walks]
    modules = [re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", each) for _, each in walks]
    assert [len(set(each)) for each in modules] == stated
    most = [15, 20, 15, 12, 9]
    assert all(count <= limit for count, limit in zip(stated, most, strict=True))
    graph = import_graph()
    for walk in modules:
        names = {f"outlay.{name.removesuffix('.py').replace('/', '.')}" for name in walk}
        apart = {name for name in names if not _neighbours(graph, name) & (names - {name})}
        assert not apart, f"no other module of the walk imports or is imported by {apart}"


def _neighbours(graph: grimp.ImportGraph, name: str) -> set[str]:
    """Return what a module imports, what imports it, and what the packages among them import."""
    found = graph.find_modules_directly_imported_by(name) | graph.find_modules_that_directly_import(
        name
    )
    packages = {each for each in found if graph.find_children(each)}
    return found.union(*map(graph.find_modules_directly_imported_by, packages))
