"""Logins at the Kafka door: who gets in, who does not, and what a stranger may do meanwhile."""

from __future__ import annotations

import asyncio
import base64
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.base.config_error import ConfigError
from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from penstock.codec.kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.config import Config
from penstock.domain.security.access import Operation, ResourceType
from penstock.domain.security.acl import AccessSettings
from penstock.domain.security.login_queue import LoginQueue
from penstock.domain.security.sasl import REFUSAL, derived_salt
from penstock.domain.security.scram import Mechanism, salt_password
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.door import HASHER_THREADS
from penstock.gateways.kafka.sasl_users import SaslUsers
from penstock.gateways.kafka.server import LOGIN_FRAME_BYTES_MAX
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.node import Node
from support.door.conversation import PATIENCE_SECONDS, Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, produce
from support.door.sasl_phrases import (
    ALL_MECHANISMS,
    PASSWORD,
    USER,
    authenticate,
    handshake,
    log_in,
    login_config,
    plain,
)

# The last version of Produce that names topics.
BY_NAME = 12
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    access = AccessSettings(super_users=(f"User:{USER}",), allow_without_rule=True)
    async with running_node(kafka=login_config(), access=access) as running:
        yield running


@pytest.fixture
async def expiring() -> AsyncIterator[TalkingNode]:
    access = AccessSettings(allow_without_rule=True)
    async with running_node(kafka=login_config(reauthentication_ms_max=1_300), access=access) as running:
        yield running


async def metadata(talk: Conversation) -> MetadataResponse:
    return await talk.ask(MetadataRequest(topics=None), MetadataResponse)


@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
async def test_right_password_opens_the_door(node: TalkingNode, mechanism: str) -> None:
    talk = await node.connect()
    await talk.expect_open()
    done = await log_in(talk, mechanism)
    assert (done.error_code, done.session_lifetime_ms) == (ErrorCode.NONE, 0)
    assert (await metadata(talk)).brokers


@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), ("bob", PASSWORD)])
async def test_wrong_name_and_wrong_password_sound_the_same(
    node: TalkingNode, mechanism: str, user: str, password: str
) -> None:
    talk = await node.connect()
    refused = await log_in(talk, mechanism, user, password)
    assert (refused.error_code, refused.error_message, bytes(refused.auth_bytes)) == (FAILED, REFUSAL, b"")
    await talk.expect_closed()
    assert node.server.sasl.counts[mechanism, False] == 1


async def test_salt_of_a_name_that_is_nobodys_looks_like_one_and_stays(tmp_path: Path) -> None:
    async def challenge(node: TalkingNode, user: str) -> bytes:
        talk = await node.connect()
        await handshake(talk, "SCRAM-SHA-256")
        answer = await authenticate(talk, f"n,,n={user},r=abc".encode())
        assert answer.error_code == ErrorCode.NONE
        _, _, rest = bytes(answer.auth_bytes).partition(b",")
        return rest

    async with running_node(data_dir=str(tmp_path), kafka=login_config()) as node:
        before = [await challenge(node, user) for user in ("nobody", "somebody", USER, "nobody")]
    async with running_node(data_dir=str(tmp_path), kafka=login_config()) as node:
        after = [await challenge(node, user) for user in ("nobody", "somebody", USER, "nobody")]
    assert before == after
    assert before[0] == before[3]
    assert len(set(before)) == 3
    assert len({len(each) for each in before}) == 1


async def test_users_made_by_a_client_log_in(node: TalkingNode) -> None:
    admin = await node.connect()
    await log_in(admin)
    salt = b"salt of carol"
    salted = salt_password(Mechanism.SCRAM_SHA_256, "singer", salt=salt, iterations=5000)
    upsertion = ScramCredentialUpsertion("carol", Mechanism.SCRAM_SHA_256, 5000, salt, salted)
    request = AlterUserScramCredentialsRequest(upsertions=(upsertion,))
    answered = await admin.ask(request, AlterUserScramCredentialsResponse)
    assert [result.error_code for result in answered.results] == [ErrorCode.NONE]
    for mechanism, code in (("SCRAM-SHA-256", 0), ("PLAIN", 0), ("SCRAM-SHA-512", FAILED)):
        assert (await log_in(await node.connect(), mechanism, "carol", "singer")).error_code == code
    # Unknown names now look like hers.
    talk = await node.connect()
    await handshake(talk, "SCRAM-SHA-256")
    challenge = bytes((await authenticate(talk, b"n,,n=nobody,r=x")).auth_bytes).decode()
    assert challenge.endswith(",i=5000")
    assert len(base64.b64decode(challenge.split(",")[1][2:])) == len(salt)


