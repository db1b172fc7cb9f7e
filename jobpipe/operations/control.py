"""The coordinator's operations: of publishers, subscribers, readers and administrators."""

from __future__ import annotations

from jobpipe.operations import administration, flows, publishing, reading, subscribing
from jobpipe.operations.table import EVERYBODY, Operation, table

_PUBLISHER, _SUBSCRIBER, _READER, _ADMIN, _APPENDER = (
    frozenset({role}) for role in ("publisher", "subscriber", "reader", "admin", "appender")
)

CONTROL = table(
    Operation(publishing.OpenRequest, _PUBLISHER),
    Operation(publishing.BeginRequest, _PUBLISHER | _APPENDER),
    Operation(publishing.PrepareRequest, _PUBLISHER),
    Operation(publishing.RoomRequest, _PUBLISHER),
    Operation(publishing.SealRequest, _PUBLISHER | _APPENDER),
    Operation(publishing.AckedRequest, _PUBLISHER),
    Operation(publishing.DrainedRequest, _PUBLISHER | _ADMIN),
    Operation(publishing.CloseRequest, _PUBLISHER),
    Operation(publishing.DeclareRequest, _PUBLISHER),
    Operation(publishing.RedrivenRequest, _READER | _APPENDER),
    Operation(subscribing.GrantRequest, _SUBSCRIBER),
    Operation(subscribing.FirstRequest, _SUBSCRIBER),
    Operation(subscribing.PollRequest, EVERYBODY),
    Operation(subscribing.PlanRequest, _SUBSCRIBER),
    Operation(subscribing.AckRequest, _SUBSCRIBER),
    Operation(subscribing.SlotRequest, _SUBSCRIBER),
    Operation(subscribing.SettleRequest, _SUBSCRIBER),
    Operation(reading.BindRequest, _READER),
    Operation(reading.BoundsRequest, _SUBSCRIBER | _READER),
    Operation(reading.RangeRequest, _SUBSCRIBER | _READER),
    Operation(reading.CutRequest, _SUBSCRIBER | _READER, expensive=True),
    Operation(reading.LeaseRequest, _READER),
    Operation(reading.ReleaseRequest, _READER),
    Operation(reading.SchemaRequest, EVERYBODY | _APPENDER),
    Operation(flows.BeginFlowRequest, _PUBLISHER | _SUBSCRIBER),
    Operation(flows.CursorsRequest, _PUBLISHER | _SUBSCRIBER),
    Operation(flows.HaltRequest, _SUBSCRIBER),
    Operation(flows.FollowRequest, _READER),
    Operation(flows.ClaimRequest, _PUBLISHER | _READER),
    Operation(flows.AdmitPartRequest, _PUBLISHER),
    Operation(flows.SealPartsRequest, _PUBLISHER | _READER),
    Operation(administration.StatusRequest, EVERYBODY, expensive=True),
    Operation(administration.HandoverRequest, _ADMIN, audited=True),
    Operation(administration.SeekRequest, _ADMIN, audited=True),
    Operation(administration.DropRequest, _ADMIN, audited=True),
    Operation(flows.ResetFlowRequest, _ADMIN, audited=True),
    Operation(administration.DropLeaseRequest, _ADMIN, audited=True),
    Operation(administration.HoldRequest, _READER | _ADMIN, audited=True),
    Operation(administration.ReleaseHoldRequest, _READER | _ADMIN, audited=True),
    Operation(administration.RequireRequest, _ADMIN, audited=True),
)
"""Each operation with its request and roles. The right that each needs is in coordinator/access.py."""
