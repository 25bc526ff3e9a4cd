"""The calls of docs/access.md: for each, a request that an authorised caller may make, and what shows that it was
served.

The requests do not disturb the cluster, because every caller makes them. Adapter c is not a process: the test registers
it. A request for another change is one that is refused after all checks of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import grpc
from google.protobuf.message import Message

from tandemfeed.deploy.cluster.topology import EXAMPLES
from tandemfeed.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    contribution_pb2,
    contribution_pb2_grpc,
    replay_pb2,
    replay_pb2_grpc,
    sync_pb2,
    sync_pb2_grpc,
)

OK = grpc.StatusCode.OK
FEED, CHANNEL, STREAM = "ticks", 1, 1
CONTRIBUTED_TOPIC = "demo.ticks-2"
TIMEOUT_S = 60.0
MESSAGE_MODEL = EXAMPLES / "message-model.xml"
STUBS: dict[str, Callable[[grpc.Channel], Any]] = {
    "Authentication": admin_pb2_grpc.AuthenticationStub,
    "StreamAdministration": admin_pb2_grpc.StreamAdministrationStub,
    "AdapterRegistry": admin_pb2_grpc.AdapterRegistryStub,
    "Operations": admin_pb2_grpc.OperationsStub,
    "PolicyAdministration": admin_pb2_grpc.PolicyAdministrationStub,
    "AuditAdministration": admin_pb2_grpc.AuditAdministrationStub,
    "IdentityAdministration": admin_pb2_grpc.IdentityAdministrationStub,
    "AdapterSync": sync_pb2_grpc.AdapterSyncStub,
    "Replay": replay_pb2_grpc.ReplayStub,
    "SourceReplay": replay_pb2_grpc.SourceReplayStub,
    "Contribution": contribution_pb2_grpc.ContributionStub,
}
CONTRACTS = (admin_pb2, contribution_pb2, replay_pb2, sync_pb2)


@dataclass(frozen=True, slots=True)
class Call:
    """How to make a call.

    Attributes:
        request: `incarnation`, if it has this field, is set to that of adapter c.
        served: the code that shows that the caller passed all checks.
        is_endless: the call streams until it is cancelled; its first reply shows that it is served.
    """

    request: Message
    served: grpc.StatusCode = OK
    is_endless: bool = False


REFUSED_STATE, REFUSED_REQUEST = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
REGISTRATION = admin_pb2.RegisterRequest(
    feed=FEED, adapter="c", rpc_endpoint="127.0.0.1:1", public_key=bytes(32), process_nonce=bytes(16)
)
CALLS = {
    # Not a SCRAM message: the service reads it, from any sender.
    "Authentication/Begin": Call(admin_pb2.BeginAuthenticationRequest(client_first="x"), REFUSED_REQUEST),
    "Authentication/Finish": Call(
        admin_pb2.FinishAuthenticationRequest(conversation_id="x"), grpc.StatusCode.UNAUTHENTICATED
    ),
    "Authentication/GetLoginWays": Call(admin_pb2.GetLoginWaysRequest()),
    "Authentication/LogInWithCertificate": Call(admin_pb2.LogInWithCertificateRequest(), REFUSED_REQUEST),
    "Authentication/LogInWithToken": Call(admin_pb2.LogInWithTokenRequest(), REFUSED_REQUEST),
    "StreamAdministration/Subscribe": Call(
        admin_pb2.SubscriptionRequest(request_id=1, subscribe=admin_pb2.SubscribeRequest(subscription_id=1, feed=FEED)),
        is_endless=True,
    ),
    "StreamAdministration/GetDocument": Call(
        admin_pb2.GetDocumentRequest(
            feed=FEED, id=MESSAGE_MODEL.stem, version=sha256(MESSAGE_MODEL.read_bytes()).hexdigest()
        )
    ),
    "StreamAdministration/ListFeeds": Call(admin_pb2.ListFeedsRequest()),
    "StreamAdministration/FindContributionGateway": Call(
        admin_pb2.FindContributionGatewayRequest(topic=CONTRIBUTED_TOPIC)
    ),
    "AdapterRegistry/Register": Call(REGISTRATION),
    "AdapterRegistry/Attend": Call(admin_pb2.AdapterReport(), is_endless=True),
    "AdapterRegistry/Guard": Call(admin_pb2.AdapterEnded()),
    "AdapterRegistry/DescribeFeed": Call(admin_pb2.DescribeFeedRequest(feed=FEED)),
    "AdapterRegistry/GetSourceKeys": Call(admin_pb2.SourceKeysRequest(feed=FEED)),
    "AdapterRegistry/ReportSource": Call(admin_pb2.SourceReport(feed=FEED, process_nonce=bytes(16))),
    "Operations/GetStatus": Call(admin_pb2.GetStatusRequest(feed=FEED)),
    "Operations/Failover": Call(admin_pb2.FailoverRequest(feed=FEED, to="a"), REFUSED_STATE),
    "Operations/FailAdapter": Call(admin_pb2.FailAdapterRequest(feed=FEED, adapter="a"), REFUSED_REQUEST),
    "Operations/ReadmitAdapter": Call(admin_pb2.ReadmitAdapterRequest(feed=FEED, adapter="a"), REFUSED_STATE),
    "Operations/DrainAdapter": Call(admin_pb2.DrainAdapterRequest(feed=FEED, adapter="a"), REFUSED_REQUEST),
    "Operations/UndrainAdapter": Call(admin_pb2.UndrainAdapterRequest(feed=FEED, adapter="a"), REFUSED_STATE),
    "Operations/GrantContributions": Call(
        admin_pb2.GrantContributionsRequest(feed=FEED, gateway="127.0.0.1:1", reason="a test"), REFUSED_REQUEST
    ),
    "Operations/ThrottleAdapter": Call(
        admin_pb2.ThrottleAdapterRequest(feed=FEED, adapter="a", replay_bytes_per_s=1), REFUSED_REQUEST
    ),
    "Operations/ListClients": Call(admin_pb2.ListClientsRequest(feed=FEED)),
    "Operations/KickClient": Call(admin_pb2.KickClientRequest(identity="demo-client", reason="a test")),
    "Operations/ListGrants": Call(admin_pb2.ListGrantsRequest()),
    "Operations/ListKeys": Call(admin_pb2.ListKeysRequest(feed=FEED)),
    "Operations/RotateKeys": Call(admin_pb2.RotateKeysRequest(feed=FEED)),
    "Operations/GetHistory": Call(admin_pb2.GetHistoryRequest(feed=FEED)),
    "PolicyAdministration/ReloadPolicy": Call(admin_pb2.ReloadPolicyRequest()),
    "PolicyAdministration/ExplainPolicy": Call(admin_pb2.ExplainPolicyRequest(identity="reader", topic="x")),
    "PolicyAdministration/ShowPolicy": Call(admin_pb2.ShowPolicyRequest()),
    "AuditAdministration/ReadAudit": Call(admin_pb2.ReadAuditRequest(limit=1)),
    "AuditAdministration/VerifyAudit": Call(admin_pb2.VerifyAuditRequest()),
    "IdentityAdministration/ListIdentities": Call(admin_pb2.ListIdentitiesRequest()),
    "IdentityAdministration/AddIdentity": Call(admin_pb2.AddIdentityRequest(name="stranger"), REFUSED_REQUEST),
    "IdentityAdministration/RotateIdentity": Call(admin_pb2.RotateIdentityRequest(name="stranger"), REFUSED_REQUEST),
    "IdentityAdministration/DisableIdentity": Call(admin_pb2.DisableIdentityRequest(name="stranger"), REFUSED_REQUEST),
    "IdentityAdministration/EnableIdentity": Call(admin_pb2.EnableIdentityRequest(name="stranger"), REFUSED_STATE),
    "IdentityAdministration/IssueCertificate": Call(admin_pb2.IssueCertificateRequest(name="stranger"), REFUSED_STATE),
    "IdentityAdministration/RevokeCertificates": Call(admin_pb2.RevokeCertificatesRequest(), REFUSED_REQUEST),
    "IdentityAdministration/ListCertificates": Call(admin_pb2.ListCertificatesRequest()),
    "IdentityAdministration/RotateTokenKeys": Call(admin_pb2.RotateTokenKeysRequest(drop_former=True), REFUSED_REQUEST),
    "Replay/Replay": Call(
        replay_pb2.ReplayRequest(channel_id=CHANNEL, input_ranges=[replay_pb2.NumberRange(first=1, end=2)])
    ),
    "Replay/Locate": Call(replay_pb2.LocateRequest(channel_id=CHANNEL)),
    "Replay/LastValues": Call(replay_pb2.LastValuesRequest(channel_id=CHANNEL, key="symbol")),
    "AdapterSync/Follow": Call(sync_pb2.FollowRequest(adapter_id=2), is_endless=True),
    "AdapterSync/GetSnapshot": Call(sync_pb2.GetSnapshotRequest(channel_id=CHANNEL), REFUSED_STATE),
    "AdapterSync/GetBuckets": Call(sync_pb2.GetBucketsRequest(channel_id=CHANNEL, buckets=[0]), REFUSED_STATE),
    "AdapterSync/GetRuns": Call(
        sync_pb2.GetRunsRequest(
            channel_id=CHANNEL, position=common_pb2.MessageStreamState(next_input_seq=1, next_message_seq=1)
        )
    ),
    "SourceReplay/Fill": Call(replay_pb2.FillRequest(source_stream_id=STREAM)),
    "Contribution/Open": Call(
        contribution_pb2.OpenProducerRequest(topic=CONTRIBUTED_TOPIC, producer="p", instance=bytes(16))
    ),
    "Contribution/Contribute": Call(
        contribution_pb2.ContributeRequest(
            topic=CONTRIBUTED_TOPIC, producer="p", instance=bytes(16), first_number=1, messages=[b"x"]
        ),
        REFUSED_REQUEST,
    ),
    "Contribution/Cancel": Call(contribution_pb2.CancelContributionsRequest(topic=CONTRIBUTED_TOPIC)),
}


def names_in_contracts() -> Iterator[str]:
    """Every call of the contracts, as "Service/Method"."""
    for contract in CONTRACTS:
        for service in contract.DESCRIPTOR.services_by_name.values():
            yield from (f"{service.name}/{method.name}" for method in service.methods)


def code_of(channel: grpc.Channel, name: str, incarnation: Callable[[], int]) -> tuple[grpc.StatusCode, str]:
    """Make a call; return its code (OK if it was served) and details.

    Args:
        incarnation: begins a start of adapter c, for calls that name one; an adapter may not begin one for each call.
    """
    service, _, method_name = name.partition("/")
    call, method = CALLS[name], getattr(STUBS[service](channel), method_name)
    request = type(call.request).FromString(call.request.SerializeToString())
    if isinstance(request, (admin_pb2.AdapterReport, admin_pb2.AdapterEnded)):
        request.incarnation = incarnation()
    takes_stream = isinstance(method, (grpc.StreamUnaryMultiCallable, grpc.StreamStreamMultiCallable))
    returns_stream = isinstance(method, (grpc.UnaryStreamMultiCallable, grpc.StreamStreamMultiCallable))
    try:
        reply = method(iter([request]) if takes_stream else request, timeout=TIMEOUT_S)
        if returns_stream and call.is_endless:
            first = next(reply)
            reply.cancel()
            if isinstance(first, admin_pb2.SubscriptionUpdate) and first.HasField("refused"):  # in an open call
                assert first.refused.kind == admin_pb2.REFUSAL_KIND_NOT_GRANTED
                return grpc.StatusCode.PERMISSION_DENIED, first.refused.reason
        elif returns_stream:
            list(reply)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()  # type: ignore[attr-defined]
        return (OK if code is call.served else code), str(details)
    return OK, ""
