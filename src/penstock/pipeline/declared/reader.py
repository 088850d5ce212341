"""YAML into the structs of `document`, with the line of everything: a file's mistakes are told all at once.

PyYAML gives the tree with its marks; the walk below follows the types of the structs. Anchors, aliases and `<<` work;
keys at the top that begin with `x-` are nobody's, a place for anchors. `${NAME}` and `${NAME:-default}` in a value are
taken from the environment, `$${` is a `${` that stays.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.pipeline.declared.document import Document
from penstock.pipeline.declared.problems import Path, Place, Problems, suggestion

if TYPE_CHECKING:
    import yaml

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TAG: Final = "tag:yaml.org,2002:"
_TRUTHS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# An anchor can name itself: a tree deeper than this is none.
_DEPTH_MAX: Final = 32


class _Unread:
    """Instead of a value that could not be read; a problem says why."""


_UNREAD: Final = _Unread()


def read_document(text: str, environment: Mapping[str, str], problems: Problems) -> Document | None:
    """None: something is wrong, and `problems` says what."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        _add_syntax(error, problems)
        return None
    if root is None:
        problems.add((), "the file is empty: `pipelines:` is meant")
        return None
    value = _Walk(environment, problems).read(root, Document, ())
    return value if isinstance(value, Document) and not problems.errors else None


def _add_syntax(error: yaml.YAMLError, problems: Problems) -> None:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or " ".join(str(error).split())
    context, began = getattr(error, "context", None), getattr(error, "context_mark", None)
    since = "" if began is None else f" from line {began.line + 1} on"
    told = f"no YAML: {text}" + (f" ({context}{since})" if context else "")
    if "'\\t'" in text:
        told = "no YAML: the line begins with a tab, spaces are meant"
    problems.add((), told, line=None if mark is None else mark.line + 1)