async def test_password_of_a_configured_user_is_not_changed_by_clients(node: TalkingNode) -> None:
    talk = await node.connect()
    await log_in(talk)
    upsertion = ScramCredentialUpsertion("bob", Mechanism.SCRAM_SHA_256, 4096, b"salt", b"x" * 32)
    answered = await talk.ask(
        AlterUserScramCredentialsRequest(upsertions=(upsertion,)), AlterUserScramCredentialsResponse
    )
    assert [result.error_code for result in answered.results] == [ErrorCode.UNACCEPTABLE_CREDENTIAL]


# States


async def test_mechanism_that_is_not_offered_is_told_what_is_and_hung_up_on(node: TalkingNode) -> None:
    talk = await node.connect()
    for_kerberos = await handshake(talk, "GSSAPI", 0)
    assert for_kerberos.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert tuple(for_kerberos.mechanisms) == ALL_MECHANISMS
    await talk.expect_closed()


@pytest.mark.parametrize("stage", ["before", "chosen"])
async def test_request_before_the_login_closes_the_connection(node: TalkingNode, stage: str) -> None:
    talk = await node.connect()
    if stage == "chosen":
        await handshake(talk)
    await talk.send(MetadataRequest(topics=None))
    await talk.expect_closed()


async def test_token_before_the_handshake_closes_the_connection(node: TalkingNode) -> None:
    talk = await node.connect()
    await talk.send(SaslAuthenticateRequest(auth_bytes=plain()))
    await talk.expect_closed()


