"""What is understood and refused: delegation tokens, limits, voters, streams groups, brokers' requests about shares.

The reference broker has no secret for tokens, and its voters are fixed; but it has streams groups, limits, and a
coordinator of share groups.
"""

from __future__ import annotations

from conformance.differential.talk import LOGIN, Talk, dialogue
from penstock.codec.kafka import Request
from penstock.codec.kafka.messages import add_raft_voter as av
from penstock.codec.kafka.messages import alter_client_quotas as aq
from penstock.codec.kafka.messages import create_delegation_token as ct
from penstock.codec.kafka.messages import delete_share_group_state as ds
from penstock.codec.kafka.messages import describe_delegation_token as dt
from penstock.codec.kafka.messages import initialize_share_group_state as gs
from penstock.codec.kafka.messages import read_share_group_state as rs
from penstock.codec.kafka.messages import read_share_group_state_summary as ss
from penstock.codec.kafka.messages import streams_group_describe as sd
from penstock.codec.kafka.messages import write_share_group_state as ws
from penstock.codec.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.codec.kafka.messages.remove_raft_voter import RemoveRaftVoterRequest
from penstock.codec.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest
from penstock.codec.kafka.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

TOKEN_APIS: tuple[type[Request], ...] = (
    ct.CreateDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    dt.DescribeDelegationTokenRequest,
)
NO_TOPIC = bytes(range(16))


def ask_for_tokens(talk: Talk) -> None:
    def create(step: str, owner: str | None, *renewers: str) -> None:
        wanted = tuple(ct.CreatableRenewers(kind, "carol") for kind in renewers)
        kind = None if owner is None else "User"
        talk.ask(step, ct.CreateDelegationTokenRequest(kind, owner, wanted, 60_000))

    create("one's own", None)
    create("renewed by others", None, "User", "User")
    create("renewed by a group", None, "Group")
    if talk.version(ct.CreateDelegationTokenRequest) >= 3:
        create("of another", "bob")
        create("of nobody", "")
    talk.ask("renewed", RenewDelegationTokenRequest(b"no such token", 1000))
    talk.ask("expired", ExpireDelegationTokenRequest(b"no such token", -1))
    talk.ask("all", dt.DescribeDelegationTokenRequest(None))
    talk.ask("of nobody at all", dt.DescribeDelegationTokenRequest(()))
    talk.ask("of one", dt.DescribeDelegationTokenRequest((dt.DescribeDelegationTokenOwner("User", "alice"),)))


@dialogue(*TOKEN_APIS)
def delegation_tokens_at_an_open_door(talk: Talk) -> None:
    ask_for_tokens(talk)


@dialogue(*TOKEN_APIS, at=LOGIN)
def delegation_tokens(talk: Talk) -> None:
    talk.quietly(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
    talk.quietly(SaslAuthenticateRequest(auth_bytes=b"\0alice\0in-wonderland"))
    ask_for_tokens(talk)


@dialogue(aq.AlterClientQuotasRequest)
def alter_client_quotas(talk: Talk) -> None:
    def ask(step: str, entity: tuple[tuple[str, str | None], ...], *changes: tuple[str, float | None]) -> None:
        named = tuple(aq.EntityData(*each) for each in entity)
        wanted = tuple(aq.OpData(key, value or 0.0, remove=value is None) for key, value in changes)
        # Nothing is to change for the dialogues that follow.
        talk.ask(step, aq.AlterClientQuotasRequest((aq.EntryData(named, wanted),), validate_only=True))

    user = (("user", talk.name("user")),)
    ask("a limit", user, ("producer_byte_rate", 1024.0))
    ask("taken away", user, ("producer_byte_rate", None))
    ask("something taken away", user, ("no.such.key", None))
    ask("nothing", user)
    # Where there are two, in the order in which Kafka's hash table gives them back.
    ask("the default", (("client-id", None), ("user", None)), ("consumer_byte_rate", None))
    ask("of an address", (("ip", "127.0.0.1"),), ("connection_creation_rate", None))
    ask("no such limit", user, ("no.such.key", 1.0))
    ask("a limit of addresses", user, ("connection_creation_rate", 1.0))
    ask("a limit of users", (("ip", "127.0.0.1"),), ("producer_byte_rate", 1.0))
    ask("of nothing", user, ("producer_byte_rate", 0.0))
    ask("negative", user, ("request_percentage", -1.0))
    ask("in parts", user, ("producer_byte_rate", 1.5))
    ask("twice", user, ("producer_byte_rate", None), ("producer_byte_rate", None))
    ask("no kind", (("", "x"),), ("producer_byte_rate", None))
    ask("no such kind", (("colour", "red"),), ("producer_byte_rate", None))
    ask("no name", (("user", ""),), ("producer_byte_rate", None))
    ask("an address and a user", (("user", None), ("ip", None)), ("producer_byte_rate", None))
    ask("nobody", (), ("producer_byte_rate", None))


@dialogue(av.AddRaftVoterRequest, RemoveRaftVoterRequest)
def raft_voters(talk: Talk) -> None:
    door = (av.Listener("CONTROLLER", "127.0.0.1", 9),)
    for step, cluster, voter in (
        ("another", None, 9),
        ("itself", None, 1),
        ("negative", None, -1),
        ("another cluster", "no-such-cluster", 9),
    ):
        talk.ask(f"{step} added", av.AddRaftVoterRequest(cluster, 1000, voter, NO_TOPIC, door))
        talk.ask(f"{step} removed", RemoveRaftVoterRequest(cluster, voter, NO_TOPIC))
    talk.ask("without a door", av.AddRaftVoterRequest(None, 1000, 9, NO_TOPIC))
    elsewhere = (av.Listener("ELSEWHERE", "127.0.0.1", 9),)
    talk.ask("through another door", av.AddRaftVoterRequest(None, 1000, 9, NO_TOPIC, elsewhere))


@dialogue(StreamsGroupHeartbeatRequest, sd.StreamsGroupDescribeRequest)
def streams_groups(talk: Talk) -> None:
    group = talk.name("pipes")
    talk.ask("no such member", StreamsGroupHeartbeatRequest(group, "member", 5))
    talk.ask("no such group", sd.StreamsGroupDescribeRequest((group,)))
    talk.ask("no group", sd.StreamsGroupDescribeRequest(()))


@dialogue(
    gs.InitializeShareGroupStateRequest,
    rs.ReadShareGroupStateRequest,
    ws.WriteShareGroupStateRequest,
    ds.DeleteShareGroupStateRequest,
    ss.ReadShareGroupStateSummaryRequest,
)
def share_group_state(talk: Talk) -> None:
    group = talk.name("sharers")
    begin = gs.InitializeStateData(NO_TOPIC, (gs.PartitionData(0),))
    talk.ask("no topic begun", gs.InitializeShareGroupStateRequest(group, (begin,)))
    read = rs.ReadStateData(NO_TOPIC, (rs.PartitionData(0),))
    talk.ask("no topic read", rs.ReadShareGroupStateRequest(group, (read,)))
    write = ws.WriteStateData(NO_TOPIC, (ws.PartitionData(0),))
    talk.ask("no topic written", ws.WriteShareGroupStateRequest(group, (write,)))
    delete = ds.DeleteStateData(NO_TOPIC, (ds.PartitionData(0),))
    talk.ask("no topic deleted", ds.DeleteShareGroupStateRequest(group, (delete,)))
    look = ss.ReadStateSummaryData(NO_TOPIC, (ss.PartitionData(0),))
    talk.ask("no topic looked at", ss.ReadShareGroupStateSummaryRequest(group, (look,)))
