"""The settings of the Kafka door, and those of them that hold for whoever speaks Kafka's frames."""

from __future__ import annotations

import msgspec

from penstock.domain.security.sasl import OAUTHBEARER
from penstock.gateways.kafka.sasl import KNOWN_MECHANISMS


class ServerLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # As Kafka's socket.request.max.bytes.
    frame_bytes_max: int = 100 * 1024 * 1024
    # As Kafka's connections.max.idle.ms.
    idle_ms_max: int = 600_000
    connections_max: int = 10_000
    # Bytes of requests too large for a connection's own buffer, held by all connections together.
    request_bytes_max: int = 512 * 1024 * 1024
    # Replies that may wait in one connection's transport before its requests are left unread.
    write_buffer_bytes_max: int = 1024 * 1024
    # Replies that clients have not taken yet, of all connections together: the more there is, the less a Fetch brings.
    reply_bytes_max: int = 512 * 1024 * 1024
    # How long a stopping node waits for what is in flight.
    drain_ms_max: int = 5_000
    # For a login to be done; connections that are not through by then are closed.
    login_ms_max: int = 30_000


class KafkaServerConfig(ServerLimits, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:9092"
    # HOST:PORT that clients are told to connect to. Empty: the address that is listened on; where that is every address
    # of the machine (0.0.0.0, [::]), the one that the client's connection came in by.
    advertised: str = ""
    # How clients may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Empty: nobody has to.
    sasl_mechanisms: tuple[str, ...] = ()
    # Passwords of users that are there from the first start on, by name. All others are kept in the metadata.
    users: dict[str, str] = {}
    # As Kafka's connections.max.reauth.ms: after this a client has to log in again. 0: never.
    reauthentication_ms_max: int = 0
    # As Kafka's connection.failed.authentication.delay.ms.
    failed_login_delay_ms: int = 100
    # OAUTHBEARER believes tokens that nobody has signed. For development, never where strangers can connect.
    unsecured_tokens: bool = False

    def check(self) -> str | None:
        """Why nobody could log in by these settings, or everybody; None if all is well."""
        unknown = [name for name in self.sasl_mechanisms if name not in KNOWN_MECHANISMS]
        if unknown:
            return f"sasl_mechanisms: {unknown[0]!r} is not one of {', '.join(KNOWN_MECHANISMS)}"
        if OAUTHBEARER in self.sasl_mechanisms and not self.unsecured_tokens:
            return (
                "sasl_mechanisms: OAUTHBEARER takes tokens without looking at signatures, which are not checked yet; "
                "unsecured_tokens = true says that this is meant"
            )
        if self.users and not self.sasl_mechanisms:
            return "users have passwords, but sasl_mechanisms is empty: nobody would be asked for one"
        if not all(name and password for name, password in self.users.items()):
            return "users: a name or a password is empty"
        return None
