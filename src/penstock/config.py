"""One frozen `Config`, made of each layer's own section.

Later wins: built-in defaults, then the file (TOML; YAML with the extra `yaml`), then the environment
(`PENSTOCK_<SECTION>__<KEY>`, for instance PENSTOCK_KAFKA__LISTEN; lists with commas, tables as JSON), then flags. A
name that does not exist is an error, not a silence: a misspelt setting must not run with its default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_origin

import msgspec

from penstock.base.log_events import LogFormat, LogLevel
from penstock.base.typed_values import convert, read_json
from penstock.broker.broker_config import BrokerConfig
from penstock.broker.otel_config import OtelConfig
from penstock.domain.acl import AccessSettings
from penstock.domain.group_values import GroupConfig
from penstock.domain.share_group import ShareGroupConfig
from penstock.domain.transaction_rules import TransactionSettings
from penstock.gateways.http_server import HttpServerConfig
from penstock.gateways.kafka_server_config import KafkaServerConfig
from penstock.gateways.metrics_page import MetricsConfig
from penstock.storage.storage_config import StorageConfig

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"


class ConfigError(Exception):
    """The configuration cannot be used; the message is one sentence for the person who wrote it."""


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: int = 1
    data_dir: str = "penstock-data"
    # Everything in memory, nothing on disk: for tests and for trying out.
    memory: bool = False
    # What the logs in memory may take; then writes are refused, as on a full disk.
    memory_bytes_max: int = 1024 * 1024 * 1024
    # Where the metadata lives: sqlite:PATH; empty: in the data directory.
    metadata: str = ""


class LogEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: LogFormat = "text"
    level: LogLevel = "info"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeConfig = NodeConfig()
    kafka: KafkaServerConfig = KafkaServerConfig()
    http: HttpServerConfig = HttpServerConfig()
    metrics: MetricsConfig = MetricsConfig()
    access: AccessSettings = AccessSettings()
    broker: BrokerConfig = BrokerConfig()
    groups: GroupConfig = GroupConfig()
    share_groups: ShareGroupConfig = ShareGroupConfig()
    transactions: TransactionSettings = TransactionSettings()
    storage: StorageConfig = StorageConfig()
    log: LogEventsConfig = LogEventsConfig()
    otel: OtelConfig = OtelConfig()


Settings = dict[str, dict[str, Any]]


def load_config(file: Path | None, environment: Mapping[str, str], flags: Settings) -> Config:
    settings: Settings = {}
    if file is not None:
        _merge(settings, _read_file(file))
    _merge(settings, _from_environment(environment))
    _merge(settings, flags)
    _refuse_unknown(settings)
    try:
        return convert(settings, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration: {error}") from error


def _read_file(file: Path) -> Settings:
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from error
    try:
        loaded = _parse_yaml(text) if file.suffix in {".yaml", ".yml"} else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {file}: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(section, dict) for section in loaded.values()):
        raise ConfigError(f"configuration file {file}: expected sections such as [kafka] with settings in them")
    return loaded


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("a YAML configuration needs the extra: pip install 'penstock[yaml]'") from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file: {error}") from error


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
    sections: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Config)}
    fields = msgspec.structs.fields(sections[section]) if section in sections else ()
    kind = next((get_origin(field.type) for field in fields if field.name == key), None)
    if kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is not dict:
        return text
    try:
        return read_json(text, dict[str, str])
    except msgspec.DecodeError:
        # Without the text, which may hold passwords.
        raise ConfigError(f'{name} is not a JSON object of texts, such as {{"name": "value"}}') from None


def _merge(settings: Settings, more: Settings) -> None:
    for section, values in more.items():
        settings.setdefault(section, {}).update(values)


def _refuse_unknown(settings: Settings) -> None:
    sections: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for section, values in settings.items():
        if section not in sections:
            raise ConfigError(f"configuration: there is no section {section!r}{_suggest(section, sections)}")
        known = [field.name for field in msgspec.structs.fields(sections[section])]
        for key in values:
            if key not in known:
                raise ConfigError(f"configuration: [{section}] has no setting {key!r}{_suggest(key, known)}")


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def split_address(address: str, what: str) -> tuple[str, int]:
    """`HOST:PORT`, where port 0 picks a free one."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{what}: {address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
