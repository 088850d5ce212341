"""The one place where doors ask whether somebody may, and where what came in is counted."""

from __future__ import annotations

import httpx

from penstock.domain.security import access
from penstock.domain.security.access import ANONYMOUS, Operation, Principal, Resource
from penstock.gateways.admission import Account, Admission
from penstock.gateways.caller import HTTP, KAFKA, SQS, Caller
from penstock.gateways.http.guard import caller_at
from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, running_node

ALICE = Principal("User", "alice", tenant="shop")
ORDERS = access.topic("orders")


class OnlyReaders:
    """Alice may read, and nobody may do anything else."""

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return principal == ALICE and operation is Operation.READ and resource == ORDERS


def test_a_caller_is_told_by_its_principal() -> None:
    caller = Caller(ALICE, "10.0.0.7:5000", KAFKA)
    assert (str(caller), caller.tenant) == ("User:alice", "shop")
    assert Caller(ANONYMOUS, "?", HTTP).tenant is None


def test_rules_decide_by_the_callers_principal() -> None:
    admission = Admission(OnlyReaders())
    alice, nobody = Caller(ALICE, "?", KAFKA), Caller(ANONYMOUS, "?", KAFKA)
    assert admission.may(alice, Operation.READ, ORDERS)
    assert not admission.may(alice, Operation.WRITE, ORDERS)
    assert not admission.may(nobody, Operation.READ, ORDERS)


def test_denials_are_counted_at_the_callers_door() -> None:
    admission = Admission(OnlyReaders())
    for door in (HTTP, SQS, SQS):
        admission.may(Caller(ANONYMOUS, "?", door), Operation.READ, ORDERS)
    admission.may(Caller(ALICE, "?", KAFKA), Operation.READ, ORDERS)
    assert {door: account.denied_count for door, account in admission.accounts.items()} == {KAFKA: 0, HTTP: 1, SQS: 2}


def test_whoever_is_told_its_rights_was_denied_nothing() -> None:
    admission = Admission(OnlyReaders())
    assert admission.operations(Caller(ALICE, "?", KAFKA), ORDERS) == 1 << Operation.READ
    assert admission.accounts[KAFKA].denied_count == 0


def test_charges_add_up_by_door() -> None:
    admission = Admission(OnlyReaders())
    kafka, http = Caller(ALICE, "?", KAFKA), Caller(ANONYMOUS, "?", HTTP)
    admission.charge(kafka, 3, 300)
    admission.charge(kafka, 1, 7)
    admission.charge(http, 1, 0)
    assert admission.accounts[KAFKA] == Account(request_count=4, received_bytes=307)
    assert admission.accounts[HTTP] == Account(request_count=1)
    assert admission.accounts[SQS] == Account()


def test_sqs_is_a_door_of_its_own_on_the_http_port() -> None:
    client = ("10.0.0.7", 5000)
    assert caller_at("/", client) == Caller(ANONYMOUS, "10.0.0.7:5000", SQS)
    assert caller_at("/000000000000/jobs", client).door == SQS
    assert caller_at("/v1/queues", client).door == HTTP
    assert caller_at("/health", None) == Caller(ANONYMOUS, "?", HTTP)


async def test_every_door_charges_what_comes_in_by_it() -> None:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as node:
        talk = await node.connect()
        await talk.expect_open()
        async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}") as client:
            await client.get("/v1/queues")
            target = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
            await client.post("/", content=b"{}", headers=target)
            await client.post("/", content=b"{}", headers=target)

        def counted(what: str, door: str) -> float | None:
            return node.parts.site.metrics.get_sample_value(f"penstock_door_{what}_total", {"door": door})

        assert [counted("requests", door) for door in (KAFKA, HTTP, SQS)] == [1, 1, 2]
        assert counted("received_bytes", SQS) == 4
        assert counted("received_bytes", KAFKA) == node.server.bytes_in
        assert [counted("denied", door) for door in (KAFKA, HTTP, SQS)] == [0, 0, 0]


async def test_a_denial_shows_at_its_door() -> None:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT), authorizer=OnlyReaders()) as node:
        async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}") as client:
            refused = await client.get("/v1/queues/orders/workers")
        assert refused.status_code == 403
        assert "User:ANONYMOUS may not" in refused.json()["detail"]
        assert node.parts.site.metrics.get_sample_value("penstock_door_denied_total", {"door": HTTP}) == 1
