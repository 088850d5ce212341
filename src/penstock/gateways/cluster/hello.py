"""Hello: who has logged in, and whether it is one of us. If not, one sentence says why, in the log of either side."""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.seldom import Seldom
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.internal.hello import HelloRequest, HelloResponse
from penstock.domain.replication.identity import NodeIdentity, mismatch
from penstock.gateways.caller import CLUSTER
from penstock.gateways.cluster.login import PeerLogin
from penstock.gateways.kafka.context import RequestContext

log = get_logger(CLUSTER)


class HelloHandler:
    """`identity`: who this node is at present; it may be registered anew."""

    def __init__(self, identity: Callable[[], NodeIdentity], clock: Clock) -> None:
        self._identity = identity
        # A node that is refused tries again and again.
        self._seldom = Seldom(clock)

    def hello(self, request: HelloRequest, context: RequestContext) -> HelloResponse:
        login = login_of(context)
        ours = self._identity()
        theirs = NodeIdentity(request.cluster_id, request.node_id, request.broker_epoch, request.feature_level)
        reason = mismatch(theirs, ours)
        if reason is None:
            login.peer = theirs
        else:
            login.fail()
            if self._seldom.is_due((request.node_id, reason)):
                log.warning("node refused", peer=context.caller.address, node=request.node_id, reason=reason)
        return HelloResponse(
            error_code=ErrorCode.NONE if reason is None else ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message=reason,
            cluster_id=ours.cluster_id,
            node_id=ours.node_id,
            broker_epoch=ours.life,
            feature_level=ours.feature_level,
        )


def login_of(context: RequestContext) -> PeerLogin:
    connection = context.connection
    assert connection is not None, "requests come by a connection"
    assert isinstance(connection.login, PeerLogin), "who comes in by this door logs in"
    return connection.login
