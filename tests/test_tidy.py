"""The house style, as far as a machine can see it. Each failure says what to do, and why.

What is checked here no linter checks: lengths, names that hide what a thing is, documents that tell the truth
about the tree. Formatting, imports and types are `make check`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "penstock"

FILE_LINES_MAX: Final = 500
# A fake world and its faults are read as one, and nothing is built on them.
TEST_FILE_LINES_MAX: Final = 700
FUNCTION_LINES_MAX: Final = 50
# A test tells a story from top to bottom, so it may be longer than a function that others must read.
TEST_FUNCTION_LINES_MAX: Final = 70

# What a thing is made of; more than that is a value of its own, such as a Site.
CONSTRUCTOR_PARAMETERS_MAX: Final = 7

MODULES_MAX: Final = 30
# Subjects of domain/ that have no room of the same name in broker/.
RULES_WITHOUT_SHELL: Final = {
    "config": "settings are read where they take effect",
    "log": "its shell is the partition: broker/partition and broker/topic",
    "security": "its shell is the door: gateways ask, cluster/catalog/access keeps the rules",
}

BANNED_WORDS: Final = {
    r"\bsimply\b": "if it were simple, nobody would have to say so",
    r"\bobviously\b": "what is obvious needs no word, what is not needs a reason",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "nobody reads these: open an issue, or say after BUG: what goes wrong",
    r"\bhw\b|\bleo\b|\blso\b|\bisr\b": "whole words: high_watermark, log_end, last_stable_offset, in_sync",
}
# Wire schemas and Kafka's own settings keep its names, and this file must name what it bans.
WORDS_ALLOWED_IN: Final = (
    "src/penstock/codec/kafka/",
    "tests/conformance/differential/reference_broker.py",
    "tests/test_tidy.py",
)

BANNED_CLASS_ENDINGS: Final = {
    "Manager": "say what it does: PartitionLog, Waiting, TaskSupervisor",
    "Service": "everything here serves: name its part, as in QueueShell",
    "Util": "a drawer without a label",
    "Utils": "a drawer without a label",
}
BANNED_CLASS_STARTS: Final = {"Abstract": "name the contract itself: Files, not AbstractFiles"}

DRAWERS: Final = frozenset({"util", "utils", "common", "misc", "core"})

# Where any error may be caught, because what lies behind is not ours to know: a connection, a task, the process.
EDGE: Final = "edge of"

MADE: Final = frozenset(
    {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    | {".import_linter_cache"}
)

MACHINE_PATHS: Final = re.compile(r"(?<![\w.~$}])/(?:home|Users|root|work|mnt)/[\w.-]+")


def tracked(*suffixes: str) -> list[Path]:
    return [path for path in all_files() if path.suffix in suffixes]


@cache
def all_files() -> list[Path]:
    """Files that a person wrote. Walked, not asked of git: a fresh machine may have none."""
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        # In place, so that the walk does not go into what tools have made.
        folders[:] = [name for name in folders if name not in MADE and not name.endswith(".egg-info")]
        found += [Path(folder) / name for name in names]
    return sorted(found)


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    return [path for path in tracked(".py") if place(path).startswith(folders)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = [
        f"{place(path)}: {lines} lines, at most {most}: it holds more than one idea, so divide it by ideas"
        for path in python_files("src", "tests", "bench", "examples")
        if (lines := len(path.read_text().splitlines()))
        > (most := TEST_FILE_LINES_MAX if place(path).startswith("tests") else FILE_LINES_MAX)
    ]
    assert not long, "\n".join(long)


def test_every_function_fits_a_screen() -> None:
    long = [
        f"{place(path)}:{node.lineno}: {node.name} has {lines} lines, at most {most}: "
        "let one function decide and others do"
        for path in python_files("src", "tests", "bench", "examples")
        for node in functions(path)
        # The body: a command's options are a list, however long.
        if (lines := (node.end_lineno or 0) - node.body[0].lineno + 1)
        > (most := TEST_FUNCTION_LINES_MAX if node.name.startswith("test_") else FUNCTION_LINES_MAX)
    ]
    assert not long, "\n".join(long)


def test_nothing_is_made_of_more_parts_than_one_can_name() -> None:
    found = [
        f"{place(path)}:{node.lineno}: {owner.name} takes {count} parameters, at most {CONSTRUCTOR_PARAMETERS_MAX}: "
        "which of them belong together?"
        for path in python_files("src", "tests/support", "bench")
        for owner in ast.walk(ast.parse(path.read_text()))
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and (count := _parameter_count(node)) > CONSTRUCTOR_PARAMETERS_MAX
    ]
    assert not found, "\n".join(found)


def _parameter_count(function: ast.FunctionDef) -> int:
    """Without `self`."""
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def test_every_module_says_what_it_is() -> None:
    silent = [
        f"{place(path)}: no docstring: open with what it is and its rules"
        for path in python_files("src", "tests/support", "bench", "examples")
        if path.read_text().strip() and ast.get_docstring(tree_of(path)) is None
    ]
    assert not silent, "\n".join(silent)


def test_no_word_stands_where_a_better_one_would() -> None:
    found = [
        f"{place(path)}:{number}: {match[0]!r}: {reason}"
        for path in tracked(".py", ".md", ".toml")
        if not place(path).startswith(WORDS_ALLOWED_IN)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for pattern, reason in BANNED_WORDS.items()
        for match in re.finditer(pattern, line)
    ]
    assert not found, "\n".join(found)


def test_no_class_is_named_for_its_importance() -> None:
    found: list[str] = []
    for path in python_files("src"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                reasons = [why for ending, why in BANNED_CLASS_ENDINGS.items() if node.name.endswith(ending)]
                reasons += [why for start, why in BANNED_CLASS_STARTS.items() if node.name.startswith(start)]
                found += [f"{place(path)}:{node.lineno}: class {node.name}: {why}" for why in reasons]
    assert not found, "\n".join(found)


def test_no_module_is_a_drawer_without_a_label() -> None:
    found = [
        f"{place(path)}: say what it is: a module of this name has no reason ever to end"
        for path in python_files("src", "tests", "bench", "examples")
        if path.stem in DRAWERS
    ]
    assert not found, "\n".join(found)


def test_any_error_is_caught_at_an_edge_only() -> None:
    """`except Exception` elsewhere would turn our own mistakes into strange behaviour far away."""
    found = [
        f"{place(path)}:{line}: catches any error: say in a comment which edge it is ('{EDGE} a connection', "
        f"'{EDGE} a task'…), raise it again after cleaning up, or catch only what can happen there"
        for path in python_files("src")
        for line in catch_alls(path)
        if EDGE not in "\n".join(path.read_text().splitlines()[line - 2 : line + 1])
    ]
    assert not found, "\n".join(found)


def catch_alls(path: Path) -> Iterator[int]:
    """Lines of handlers that catch any error and do not raise it again."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            kind = node.type.id if isinstance(node.type, ast.Name) else ""
            raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if (node.type is None or kind in {"Exception", "BaseException"}) and not raises_again:
                yield node.lineno


