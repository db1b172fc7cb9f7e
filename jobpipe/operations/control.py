"""The coordinator's operations: of publishers, subscribers, readers and administrators."""

from __future__ import annotations

from jobpipe.operations import administration, flows, publishing, reading, subscribing
from jobpipe.operations.fields import Nothing
from jobpipe.operations.ranges import News
from jobpipe.operations.table import EVERYBODY, Operation, table

_PUBLISHER, _SUBSCRIBER, _READER, _ADMIN = (
    frozenset({role}) for role in ("publisher", "subscriber", "reader", "admin")
)

CONTROL = table(
    Operation("open", publishing.OpenRequest, publishing.OpenReply, _PUBLISHER),
    Operation("begin", publishing.BeginRequest, publishing.BeginReply, _PUBLISHER),
    Operation("seal", publishing.SealRequest, publishing.SealReply, _PUBLISHER),
    Operation("acked", publishing.AckedRequest, publishing.AckedReply, _PUBLISHER),
    Operation("drained", publishing.DrainedRequest, publishing.DrainedReply, _PUBLISHER | _ADMIN),
    Operation("close", publishing.CloseRequest, publishing.CloseReply, _PUBLISHER),
    Operation("declare", publishing.DeclareRequest, publishing.DeclareReply, _PUBLISHER),
    Operation("grant", subscribing.GrantRequest, subscribing.GrantReply, _SUBSCRIBER),
    Operation("first", subscribing.FirstRequest, subscribing.FirstReply, _SUBSCRIBER),
    Operation("poll", subscribing.PollRequest, News, EVERYBODY),
    Operation("plan", subscribing.PlanRequest, subscribing.PlanReply, _SUBSCRIBER),
    Operation("ack", subscribing.AckRequest, Nothing, _SUBSCRIBER),
    Operation("slot", subscribing.SlotRequest, subscribing.SlotReply, _SUBSCRIBER),
    Operation("settle", subscribing.SettleRequest, subscribing.SettleReply, _SUBSCRIBER),
    Operation("bind", reading.BindRequest, reading.BindReply, _READER),
    Operation("bounds", reading.BoundsRequest, reading.Bounds, _SUBSCRIBER | _READER),
    Operation("range", reading.RangeRequest, reading.RangeReply, _SUBSCRIBER | _READER),
    Operation("cut", reading.CutRequest, reading.CutReply, _SUBSCRIBER | _READER, expensive=True),
    Operation("lease", reading.LeaseRequest, Nothing, _READER),
    Operation("release", reading.ReleaseRequest, Nothing, _READER),
    Operation("schema", reading.SchemaRequest, reading.SchemaReply, EVERYBODY),
    Operation("begin_flow", flows.BeginFlowRequest, flows.CursorsReply, _PUBLISHER | _SUBSCRIBER),
    Operation("cursors", flows.CursorsRequest, flows.CursorsReply, _PUBLISHER | _SUBSCRIBER),
    Operation("halt", flows.HaltRequest, Nothing, _SUBSCRIBER),
    Operation("follow", flows.FollowRequest, flows.FollowReply, _READER),
    Operation("claim", flows.ClaimRequest, flows.CursorsReply, _PUBLISHER | _READER),
    Operation("admit_part", flows.AdmitPartRequest, flows.AdmitPartReply, _PUBLISHER),
    Operation("seal_parts", flows.SealPartsRequest, flows.SealPartsReply, _PUBLISHER | _READER),
    Operation("status", administration.StatusRequest, administration.StatusReply, EVERYBODY, expensive=True),
    Operation("handover", administration.HandoverRequest, administration.HandoverReply, _ADMIN, audited=True),
    Operation("seek", administration.SeekRequest, administration.MovedReply, _ADMIN, audited=True),
    Operation("drop", administration.DropRequest, administration.MovedReply, _ADMIN, audited=True),
    Operation("reset_flow", flows.ResetFlowRequest, flows.ResetFlowReply, _ADMIN, audited=True),
    Operation("drop_lease", administration.DropLeaseRequest, administration.LeaseReply, _ADMIN, audited=True),
    Operation("hold", administration.HoldRequest, administration.HoldReply, _READER | _ADMIN, audited=True),
    Operation(
        "release_hold", administration.ReleaseHoldRequest, administration.HoldReply, _READER | _ADMIN, audited=True
    ),
    Operation("require", administration.RequireRequest, administration.RequiredReply, _ADMIN, audited=True),
)
"""Each operation with its request, reply and roles. The right that each needs is in coordinator/access.py."""
