"""One frozen `Config`, made of each layer's own section.

Later wins: built-in defaults, then the file (TOML; YAML with the extra `yaml`), then the environment
(`PENSTOCK_<SECTION>__<KEY>`, for instance PENSTOCK_KAFKA__LISTEN; lists with commas, tables as JSON), then flags. A
name that does not exist is an error, not a silence: a misspelt setting must not run with its default.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from penstock.base.config_error import ConfigError
from penstock.base.log_events import LogFormat, LogLevel
from penstock.base.typed_values import convert, read_json
from penstock.broker.config import BrokerConfig
from penstock.broker.otel.config import OtelConfig
from penstock.cluster.session import SESSION_MS
from penstock.cluster.store.settings import MetadataConfig
from penstock.domain.group.values import GroupConfig
from penstock.domain.security.acl import AccessSettings
from penstock.domain.share.machine import ShareGroupConfig
from penstock.domain.transaction.rules import TransactionSettings
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.gateways.metrics_page import MetricsConfig
from penstock.storage.config import StorageConfig

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"
# Of a value that cannot be used: enough to find it.
SHOWN_CHARACTERS_MAX: Final = 60
_ERROR_PLACE: Final = re.compile(r"`\$\.(\w+)\.(\w+)")
_TYPE_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list of texts",
    dict: "a table of texts",
}


# As Kafka's node.id: what fits the protocol's 32 bits and is not below 0, where the protocol means "no node".
NodeId = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]


# Below it a node's renewals, three in this time, would come too late for no reason; above it nobody would wait for it.
SessionMs = Annotated[int, msgspec.Meta(ge=2_000, le=60_000)]
PositiveMs = Annotated[int, msgspec.Meta(ge=1)]
PositiveBytes = Annotated[int, msgspec.Meta(ge=1)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # 0: the next that is free; the data directory keeps it.
    id: NodeId = 1
    # What fails together, such as a room or a zone: replicas are spread over racks. Empty: the name of the host.
    rack: str = ""
    data_dir: str = "penstock-data"
    # Everything in memory, nothing on disk: for tests and for trying out.
    memory: bool = False
    # What the logs in memory may take; then writes are refused, as on a full disk.
    memory_bytes_max: int = 1024 * 1024 * 1024
    # Where the metadata are: sqlite:PATH or etcd:URL,URL[/PREFIX]; empty: in the data directory.
    metadata: str = ""


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What nodes have to do with each other."""

    # The door for other nodes alone. `off`: this node is and stays alone.
    listen: str = "off"
    # Where other nodes find that door; empty: where it listens.
    advertised: str = ""
    # For so long a node that says nothing is not taken for dead. Shorter is no faster where machines are busy: whoever
    # is only late is replaced, and everything moves for nothing.
    session_ms: SessionMs = SESSION_MS
    # As Kafka's replica.lag.time.max.ms: a follower that was behind for so long is waited for no longer.
    replica_lag_ms: PositiveMs = 10_000
    # What this node fetches at the most from one leader of what is far behind.
    catch_up_bytes_per_second: PositiveBytes = 64 * 1024 * 1024
    # A follower whose journal (of groups, transactions, queues, delays) has got so many records since the last saved
    # start, or so many bytes, makes the next one: about as much is replayed when it has to take over.
    rehearsal_rows: PositiveCount = 50_000
    rehearsal_bytes: PositiveBytes = 64 * 1024 * 1024


class LogEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: LogFormat = "text"
    level: LogLevel = "info"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeConfig = NodeConfig()
    metadata: MetadataConfig = MetadataConfig()
    kafka: KafkaServerConfig = KafkaServerConfig()
    http: HttpServerConfig = HttpServerConfig()
    metrics: MetricsConfig = MetricsConfig()
    access: AccessSettings = AccessSettings()
    cluster: ClusterConfig = ClusterConfig()
    broker: BrokerConfig = BrokerConfig()
    groups: GroupConfig = GroupConfig()
    share_groups: ShareGroupConfig = ShareGroupConfig()
    transactions: TransactionSettings = TransactionSettings()
    storage: StorageConfig = StorageConfig()
    log: LogEventsConfig = LogEventsConfig()
    otel: OtelConfig = OtelConfig()


Settings = dict[str, dict[str, Any]]


