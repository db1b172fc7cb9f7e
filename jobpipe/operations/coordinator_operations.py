"""The coordinator's operations: of publishers, subscribers, readers and administrators."""

from __future__ import annotations

from jobpipe.operations import (
    admin_operations,
    flow_operations,
    publisher_operations,
    reader_operations,
    status_operations,
    subscriber_operations,
)
from jobpipe.operations.messages.operation import EVERYBODY, Operation, table

_PUBLISHER, _SUBSCRIBER, _READER, _ADMIN, _APPENDER = (
    frozenset({role}) for role in ("publisher", "subscriber", "reader", "admin", "appender")
)

CONTROL = table(
    Operation(publisher_operations.OpenRequest, _PUBLISHER),
    Operation(publisher_operations.BeginRequest, _PUBLISHER | _APPENDER),
    Operation(publisher_operations.PrepareRequest, _PUBLISHER),
    Operation(publisher_operations.RoomRequest, _PUBLISHER),
    Operation(publisher_operations.SealRequest, _PUBLISHER | _APPENDER),
    Operation(publisher_operations.AckedRequest, _PUBLISHER),
    Operation(publisher_operations.DrainedRequest, _PUBLISHER | _ADMIN),
    Operation(publisher_operations.CloseRequest, _PUBLISHER),
    Operation(publisher_operations.DeclareRequest, _PUBLISHER),
    Operation(publisher_operations.SourceRequest, _PUBLISHER),
    Operation(publisher_operations.RedrivenRequest, _READER | _APPENDER),
    Operation(subscriber_operations.GrantRequest, _SUBSCRIBER),
    Operation(subscriber_operations.FirstRequest, _SUBSCRIBER),
    Operation(subscriber_operations.PollRequest, EVERYBODY),
    Operation(subscriber_operations.PlanRequest, _SUBSCRIBER),
    Operation(subscriber_operations.AckRequest, _SUBSCRIBER),
    Operation(subscriber_operations.SlotRequest, _SUBSCRIBER),
    Operation(subscriber_operations.SettleRequest, _SUBSCRIBER),
    Operation(reader_operations.BindRequest, _READER),
    Operation(reader_operations.BoundsRequest, _SUBSCRIBER | _READER),
    Operation(reader_operations.RangeRequest, _SUBSCRIBER | _READER),
    Operation(reader_operations.CutRequest, _SUBSCRIBER | _READER, expensive=True),
    Operation(reader_operations.LeaseRequest, _READER),
    Operation(reader_operations.ReleaseRequest, _READER),
    Operation(reader_operations.SchemaRequest, EVERYBODY | _APPENDER),
    Operation(flow_operations.BeginFlowRequest, _PUBLISHER | _SUBSCRIBER),
    Operation(flow_operations.CursorsRequest, _PUBLISHER | _SUBSCRIBER),
    Operation(flow_operations.HaltRequest, _SUBSCRIBER),
    Operation(flow_operations.FollowRequest, _READER),
    Operation(flow_operations.ClaimRequest, _PUBLISHER | _READER),
    Operation(flow_operations.AdmitPartRequest, _PUBLISHER),
    Operation(flow_operations.SealPartsRequest, _PUBLISHER | _READER),
    Operation(status_operations.StatusRequest, EVERYBODY, expensive=True),
    Operation(status_operations.LedgerRequest, EVERYBODY, expensive=True),
    Operation(admin_operations.HandoverRequest, _ADMIN, audited=True),
    Operation(admin_operations.SeekRequest, _ADMIN, audited=True),
    Operation(admin_operations.DropRequest, _ADMIN, audited=True),
    Operation(flow_operations.ResetFlowRequest, _ADMIN, audited=True),
    Operation(admin_operations.DropLeaseRequest, _ADMIN, audited=True),
    Operation(admin_operations.HoldRequest, _READER | _ADMIN, audited=True),
    Operation(admin_operations.ReleaseHoldRequest, _READER | _ADMIN, audited=True),
    Operation(admin_operations.RequireRequest, _ADMIN, audited=True),
)
"""Each operation with its request and roles. Rights: coordinator/handlers/operation_rights.py."""