def test_no_path_of_somebodys_machine_is_left_behind() -> None:
    found = [
        f"{place(path)}:{number}: {match[0]}: works on one machine only"
        for path in tracked(".py", ".md", ".toml", ".json", ".yaml", ".yml", ".txt", ".svg", "")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for match in MACHINE_PATHS.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_architecture_names_every_folder() -> None:
    map_path = ROOT / "ARCHITECTURE.md"
    assert map_path.exists(), "ARCHITECTURE.md is missing: it is the map of the tree"
    text = map_path.read_text()
    folders = sorted(path for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py")))
    missing = [
        f"{place(folder)}: not on the map: say in ARCHITECTURE.md what it is for"
        for folder in folders
        if f"{folder.name}/" not in text
    ]
    assert not missing, "\n".join(missing)


def rooms() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.is_dir() and any(path.glob("*.py")))


def test_no_folder_has_more_modules_than_one_can_overlook() -> None:
    """A folder of fifty files whose subjects are prefixes of their names wants rooms."""
    found = [
        f"{place(folder)}: {count} modules, at most {MODULES_MAX}: which subjects are in it?"
        for folder in rooms()
        # One file for each message of a protocol is a table, not a room.
        if folder.name != "messages" and (count := len(list(folder.glob("*.py"))) - 1) > MODULES_MAX
    ]
    assert not found, "\n".join(found)


def test_no_module_repeats_its_folders_name() -> None:
    found = [
        f"{place(path)}: its folder says {folder.name!r} already"
        for folder in rooms()
        for path in folder.glob("*.py")
        if path.stem == folder.name or path.stem.startswith(f"{folder.name}_")
    ]
    assert not found, "\n".join(found)


def test_subject_has_the_same_word_in_rules_and_shells() -> None:
    """Whoever knows where the rules of a subject are knows where its shells are."""
    words = {path.name for path in (SOURCE / "domain").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    shells = {path.name for path in (SOURCE / "broker").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    missing = words - shells - RULES_WITHOUT_SHELL.keys()
    assert not missing, f"{sorted(missing)}: neither a room of broker nor a reason in RULES_WITHOUT_SHELL"
    assert not RULES_WITHOUT_SHELL.keys() & shells, "has a room of broker by now: take its reason out"


# Who may ask the rules of access themselves.
ASKS_THE_RULES: Final = {
    "src/penstock/gateways/admission.py": "every door asks here",
    "src/penstock/broker/group/topics.py": "what a member may see changes while its request is long over",
    "src/penstock/broker/queue/node.py": "dead letters go where the queue's author may write",
    "src/penstock/broker/queue/redrive.py": "messages go where the task's author may write",
    "src/penstock/domain/security/access.py": "the question itself",
}


def test_doors_ask_admission_and_nobody_else() -> None:
    """Logins, tenants and quotas hang there: a door that asks the rules itself goes past them."""
    found = [
        f"{place(path)}:{node.lineno}: asks the rules of access: ask gateways/admission with the request's caller"
        for path in python_files("src")
        if place(path) not in ASKS_THE_RULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "authorize"
    ]
    assert not found, "\n".join(found)


def test_doors_do_not_hold_the_rules_of_access() -> None:
    found = [
        f"{place(path)}: has an authorizer: take the Admission"
        for path in python_files("src/penstock/gateways")
        if place(path) not in ASKS_THE_RULES and "authorizer" in path.read_text().lower()
    ]
    assert not found, "\n".join(found)


def prose_lines(text: str) -> list[str]:
    """The lines of a Markdown text outside its code fences."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append(line)
    return lines


@pytest.mark.parametrize("path", tracked(".md"), ids=place)
def test_document_has_one_title(path: Path) -> None:
    titles = [line for line in prose_lines(path.read_text()) if line.startswith("# ")]
    assert len(titles) == 1, f"{place(path)}: {len(titles)} titles: a document is about one thing"


@pytest.mark.parametrize("path", tracked(".md"), ids=place)
def test_links_of_the_document_lead_somewhere(path: Path) -> None:
    prose = "\n".join(prose_lines(path.read_text()))
    broken = [
        f"{place(path)}: the link to {target} leads nowhere"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose)
        if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


# Where types are learned, one at a time.
TYPES_LEARNED_IN: Final = "src/penstock/base/typed_values.py"


def test_no_thread_can_meet_a_type_that_msgspec_has_half_learned() -> None:
    found = [
        f"{place(path)}:{line}: {what}: two first uses at once, in two threads, end the process with SIGSEGV; "
        "read by base/typed_values, or by a Decoder that the module makes when it is loaded"
        for path in python_files("src")
        if place(path) != TYPES_LEARNED_IN
        for line, what in first_uses(tree_of(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("def f(d): return msgspec.msgpack.decode(d, type=X)", True),
        ("def f(d): return msgspec.json.decode(d, type=X, strict=False)", True),
        ("async def f(d): return msgspec.convert(d, X)", True),
        ("def f(d): return msgspec.json.Decoder(X).decode(d)", True),
        ("f = lambda d: msgspec.msgpack.Decoder(X).decode(d)", True),
        ("from msgspec.json import decode", True),
        ("from msgspec import convert", True),
        ("def f(d): return msgspec.json.decode(d)", False),
        ("_decode = msgspec.json.Decoder(X).decode", False),
        ("class C:\n    decode = msgspec.json.Decoder(X).decode", False),
        ("from msgspec import Struct", False),
        ("def f(d): return read_json(d, X)", False),
    ],
)
def test_first_uses_of_a_type_are_found(source: str, is_found: bool) -> None:
    assert bool(list(first_uses(ast.parse(source)))) is is_found


def first_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where msgspec would learn a type when a function is called, not when the module is loaded."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "msgspec":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in LEARNING_NAMES)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _first_uses_in(node)


LEARNING_NAMES: Final = frozenset({"decode", "convert", "Decoder"})


def _first_uses_in(function: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if not called.startswith("msgspec.") or called.rpartition(".")[2] not in LEARNING_NAMES:
            continue
        # Without a type, plain values come out and nothing is learned.
        if not called.endswith(".decode") or any(keyword.arg == "type" for keyword in node.keywords):
            yield node.lineno, called


# Planted bugs are copies of modules with a bug in them; the true ones stay as they are.
PLANTERS: Final = ("tests/support/planted_bugs.py", "tests/support/storage/planted.py")
# Whose modules may be patched are not ours: a clock, a terminal, a library's answer.
OURS: Final = frozenset({"penstock", "support", "conformance", "bench"})


def test_no_test_patches_a_module_of_ours() -> None:
    """A patch holds a test to the name of a thing and to who imports it, and hides what should be a parameter."""
    found = [
        f"{place(path)}:{line}: patches {what}: pass it in, as a parameter, a setting or a subclass"
        for path in python_files("tests", "bench")
        if place(path) not in PLANTERS
        for line, what in patches_of_ours(tree_of(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("from penstock.x import y\nmonkeypatch.setattr(y, 'A', 1)", True),
        ("from penstock.x import y\nmonkeypatch.setattr(y.time, 'sleep', 1)", True),
        ("from penstock.x import Y\nwith p.context() as cut:\n    cut.setattr(Y, 'run', 1)", True),
        ("monkeypatch.setattr('penstock.x.y', 1)", True),
        ("monkeypatch.setattr(shell.reader, 'look', 1)", True),
        ("import penstock.node\npatch.object(penstock.node, 'Y', 1)", True),
        ("from unittest.mock import patch\npatch('penstock.x.y', 1)", True),
        ("from support import world\nmonkeypatch.setattr(world, 'A', 1)", True),
        ("from penstock.x import y\ny.A = 1", True),
        ("monkeypatch.setitem(node.server._handlers, 3, broken)", True),
        ("monkeypatch.delitem(node.server.table, 3)", True),
        ("from penstock.x import Y\nsetattr(Y, 'run', 1)", True),
        ("def f(owner, name): setattr(owner, name, 1)", True),
        ("from penstock.x import Y\ndelattr(Y, 'run')", True),
        ("node.server._handlers[3] = broken", True),
        ("from penstock.x import y\ny.TABLE[3] = broken", True),
        ("self._handlers[3] = handle", False),
        ("reply.topics[3] = topic", False),
        ("import os\nmonkeypatch.setitem(os.environ, 'A', '1')", False),
        ("import sys\nmonkeypatch.setattr(sys, 'stdout', 1)", False),
        ("monkeypatch.setattr('sys.stdin', 1)", False),
        ("monkeypatch.setenv('A', '1')", False),
        ("from penstock.codec.batch.header import patch\npatch(batch, 0, header)", False),
        ("reply = await http.patch('/v1/x')", False),
    ],
)
def test_patches_of_ours_are_found(source: str, is_found: bool) -> None:
    assert bool(list(patches_of_ours(ast.parse(source)))) is is_found


def patches_of_ours(tree: ast.Module) -> Iterator[tuple[int, str]]:
    homes = dict(imported_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                (node.lineno, ast.unparse(target)) for target in targets if is_changed_from_outside(target, homes)
            )
        elif isinstance(node, ast.Call) and node.args and is_patch(node.func, homes):
            target = node.args[0]
            if isinstance(target, ast.Constant):
                is_ours = str(target.value).partition(".")[0] in OURS
            else:
                # What is not a name from elsewhere is an object of ours, or one that holds one.
                is_ours = homes.get(root_of(target), "penstock").partition(".")[0] in OURS
            if is_ours:
                yield node.lineno, ast.unparse(target)


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that imports bring, and the whole name of what each stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_patch(called: ast.expr, homes: dict[str, str]) -> bool:
    """`setattr(…)`, `anything.setattr(…)`, or what unittest.mock brings."""
    if ast.unparse(called).rpartition(".")[2] in {"setattr", "delattr", "setitem", "delitem"}:
        return True
    return homes.get(root_of(called), "").startswith("unittest.mock") or ast.unparse(called) == "patch.object"


def is_changed_from_outside(target: ast.expr, homes: dict[str, str]) -> bool:
    """A name of a module of ours; or an item of what is in one, or of what an object keeps to itself."""
    is_item, changed = isinstance(target, ast.Subscript), target.value if isinstance(target, ast.Subscript) else target
    if not isinstance(changed, ast.Attribute):
        return False
    is_private = is_item and changed.attr.startswith("_") and ast.unparse(changed.value) not in {"self", "cls"}
    return is_private or is_module_of_ours(changed.value, homes)


def is_module_of_ours(node: ast.expr, homes: dict[str, str]) -> bool:
    """A lower-case name from our packages: an object made of a class is the test's own."""
    home = homes.get(node.id, "") if isinstance(node, ast.Name) else ""
    return home.partition(".")[0] in OURS and is_module(home)


def is_module(name: str) -> bool:
    path = name.replace(".", "/")
    return any((ROOT / root / f"{path}.py").exists() for root in ("src", "tests", ".")) or name == "penstock.x.y"
