"""What one setting is: name, type, default, bounds, a sentence about it; and how its text becomes a value.

Settings travel as text, as in Kafka's admin requests. Text becomes a value here and nowhere else, by Java's
rules and not by Python's: `1_000` and `٣` are no numbers, `TRUE` is a boolean, numbers are plain (no "7d", no
"64MiB").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Kafka's numbers, as DescribeConfigs answers them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigProblem(msgspec.Struct, frozen=True):
    """Why a setting is refused: which one, and a whole sentence for the person who sent it."""

    name: str
    reason: str


class ConfigDefinition(msgspec.Struct, frozen=True):
    name: str
    type: ConfigType
    default: str
    documentation: str
    lowest: float | None = None
    highest: float | None = None
    allowed: tuple[str, ...] = ()
    # What Kafka's brokers call the node-wide default of this topic setting.
    node_name: str | None = None
    # Why nothing looks at it: it is about something that a node does not have. Empty: it has an effect.
    idle_because: str = ""
    # A text beside the words of `allowed`: what it looks like, and what people are told of it.
    pattern: str = ""
    pattern_told: str = ""

    @property
    def described(self) -> str:
        """The documentation as users see it, honest about what the setting does here."""
        return f"{self.documentation} No effect here: {self.idle_because}." if self.idle_because else self.documentation

    def parse(self, text: str) -> ConfigValue | ConfigProblem:
        value = self._typed(text.strip())
        if value is None:
            return self._refused(text)
        if isinstance(value, int | float) and not self._within_bounds(value):
            return self._refused(text)
        if self.allowed:
            words = value if isinstance(value, tuple) else (value,)
            if any(word not in self.allowed and not self._fits_pattern(word) for word in words):
                return self._refused(text)
        return value

    @property
    def expectation(self) -> str:
        """What a legal value looks like, for the end of a sentence."""
        if self.allowed:
            one_or_more = "one or more of" if self.type is ConfigType.LIST else "one of"
            told = (*self.allowed, self.pattern_told) if self.pattern_told else self.allowed
            return f"{one_or_more} {', '.join(told)}"
        match self.type:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.LIST:
                return "a list separated by commas"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return f"a whole number from {int(self._lowest)} to {int(self._highest)}"
            case ConfigType.DOUBLE:
                return f"a number from {self._lowest:g} to {self._highest:g}"
            case _:
                return "text"

    @property
    def _lowest(self) -> float:
        if self.lowest is not None:
            return self.lowest
        return LONG_MIN if self.type is ConfigType.LONG else INT_MIN

    @property
    def _highest(self) -> float:
        if self.highest is not None:
            return self.highest
        return LONG_MAX if self.type is ConfigType.LONG else INT_MAX

    def _fits_pattern(self, word: object) -> bool:
        return bool(self.pattern) and isinstance(word, str) and re.fullmatch(self.pattern, word) is not None

    def _within_bounds(self, value: float) -> bool:
        if isinstance(value, bool):
            return True
        return self._lowest <= value <= self._highest

    def _typed(self, text: str) -> ConfigValue | None:
        match self.type:
            case ConfigType.BOOLEAN:
                return {"true": True, "false": False}.get(text.lower())
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return int(text) if _INTEGER.fullmatch(text) else None
            case ConfigType.DOUBLE:
                return float(text) if _DECIMAL.fullmatch(text) else None
            case ConfigType.LIST:
                return split_list(text)
            case _:
                return text

    def _refused(self, text: str) -> ConfigProblem:
        # Cut: the text is a client's and ends up in error messages and logs.
        shown = text if len(text) <= 80 else text[:77] + "..."
        return ConfigProblem(self.name, f"{self.name} is {shown!r}, expected {self.expectation}")


def split_list(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def read_value(
    definitions: Mapping[str, ConfigDefinition], name: str, text: str | None, *, kind: str
) -> ConfigValue | ConfigProblem:
    """The value of one of these settings; `kind` ends the sentence on a name that is none of them."""
    definition = definitions.get(name)
    if definition is None:
        return ConfigProblem(name, f"{name[:80]!r} is not {kind}")
    if text is None:
        return ConfigProblem(name, f"{name} has no value, expected {definition.expectation}")
    return definition.parse(text)