class _Walk:
    def __init__(self, environment: Mapping[str, str], problems: Problems) -> None:
        self._environment = environment
        self._problems = problems

    def read(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        self._problems.places[path] = _place(node)
        if len(path) > _DEPTH_MAX:
            return self._refuse(path, "too deep: does an anchor contain itself?")
        origin = typing.get_origin(kind)
        if origin in (typing.Union, types.UnionType):
            return self._read_union(node, typing.get_args(kind), path)
        if origin is dict:
            return self._read_dict(node, typing.get_args(kind)[1], path)
        if origin is list:
            return self._read_list(node, typing.get_args(kind)[0], path)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._read_struct(node, kind, path)
        return self._read_scalar(node, kind, path)

    # -- mappings

    def _read_struct(self, node: yaml.Node, kind: type[msgspec.Struct], path: Path) -> Any:
        pairs = self._pairs(node, path)
        if pairs is None:
            return _UNREAD
        hints = typing.get_type_hints(kind)
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for name, value in pairs.items():
            if name in fields:
                values[name] = self.read(value, hints[name], (*path, name))
            elif path or not name.startswith("x-"):
                self._problems.places[*path, name] = _place(value)
                self._refuse((*path, name), f"not known here{suggestion(name, fields)}{_choices(name, fields)}")
        for name, field in fields.items():
            if field.required and name not in pairs:
                self._refuse(path, f"`{name}` is missing")
                values[name] = _UNREAD
        # As far as it could be read, the rest of the file is checked as well, but nothing is made of it.
        return _UNREAD if any(value is _UNREAD for value in values.values()) else kind(**values)

    def _read_dict(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        pairs = self._pairs(node, path)
        if pairs is None:
            return _UNREAD
        values = {name: self.read(value, kind, (*path, name)) for name, value in pairs.items()}
        return _UNREAD if any(value is _UNREAD for value in values.values()) else values

    def _pairs(self, node: yaml.Node, path: Path, depth: int = 0) -> dict[str, yaml.Node] | None:
        import yaml

        if not isinstance(node, yaml.MappingNode) or depth > _DEPTH_MAX:
            self._refuse(path, f"{_shown(node)}, a mapping (`name: value`) is meant")
            return None
        pairs: dict[str, yaml.Node] = {}
        merged: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if key.tag == f"{_TAG}merge":
                others = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for other in reversed(others):
                    merged |= self._pairs(other, path, depth + 1) or {}
            elif name in pairs:
                self._problems.add((*path, name), "stands here twice", line=key.start_mark.line + 1)
            else:
                pairs[name] = value
        return merged | pairs

    # -- lists, choices, scalars

    def _read_list(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        import yaml

        if not isinstance(node, yaml.SequenceNode):
            return self._refuse(path, f"{_shown(node)}, a list is meant")
        values = [self.read(value, kind, (*path, number)) for number, value in enumerate(node.value)]
        return _UNREAD if any(value is _UNREAD for value in values) else values

    def _read_union(self, node: yaml.Node, kinds: Sequence[Any], path: Path) -> Any:
        import yaml

        if node.tag == f"{_TAG}null" and type(None) in kinds:
            return None
        left = [kind for kind in kinds if kind is not type(None)]
        if all(isinstance(kind, type) and hasattr(kind, "KEYS") for kind in left):
            return self._read_keyed(node, left, path)
        wanted = [kind for kind in left if (typing.get_origin(kind) is list) == isinstance(node, yaml.SequenceNode)]
        return self.read(node, (wanted or left)[0], path)

    def _read_keyed(self, node: yaml.Node, kinds: Sequence[Any], path: Path) -> Any:
        """One key tells which struct it is."""
        pairs = self._pairs(node, path)
        if pairs is None:
            return _UNREAD
        keys = {key: kind for kind in kinds for key in kind.KEYS}
        given = [key for key in pairs if key in keys]
        if len(given) == 1:
            return self._read_struct(node, keys[given[0]], path)
        choices = ", ".join(keys)
        if given:
            return self._refuse(path, f"only one of {choices} can be given, not {' and '.join(given)}")
        told = next((hint for name in pairs if (hint := suggestion(name, keys))), "")
        return self._refuse(path, f"one of {choices} must be given{told}")

    def _read_scalar(self, node: yaml.Node, kind: Any, path: Path) -> Any:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            return self._refuse(path, f"{_shown(node)}, {_meant(kind)} is meant")
        if node.tag == f"{_TAG}null":
            return self._refuse(path, f"is empty, {_meant(kind)} is meant")
        text = self._with_variables(str(node.value), path)
        if text is None:
            return _UNREAD
        if kind is str:
            return text
        if kind is bool:
            return _TRUTHS.get(text.lower(), None) if text.lower() in _TRUTHS else self._wrong(path, text, kind)
        if kind is int:
            digits = text.replace("_", "").strip()
            return int(digits) if digits.lstrip("-").isdigit() else self._wrong(path, text, kind)
        assert issubclass(kind, StrEnum), f"{path}: nothing reads a {kind}"
        known = [member.value for member in kind]
        if text not in known:
            return self._refuse(path, f"{text!r} is none of {', '.join(known)}{suggestion(text, known)}")
        return kind(text)

    def _with_variables(self, text: str, path: Path) -> str | None:
        missing: list[str] = []

        def replace(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            if name is None:
                return "${"
            if name not in self._environment and default is None:
                missing.append(name)
            return self._environment.get(name) or default or ""

        filled = _VARIABLE.sub(replace, text)
        for name in missing:
            self._refuse(path, f"the variable {name} is not set; ${{{name}:-default}} gives one that is used then")
        return None if missing else filled

    def _wrong(self, path: Path, text: str, kind: Any) -> _Unread:
        return self._refuse(path, f"{text!r}, {_meant(kind)} is meant")

    def _refuse(self, path: Path, text: str) -> _Unread:
        self._problems.add(path, text)
        return _UNREAD


def _place(node: yaml.Node) -> Place:
    mark = node.start_mark
    is_block = getattr(node, "style", None) in ("|", ">")
    return Place(mark.line + 1, mark.column + 1, mark.line + (2 if is_block else 1))


def _shown(node: yaml.Node) -> str:
    kind = type(node).__name__.removesuffix("Node").lower()
    if kind == "scalar":
        return "is empty" if node.tag == f"{_TAG}null" else f"{str(node.value)[:40]!r}"
    return "a list" if kind == "sequence" else "a mapping"


def _meant(kind: Any) -> str:
    if kind is int:
        return "a whole number"
    if kind is bool:
        return "true or false"
    return "one of " + ", ".join(member.value for member in kind) if kind is not str else "a text"


def _choices(name: str, fields: Mapping[str, object]) -> str:
    """All of them, where none is alike."""
    return "" if suggestion(name, fields) else f"; known are {', '.join(fields)}"
