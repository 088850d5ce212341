"""What a node's settings mean together: which are refused, which are warned of, and what clients are told of them."""

from __future__ import annotations

import ipaddress
import socket

from penstock.base.config_error import ConfigError
from penstock.base.log_events import get_logger
from penstock.cluster.catalog.placing import REPLICATION_BY_DEFAULT
from penstock.config import Config
from penstock.domain.config.change import ConfigEntry, node_entry
from penstock.domain.config.definition import ConfigType
from penstock.domain.config.topic import validate
from penstock.domain.security.sasl import OAUTHBEARER, PLAIN
from penstock.gateways.door import is_off
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.gateways.node_address import NodeAddress, advertised_address, join_address, split_address

_log = get_logger("node")


def check_settings(config: Config) -> None:
    """Raises ConfigError for what each part alone cannot know."""
    problems = validate(config.broker.topic_defaults)
    if problems:
        raise ConfigError(f"configuration: [broker] topic_defaults: {problems[0].reason}")
    problem = config.kafka.check()
    if problem is not None:
        raise ConfigError(f"configuration: [kafka] {problem}")
    problem = config.metadata.check()
    if problem is not None:
        raise ConfigError(f"configuration: [metadata] {problem}")
    if OAUTHBEARER in config.kafka.sasl_mechanisms and _is_beyond_loopback(config.kafka.listen, "kafka"):
        # Whoever can write a name is believed: that is no login where strangers can connect.
        raise ConfigError(
            "configuration: [kafka] sasl_mechanisms: OAUTHBEARER takes tokens that nobody has signed, so it is "
            f"served on loopback only, not on {config.kafka.listen}"
        )
    advertised_address(config.kafka.advertised)
    nobody = [name for name in config.access.super_users if not name.partition(":")[2]]
    if nobody:
        raise ConfigError(f"configuration: [access] super_users: {nobody[0]!r} is not of the form User:NAME")


def warn_of_open_doors(config: Config) -> None:
    kafka, http = config.kafka, config.http
    if _is_beyond_loopback(kafka.listen, "kafka"):
        if not kafka.sasl_mechanisms:
            _log.warning("the Kafka door asks nobody for a login: whoever reaches it is let in", listen=kafka.listen)
        elif PLAIN in kafka.sasl_mechanisms:
            _log.warning("passwords travel in clear: there is no TLS yet", listen=kafka.listen)
    if OAUTHBEARER in kafka.sasl_mechanisms:
        _log.warning("tokens are believed without a signature", setting="kafka.unsecured_tokens")
    if _is_beyond_loopback(http.listen, "http") or (kafka.sasl_mechanisms and not is_off(http.listen)):
        _log.warning("the HTTP door asks nobody for a login: whoever reaches it is anonymous", listen=http.listen)


def node_entries(config: Config, address: NodeAddress, *, node_id: int, log_directory: str) -> list[ConfigEntry]:
    """What DescribeConfigs tells of this node, by the names that Kafka's tools know."""
    broker, kafka = config.broker, config.kafka
    whole, long, truth = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN
    protocol = "SASL_PLAINTEXT" if kafka.sasl_mechanisms else "PLAINTEXT"
    settings = {
        "broker.id": (str(node_id), whole, "The id of this node."),
        "listeners": (f"{protocol}://{kafka.listen}", ConfigType.STRING, "Where the Kafka door listens."),
        "advertised.listeners": (
            f"{protocol}://{_advertised(kafka, address)}",
            ConfigType.STRING,
            "Where clients are told to connect.",
        ),
        "sasl.enabled.mechanisms": (",".join(kafka.sasl_mechanisms), ConfigType.LIST, "How clients may log in."),
        "connections.max.reauth.ms": (
            str(kafka.reauthentication_ms_max),
            long,
            "After this a client has to log in again; 0: never.",
        ),
        "connection.failed.authentication.delay.ms": (
            str(kafka.failed_login_delay_ms),
            whole,
            "How late a login is refused.",
        ),
        "log.dirs": (log_directory, ConfigType.STRING, "Where the logs lie."),
        "auto.create.topics.enable": (
            str(broker.auto_create_topics).lower(),
            truth,
            "Metadata creates unknown topics.",
        ),
        "num.partitions": (str(broker.default_partitions), whole, "Partitions of a topic that does not say."),
        "socket.request.max.bytes": (str(kafka.frame_bytes_max), whole, "The largest request."),
        "connections.max.idle.ms": (str(kafka.idle_ms_max), long, "After this a silent connection is closed."),
        "fetch.max.bytes": (str(broker.fetch_bytes_max), whole, "The largest Fetch reply."),
        "transaction.max.timeout.ms": (
            str(config.transactions.timeout_ms_max),
            whole,
            "The longest time that a producer may ask for its transactions.",
        ),
        "transactional.id.expiration.ms": (
            str(config.transactions.id_expiration_ms),
            whole,
            "After this a transactional id that nobody uses is forgotten.",
        ),
        **_cluster_settings(config),
    }
    return [
        node_entry(name, value, documentation=text, config_type=kind) for name, (value, kind, text) in settings.items()
    ]


def _cluster_settings(config: Config) -> dict[str, tuple[str, ConfigType, str]]:
    return {
        "default.replication.factor": (
            str(config.broker.default_replication or REPLICATION_BY_DEFAULT),
            ConfigType.INT,
            "Replicas of a topic that does not say; no more than there are nodes, unless it is configured.",
        ),
        "broker.rack": (config.node.rack or socket.gethostname(), ConfigType.STRING, "What fails together."),
        "broker.session.timeout.ms": (
            str(config.cluster.session_ms),
            ConfigType.INT,
            "For so long a node that says nothing is not taken for dead.",
        ),
        "replica.lag.time.max.ms": (
            str(config.cluster.replica_lag_ms),
            ConfigType.LONG,
            "A follower that was behind for so long is waited for no longer.",
        ),
    }


def _advertised(kafka: KafkaServerConfig, address: NodeAddress) -> str:
    """Known once the door listens, and nobody can ask before. Where each client is told another address: the one that
    is listened on."""
    return join_address(address.host, address.port) if address.host else kafka.listen


def _is_beyond_loopback(listen: str, what: str) -> bool:
    """Whether others than this machine's can reach the door."""
    return not is_off(listen) and not _is_loopback(split_address(listen, what)[0])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