class Source(msgspec.Struct, frozen=True):
    """Where settings come from, so that a mistake is told where it was made."""

    # What the name of a setting stands behind.
    place: str
    settings: Settings
    is_environment: bool = False

    def name_of(self, section: str, key: str) -> str:
        if self.is_environment:
            return f"{ENVIRONMENT_PREFIX}{section.upper()}__{key.upper()}"
        return f"{self.place}: [{section}] {key}"


def load_config(file: Path | None, environment: Mapping[str, str], flags: Settings) -> Config:
    sources = [Source(f"configuration file {file}", _read_file(file))] if file is not None else []
    sources.append(Source("environment", _from_environment(environment), is_environment=True))
    sources.append(Source("command line", flags))
    settings: Settings = {}
    for source in sources:
        _refuse_unknown(source)
        for section, values in source.settings.items():
            settings.setdefault(section, {}).update(values)
    try:
        return convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, sources)) from error


def _explain(error: msgspec.ValidationError, sources: Sequence[Source]) -> str:
    """Which setting of which source, and what may stand there."""
    found = _ERROR_PLACE.search(str(error))
    if found is None:
        return f"configuration: {error}"
    section, key = found.groups()
    # The last that names it is the one that counted.
    source = next(each for each in reversed(sources) if key in each.settings.get(section, {}))
    value = source.settings[section][key]
    kind = _types_of(section)[key]
    is_shown = isinstance(value, bool | int | float | str) and not _is_secret(kind)
    shown = f" is {str(value)[:SHOWN_CHARACTERS_MAX]!r}" if is_shown else ""
    return f"{source.name_of(section, key)}{shown}; allowed: {describe_allowed(kind)}"


def _is_secret(kind: Any) -> bool:
    marks = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return any(isinstance(mark, msgspec.Meta) and (mark.extra or {}).get("is_secret") for mark in marks)


def _read_file(file: Path) -> Settings:
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from error
    try:
        loaded = _parse_yaml(text, file) if file.suffix in {".yaml", ".yml"} else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {file}: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(section, dict) for section in loaded.values()):
        raise ConfigError(f"configuration file {file}: expected sections such as [kafka] with settings in them")
    return loaded


def _parse_yaml(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("a YAML configuration needs the extra: pip install 'penstock[yaml]'") from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file {file}: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> Settings:
    settings: Settings = {}
    for name in sorted(environment):
        section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).partition("__")
        if name.startswith(ENVIRONMENT_PREFIX) and separator:
            section, key = section.lower(), key.lower()
            settings.setdefault(section, {})[key] = _parse_variable(name, environment[name], section, key)
    return settings


def _parse_variable(name: str, text: str, section: str, key: str) -> Any:
    """A list is written with commas, a table as JSON; msgspec reads the rest from text by itself."""
    kind = get_origin(_types_of(section).get(key))
    if kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is not dict:
        return text
    try:
        return read_json(text, dict[str, str])
    except msgspec.DecodeError:
        # Without the text, which may hold passwords.
        raise ConfigError(f'{name} is not a JSON object of texts, such as {{"name": "value"}}') from None


def _types_of(section: str) -> dict[str, Any]:
    """The settings of a section with their types; none, if there is no such section."""
    sections: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Config)}
    fields = msgspec.structs.fields(sections[section]) if section in sections else ()
    return {field.name: field.type for field in fields}


def describe_allowed(kind: Any) -> str:
    """What a setting of this type may be, in words."""
    bounds = ""
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        bounds = "".join(_describe_bounds(mark) for mark in marks if isinstance(mark, msgspec.Meta))
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(map(str, get_args(kind)))
    if origin in (Union, UnionType):
        return " or ".join(describe_allowed(each) for each in get_args(kind) if each is not type(None))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(each.value) for each in kind)
    return f"{_TYPE_WORDS.get(origin or kind, 'something else')}{bounds}"


def _describe_bounds(mark: msgspec.Meta) -> str:
    low = f" from {mark.ge:,}" if mark.ge is not None else ""
    return low + (f" to {mark.le:,}" if mark.le is not None else "")


def _refuse_unknown(source: Source) -> None:
    sections = [field.name for field in msgspec.structs.fields(Config)]
    for section, values in source.settings.items():
        if section not in sections:
            raise ConfigError(f"{source.place}: there is no section {section!r}{_suggest(section, sections)}")
        known = _types_of(section)
        for key in values:
            if key not in known:
                raise ConfigError(f"{source.place}: [{section}] has no setting {key!r}{_suggest(key, known)}")


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