async def test_second_handshake_in_the_middle_ends_the_connection(node: TalkingNode) -> None:
    talk = await node.connect()
    await handshake(talk)
    assert (await handshake(talk)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    await talk.expect_closed()


async def test_requests_behind_a_wrong_password_are_never_looked_at(node: TalkingNode) -> None:
    await node.create_topic("t")
    talk = await node.connect()
    await handshake(talk)
    await talk.send(SaslAuthenticateRequest(auth_bytes=plain(password="wrong")))
    await talk.send(produce("t", batch(b"a")), BY_NAME)
    assert (await talk.hear(wire.APIS[36].response)).error_code == FAILED  # type: ignore[attr-defined]
    await talk.expect_closed()
    assert node.shell("t").log.log_end == 0


async def test_requests_behind_a_right_password_are_answered_in_order(node: TalkingNode) -> None:
    talk = await node.connect()
    await talk.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    await talk.send(SaslAuthenticateRequest(auth_bytes=plain()))
    await talk.send(MetadataRequest(topics=None))
    for key in (17, 36, 3):
        assert getattr(await talk.hear(wire.APIS[key].response), "error_code", 0) == ErrorCode.NONE


async def test_who_is_in_is_told_that_he_is(node: TalkingNode) -> None:
    talk = await node.connect()
    await log_in(talk)
    assert (await handshake(talk)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (await authenticate(talk, plain())).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (await metadata(talk)).brokers


async def test_where_nobody_logs_in_a_login_is_out_of_place() -> None:
    async with running_node() as node:
        talk = await node.connect()
        refused = await handshake(talk)
        assert (refused.error_code, tuple(refused.mechanisms)) == (ErrorCode.ILLEGAL_SASL_STATE, ())
        assert (await authenticate(talk, plain())).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await metadata(talk)).brokers


# Old clients


async def raw(talk: Conversation, token: bytes) -> bytes:
    talk.send_bytes(struct.pack(">i", len(token)) + token)
    return await talk.hear_frame()


async def test_bare_tokens_follow_the_first_version_of_the_handshake(node: TalkingNode) -> None:
    talk = await node.connect()
    assert (await handshake(talk, "PLAIN", 0)).error_code == ErrorCode.NONE
    assert await raw(talk, plain()) == b""
    assert (await metadata(talk)).brokers


async def test_bare_tokens_carry_scram_as_well(node: TalkingNode) -> None:
    from penstock.domain.security import scram_messages
    from support.door.sasl_phrases import final_message

    talk = await node.connect()
    await handshake(talk, "SCRAM-SHA-512", 0)
    first = scram_messages.write_client_first(USER, "nonce")
    challenge = await raw(talk, f"{first.gs2_header}{first.bare}".encode())
    assert (await raw(talk, final_message("SCRAM-SHA-512", first, challenge, PASSWORD))).startswith(b"v=")
    assert (await metadata(talk)).brokers


async def test_bare_token_that_is_wrong_is_hung_up_on(node: TalkingNode) -> None:
    talk = await node.connect()
    await handshake(talk, "PLAIN", 0)
    token = plain(password="wrong")
    talk.send_bytes(struct.pack(">i", len(token)) + token)
    await talk.expect_closed()


# Hostile


async def test_stranger_may_not_send_much_in_one_piece(node: TalkingNode) -> None:
    talk = await node.connect()
    talk.send_bytes(struct.pack(">i", LOGIN_FRAME_BYTES_MAX + 1))
    await talk.expect_closed()
    fits = await node.connect()
    frame = fits.frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    fits.send_bytes(frame)
    await fits.hear(SaslHandshakeResponse)
    room = LOGIN_FRAME_BYTES_MAX - len(fits.frame(SaslAuthenticateRequest(auth_bytes=b"x" * 30_000))) + 4 + 30_000
    fits._asked.pop()
    assert (await authenticate(fits, b"x" * room)).error_code == FAILED
    friend = await node.connect()
    await node.create_topic("t")
    await log_in(friend)
    await friend.send(produce("t", batch(b"x" * (LOGIN_FRAME_BYTES_MAX + 1))), BY_NAME)
    response = await friend.hear(ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("token", [b"", b"\0", b"\xff" * 100, b"\0" * 60_000])
@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
async def test_garbage_for_a_token_is_refused(node: TalkingNode, mechanism: str, token: bytes) -> None:
    talk = await node.connect()
    await handshake(talk, mechanism)
    assert (await authenticate(talk, token)).error_code == FAILED
    await talk.expect_closed()


async def test_who_dawdles_is_closed() -> None:
    async with running_node(kafka=login_config(login_ms_max=1)) as node:
        talk = await node.connect()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not node.server.connection_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        # What happens every five seconds.
        await node.server._sweep()
        await talk.expect_closed()


def users_of(node: TalkingNode) -> SaslUsers:
    users = node.server.sasl._users
    assert users is not None
    return users


async def test_who_leaves_in_the_middle_of_a_check_disturbs_nobody(node: TalkingNode) -> None:
    for _ in range(5):
        talk = await node.connect()
        await handshake(talk)
        await talk.send(SaslAuthenticateRequest(auth_bytes=plain()))
        talk.close()
    assert (await log_in(await node.connect())).error_code == ErrorCode.NONE


async def test_who_has_left_is_not_checked_any_more(node: TalkingNode) -> None:
    """Or whoever connects, sends and leaves would make others wait for as long as he likes."""
    may_end = threading.Event()
    checked: list[str] = []

    def check(_credential: object, password: str) -> bool:
        checked.append(password)
        return may_end.wait(PATIENCE_SECONDS)

    async def guess(password: str) -> Conversation:
        talk = await node.connect()
        await handshake(talk)
        await talk.send(SaslAuthenticateRequest(auth_bytes=plain(password=password)))
        return talk

    users_of(node).compare = check
    staying = [await guess(f"staying {number}") for number in range(HASHER_THREADS)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(checked) < len(staying):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for number in range(5):
            (await guess(f"leaving {number}")).close()
        while node.server.connection_count > len(staying):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    may_end.set()
    assert (await log_in(await node.connect())).error_code == ErrorCode.NONE
    assert len(checked) == HASHER_THREADS + 1
    assert checked[-1] == PASSWORD


async def test_who_was_right_a_moment_ago_does_not_wait_behind_strangers(node: TalkingNode) -> None:
    may_end = threading.Event()
    checked: list[str] = []

    def check(_credential: object, password: str) -> bool:
        checked.append(password)
        return password == PASSWORD or (may_end.wait(PATIENCE_SECONDS) and False)

    users_of(node).compare = check
    assert (await log_in(await node.connect())).error_code == ErrorCode.NONE
    strangers = []
    for number in range(50):
        talk = await node.connect()
        await handshake(talk)
        await talk.send(SaslAuthenticateRequest(auth_bytes=plain("nobody", f"guess {number}")))
        strangers.append(talk)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(checked) < 1 + HASHER_THREADS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    # Every hasher is busy and 49 strangers wait.
    assert (await log_in(await node.connect())).error_code == ErrorCode.NONE
    assert len(checked) == 1 + HASHER_THREADS
    may_end.set()
    for talk in strangers:
        assert (await talk.hear(wire.APIS[36].response)).error_code == FAILED  # type: ignore[attr-defined]


async def test_a_changed_password_ends_what_was_remembered(node: TalkingNode) -> None:
    admin = await node.connect()
    await log_in(admin)

    async def set_password(password: str) -> None:
        salted = salt_password(Mechanism.SCRAM_SHA_256, password, salt=b"salt", iterations=4096)
        wanted = ScramCredentialUpsertion("carol", Mechanism.SCRAM_SHA_256, 4096, b"salt", salted)
        request = AlterUserScramCredentialsRequest(upsertions=(wanted,))
        altered = await admin.ask(request, AlterUserScramCredentialsResponse)
        assert altered.results[0].error_code == ErrorCode.NONE

    await set_password("sings")
    for _ in range(2):
        assert (await log_in(await node.connect(), "PLAIN", "carol", "sings")).error_code == ErrorCode.NONE
    await set_password("dances")
    assert (await log_in(await node.connect(), "PLAIN", "carol", "sings")).error_code == FAILED
    assert (await log_in(await node.connect(), "PLAIN", "carol", "dances")).error_code == ErrorCode.NONE


async def test_whoever_finds_no_room_is_hung_up_on_and_not_told_that_the_password_is_wrong(node: TalkingNode) -> None:
    """Clients take a refusal for the last word, and try again when a connection ends."""
    users = users_of(node)
    with_room, users._queue = users._queue, LoginQueue(waiting_max=0)
    talk = await node.connect()
    await handshake(talk)
    await talk.send(SaslAuthenticateRequest(auth_bytes=plain()))
    await talk.expect_closed()
    users._queue = with_room
    assert (await log_in(await node.connect())).error_code == ErrorCode.NONE


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_a_name_costs_the_same_whether_it_exists(node: TalkingNode, mechanism: str) -> None:
    """Salts of names that do not exist take time to derive; so they are derived for those that do."""
    derived: list[str] = []

    def derive(secret: bytes, user: str, name: str, *, size: int) -> bytes:
        derived.append(user)
        return derived_salt(secret, user, name, size=size)

    users_of(node).derive_salt = derive
    for user in (USER, "nobody"):
        assert (await log_in(await node.connect(), mechanism, user, "wrong")).error_code == FAILED
    assert derived.count(USER) == derived.count("nobody") == 1


# Who it is


async def test_rules_hold_for_whoever_has_logged_in(node: TalkingNode) -> None:
    await node.create_topic("t")
    admin, bob = await node.connect(), await node.connect()
    await log_in(admin)
    await log_in(bob, "SCRAM-SHA-256", "bob", "builder")

    async def errors() -> list[int]:
        found = []
        for talk in (admin, bob):
            await talk.send(produce("t", batch(b"a")), BY_NAME)
            response = await talk.hear(ProduceResponse)
            found.append(response.responses[0].partition_responses[0].error_code)
        return found

    # Three times: the second teaches a route, the third takes it.
    assert [await errors() for _ in range(3)] == [[0, 0]] * 3
    rule = AclCreation(ResourceType.TOPIC, "t", 3, "User:carol", "*", Operation.ALL, 3)
    await admin.ask(CreateAclsRequest(creations=(rule,)), CreateAclsResponse)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [await errors() for _ in range(3)] == [[0, denied]] * 3


async def test_without_rules_only_super_users_get_in_where_there_are_logins() -> None:
    closed = AccessSettings(super_users=(f"User:{USER}",))
    async with running_node(kafka=login_config(), access=closed) as node:
        await node.create_topic("t")
        answers = []
        for user, password in ((USER, PASSWORD), ("bob", "builder")):
            talk = await node.connect()
            await log_in(talk, "PLAIN", user, password)
            answers.append([topic.name for topic in (await metadata(talk)).topics])
        assert answers == [["t"], []]


async def test_nobody_makes_himself_a_super_user_where_what_no_rule_names_is_open(node: TalkingNode) -> None:
    bob = await node.connect()
    await log_in(bob, "PLAIN", "bob", "builder")
    rule = AclCreation(ResourceType.CLUSTER, "kafka-cluster", 3, "User:bob", "*", Operation.ALL, 3)
    created = await bob.ask(CreateAclsRequest(creations=(rule,)), CreateAclsResponse)
    assert created.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    theirs = ScramCredentialUpsertion(
        "mallory", Mechanism.SCRAM_SHA_256, iterations=4096, salt=b"salt", salted_password=b"salted"
    )
    altered = await bob.ask(AlterUserScramCredentialsRequest(upsertions=(theirs,)), AlterUserScramCredentialsResponse)
    assert altered.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# Logging in again


async def until_expired(node: TalkingNode) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(each.login and each.login.is_expired for each in node.server._connections):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_login_that_expires_says_when(expiring: TalkingNode) -> None:
    assert (await log_in(await expiring.connect())).session_lifetime_ms == 1_300


async def test_expired_login_is_worth_nothing_but_a_new_one(expiring: TalkingNode) -> None:
    await expiring.create_topic("t")
    late, again = await expiring.connect(), await expiring.connect()
    for talk in (late, again):
        await log_in(talk)
        # So that a route is learnt, which must not outlive the login.
        for _ in range(3):
            await talk.ask(produce("t", batch(b"a")), ProduceResponse, BY_NAME)
    await until_expired(expiring)
    await late.send(produce("t", batch(b"late")), BY_NAME)
    await late.expect_closed()
    assert (await log_in(again)).session_lifetime_ms == 1_300
    await again.ask(produce("t", batch(b"again")), ProduceResponse, BY_NAME)
    assert expiring.shell("t").log.log_end == 7


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [("PLAIN", "bob", "builder"), ("SCRAM-SHA-256", USER, PASSWORD), ("PLAIN", USER, "wrong")],
)
async def test_new_login_as_somebody_else_ends_the_connection(
    expiring: TalkingNode, mechanism: str, user: str, password: str
) -> None:
    talk = await expiring.connect()
    await log_in(talk)
    await until_expired(expiring)
    assert (await log_in(talk, mechanism, user, password)).error_code == FAILED
    await talk.expect_closed()


async def test_new_login_too_soon_is_out_of_place(expiring: TalkingNode) -> None:
    talk = await expiring.connect()
    await log_in(talk)
    assert (await log_in(talk)).session_lifetime_ms == 1_300
    assert (await handshake(talk)).error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_nothing_is_taken_while_somebody_logs_in_again_or_has_failed_to(expiring: TalkingNode) -> None:
    await expiring.create_topic("t")
    talk = await expiring.connect()
    await log_in(talk)
    for _ in range(3):
        await talk.ask(produce("t", batch(b"a")), ProduceResponse, BY_NAME)
    await handshake(talk)
    await talk.send(SaslAuthenticateRequest(auth_bytes=plain(password="wrong")))
    await talk.send(produce("t", batch(b"behind")), BY_NAME)
    assert (await talk.hear(wire.APIS[36].response)).error_code == FAILED  # type: ignore[attr-defined]
    await talk.expect_closed()
    assert expiring.shell("t").log.log_end == 3


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl_mechanisms": ("GSSAPI",)},
        {"sasl_mechanisms": ("OAUTHBEARER",)},
        {"sasl_mechanisms": (), "users": {"a": "b"}},
        {"users": {"a": ""}},
    ],
)
async def test_settings_by_which_nobody_or_everybody_gets_in_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"\[kafka\]"):
        await Node(Config(kafka=login_config(**settings))).start()


