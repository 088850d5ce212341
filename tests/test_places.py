"""What CONTRIBUTING.md says about where things go is true, and what it asks for is there.

The table of typical changes names files; these tests read the table. What a machine can see of its promises is asked of
the code itself: every API has a handler, a bound and a proof, every noun a command and its work, every metric a line.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from penstock.cli.app import app
from penstock.codec.kafka import APIS
from penstock.codec.kafka.bounds import BOUNDS

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "penstock"
GUIDE: Final = ROOT / "CONTRIBUTING.md"
METRICS_PAGE: Final = ROOT / "docs" / "metrics.md"

CHANGES: Final = 12
# Modules without a room; `records.py` alone is one of many.
AT_THE_TOP: Final = frozenset({"config.py", "assembly.py", "pyproject.toml", "README.md"})
# Nouns whose words are in the modules of another.
AT_HOME_ELSEWHERE: Final = {"why": "trace"}


def rows_of_changes() -> list[tuple[str, str]]:
    """What is changed, and the rest of its row."""
    lines = GUIDE.read_text().splitlines()
    start = lines.index("| change | files | what fails if one is forgotten |")
    rows: list[tuple[str, str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        change, _, rest = line.strip("| ").partition("|")
        rows.append((change.strip(), rest))
    return rows


def test_guide_has_the_typical_changes() -> None:
    assert len(rows_of_changes()) >= CHANGES


@pytest.mark.parametrize(("change", "row"), rows_of_changes(), ids=[change for change, _ in rows_of_changes()])
def test_files_that_the_guide_names_are_there(change: str, row: str) -> None:
    named = [name for name in re.findall(r"`([^` ]+)`", row) if "/" in name or name in AT_THE_TOP]
    assert named, f"{change}: names no file"
    missing = [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()]
    assert not missing, f"{change}: {missing}: neither in src/penstock nor in the root: say where it is now"


# A Kafka API


def keys(*, is_internal: bool) -> list[int]:
    return sorted(key for key, api in APIS.items() if api.is_internal is is_internal)


@pytest.mark.parametrize("key", keys(is_internal=True), ids=lambda key: APIS[key].request.__name__)
def test_every_request_between_nodes_has_a_handler_a_bound_and_bytes_that_stay(key: int) -> None:
    """Nodes of two releases talk to each other: what one of them wrote is in tests/golden/internal.txt."""
    request = APIS[key].request
    assert key in BOUNDS, f"{request.__name__}: nothing says in codec/kafka/bounds how much one may ask for"
    table = (SOURCE / "gateways" / "cluster" / "apis.py").read_text()
    assert re.search(rf"\b{request.__name__}: ", table), f"{request.__name__}: no handler in gateways/cluster/apis"
    assert request.__name__ not in (SOURCE / "gateways" / "kafka" / "apis.py").read_text(), "clients may not ask it"
    kept = (ROOT / "tests" / "golden" / "internal.txt").read_text()
    for message in (request, APIS[key].response):
        assert re.search(rf"^{message.__name__} \d", kept, re.MULTILINE), f"{message.__name__}: no golden bytes"


@pytest.mark.parametrize("key", keys(is_internal=False), ids=lambda key: APIS[key].request.__name__)
def test_every_api_has_a_handler_a_bound_and_a_proof(key: int) -> None:
    request = APIS[key].request
    assert key in BOUNDS, f"{request.__name__}: nothing says in codec/kafka/bounds how much one may ask for"
    table = (SOURCE / "gateways" / "kafka" / "apis.py").read_text()
    assert re.search(rf"\b{request.__name__}\b(: |\])", table), f"{request.__name__}: no handler in gateways/kafka/apis"
    assert is_proven(request), (
        f"{request.__name__}: neither a dialogue that Apache Kafka answers beside us (tests/conformance/differential) "
        "nor bytes of a real client (tests/golden/wire)"
    )


def is_proven(request: type) -> bool:
    module = request.__module__.rpartition(".")[2]
    dialogues = (ROOT / "tests" / "conformance" / "differential").glob("*.py")
    if any(re.search(rf"\b{module}\b", path.read_text()) for path in dialogues):
        return True
    name = request.__name__.removesuffix("Request")
    captured = (ROOT / "tests" / "golden" / "wire").glob("requests_*.txt")
    return any(re.search(rf"^{name} \d", path.read_text(), re.MULTILINE) for path in captured)


# A CLI noun


# They are made of a node's own layers, so main.py and metadata_command.py declare them.
OF_THE_PROGRAM: Final = {"metadata", "serve"}


def nouns() -> list[str]:
    commands = [each.name for each in app.registered_commands] + [each.name for each in app.registered_groups]
    return sorted(name for name in commands if name is not None and name not in OF_THE_PROGRAM)


@pytest.mark.parametrize("noun", nouns())
def test_every_noun_has_its_command_and_its_work(noun: str) -> None:
    home = AT_HOME_ELSEWHERE.get(noun, noun)
    assert (SOURCE / "cli" / "commands" / f"{home}.py").exists(), f"{noun}: what it takes is not declared"
    work = SOURCE / "cli" / "work" / home
    assert work.with_suffix(".py").exists() or work.is_dir(), f"{noun}: its work is not in cli/work/{home}"


# A metric


def metrics_in_the_code() -> list[tuple[str, str]]:
    """Names and what they say, wherever one is made."""
    found: list[tuple[str, str]] = []
    for path in sorted(SOURCE.rglob("*metrics.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                name, words = node.args[:2]
                if isinstance(name, ast.Constant) and str(name.value).startswith("penstock_"):
                    assert isinstance(words, ast.Constant), f"{name.value}: its help must stand beside it"
                    found.append((str(name.value), str(words.value).rstrip(".")))
    return found


def test_every_metric_is_on_the_page_in_the_words_of_the_code() -> None:
    found = metrics_in_the_code()
    assert len(found) > 40, "metrics are made in another way now: this test does not see them"
    page = METRICS_PAGE.read_text()
    lines = dict(re.findall(r"^\| `(penstock_\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    told = {name.removesuffix("_total"): words for name, words in lines.items()}
    assert told == dict(found)


def test_no_metric_is_made_where_nobody_looks_for_it() -> None:
    """A room's metrics are in its metrics.py: there the page's test finds them."""
    elsewhere = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCE.rglob("*.py")
        if not path.name.endswith("metrics.py")
        for name in re.findall(r'"(penstock_\w+)"', path.read_text())
        if "pipeline" not in path.parts and "cli" not in path.parts
    ]
    assert not elsewhere, "\n".join(elsewhere)


# A page


def test_somebody_links_to_every_page() -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    texts = {path: path.read_text() for path in [*pages, *ROOT.glob("*.md")]}
    linked = {
        (path.parent / target).resolve()
        for path, text in texts.items()
        for target in re.findall(r"\]\(([^)#\s]+)", text)
        if "://" not in target
    }
    lonely = [str(path.relative_to(ROOT)) for path in pages if path.resolve() not in linked]
    assert not lonely, f"{lonely}: nobody would find them: link to them in README.md or in a page"