async def test_unsigned_tokens_are_refused_beyond_loopback() -> None:
    tokens = {"sasl_mechanisms": ("OAUTHBEARER",), "unsecured_tokens": True}
    with pytest.raises(ConfigError, match="nobody has signed"):
        await Node(Config(kafka=login_config(listen="0.0.0.0:0", **tokens))).start()
    async with running_node(kafka=login_config(**tokens)):
        pass


@pytest.mark.parametrize(
    ("kafka", "http", "doors"),
    [
        ("0.0.0.0:0", "0.0.0.0:0", ["Kafka", "HTTP"]),
        ("0.0.0.0:0", "off", ["Kafka"]),
        ("127.0.0.1:0", "[::]:0", ["HTTP"]),
        ("127.0.0.1:0", "127.0.0.1:0", []),
    ],
)
async def test_doors_beyond_loopback_without_logins_warn(kafka: str, http: str, doors: list[str]) -> None:
    with capture_logs() as events:
        async with running_node(kafka=KafkaServerConfig(listen=kafka), http=HttpServerConfig(listen=http)):
            pass
    told = [event["event"] for event in events if event["log_level"] == "warning"]
    assert [sentence.split()[1] for sentence in told if "asks nobody for a login" in sentence] == doors


def test_default_asks_nobody() -> None:
    assert KafkaServerConfig().sasl_mechanisms == ()
