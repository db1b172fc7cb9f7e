"""What a changed file does with each job of a pipeline: the decisions that a submission stores, and a plan shows.

``PipelineCommands`` plans and submits by the same decisions. Pure, but for :meth:`Asked.of`, which looks at
checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobpipe.config.reading.located_values import plain
from jobpipe.control.control_service import Action, JobPlan, Plan
from jobpipe.control.revisions.differences import Difference, differences, keys, lines
from jobpipe.jobs.definition_cache import (
    digest_of,
    existing_checkpoints,
    incompatible_checkpoints,
    is_server_setting,
    previous_checkpoints,
    settings_of,
    subscriptions_by_job,
)
from jobpipe.jobs.schedules.schedule_rule import Rule
from jobpipe.jobs.storage.job_rows import DefinitionRow, JobRow, JobSubscription, RevisionChanges
from jobpipe.pipelines.checkpoints.checkpoint_owner import has_checkpoint, part_of
from jobpipe.pipelines.file.file_paths import local_folder
from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.loading.spec_checks import needs_bounds
from jobpipe.pipelines.model.graph import graph_of, published_again
from jobpipe.pipelines.model.job_states import DesiredState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Job, Pipeline


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the server has of a pipeline.

    Attributes:
        version: 0: it does not know the pipeline.
        jobs: also those that the newest file does not have, and that have not ended.
        active: jobs with a run that is under way.
        lost: those of them that are LOST.
        ran_as: of jobs for which a new checkpoint is pending, the digest of what their newest attempt ran, if known.
        schedules: of the jobs that have one.
        before: the newest file; None if there is none, or it can no longer be loaded here.
    """

    version: int = 0
    jobs: Mapping[str, JobRow] = field(default_factory=dict)
    active: Collection[str] = ()
    lost: Collection[str] = ()
    ran_as: Mapping[str, str] = field(default_factory=dict)
    schedules: Mapping[str, ScheduleSpec] = field(default_factory=dict)
    before: Pipeline | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is submitted.

    Attributes:
        new_checkpoint: jobs that are to begin without their checkpoint.
        incompatible: why jobs cannot go on from theirs.
        checkpointed: jobs that have a checkpoint on this host.
        previous: where the newest file of the server keeps the checkpoints of its jobs; None of a job without one.
    """

    pipeline: Pipeline
    home: Path
    new_checkpoint: Collection[str] = ()
    incompatible: Mapping[str, str] = field(default_factory=dict)
    checkpointed: Collection[str] = ()
    previous: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        home: Path,
        new_checkpoint: Collection[str] = (),
        newest: DefinitionRow | None = None,
    ) -> Asked:
        """Return what is submitted, after a look at the checkpoints that are on this host.

        Args:
            newest: the newest file that the server has; None: it has none.
        """
        previous = {} if newest is None else previous_checkpoints(newest, home)
        return cls(
            pipeline=pipeline,
            home=home,
            new_checkpoint=tuple(new_checkpoint),
            incompatible=incompatible_checkpoints(pipeline, home, previous),
            checkpointed=existing_checkpoints(pipeline, home),
            previous=previous,
        )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is done with a job of the file.

    Attributes:
        row: to be stored.
        begins: a run begins, as soon as the present one has ended.
        ends_others: it gets a schedule or loses it: runs that are under way, or were to begin, end.
        refused: why the file is refused because of it; None: it is not.
    """

    row: JobRow
    plan: JobPlan
    begins: bool = False
    ends_others: bool = False
    refused: str | None = None


def rows_of(pipeline: Pipeline, before: Mapping[str, JobRow], want: DesiredState) -> list[JobRow]:
    """Return the jobs of a file as they would be stored, with what is kept of those that were there before.

    Args:
        want: of the pipeline, and of jobs that are added.
    """
    subscriptions = subscriptions_by_job(pipeline)
    rows = []
    for position, node in enumerate(graph_of(pipeline).jobs):
        job, old = pipeline.jobs[node.name], before.get(node.name)
        row = JobRow(
            pipeline=pipeline.name,
            name=node.name,
            position=position,
            kind=node.kind,
            scheduled=node.schedule is not None,
            on_demand=node.schedule is None and needs_bounds(job) is not None,
            in_definition=True,
            want=want,
            reset_checkpoint=False,
            digest=digest_of(pipeline, job),
            reads=node.reads,
            publishes=node.publishes,
            subscriptions=tuple(JobSubscription(topic=topic, name=name) for topic, name in subscriptions[node.name]),
        )
        if old is not None:
            row = replace(row, want=old.want if old.in_definition else want, reset_checkpoint=old.reset_checkpoint)
            row = replace(row, last_attempt=old.last_attempt, run=old.run, next_run=old.next_run)
        rows.append(row)
    return rows


def decide(rows: Sequence[JobRow], known: Known, asked: Asked) -> list[Decision]:
    """Return what is done with the jobs of the file, in its order.

    Args:
        rows: the jobs of the file, with what is kept of those that were there before.
    """
    return [_decide(row, known.jobs.get(row.name), known, asked) for row in rows]


def removed(known: Known, asked: Asked) -> list[JobRow]:
    """Return the jobs that the file does not have any more."""
    return [job for job in known.jobs.values() if job.in_definition and job.name not in asked.pipeline.jobs]


def plan_of_removed(job: JobRow, known: Known) -> JobPlan:
    """Return what is done with a job that the file does not have any more."""
    reasons = ["the file does not have it any more"]
    if job.kind == "capture":
        reasons.append("its replication slot stays, and keeps the log of the database: `jobpipe cdc drop` drops it")
    if job.subscriptions:
        reasons.append("its subscriptions are dropped, so that publishers keep no rows for it")
    if job.name in known.lost:
        reasons.append("it is LOST: it may still be running, and is removed when it is known that it has ended")
    return JobPlan(
        job=job.name,
        action=Action.STOPPED,
        reasons=tuple(reasons),
        ends_run=job.name in known.active,
        drops_subscriptions=bool(job.subscriptions),
    )


def first_plan(asked: Asked, refused: Sequence[str] = ()) -> Plan:
    """Return what is done with a pipeline that no server knows.

    Args:
        refused: why the file would be refused as a whole.
    """
    known, pipeline = Known(), asked.pipeline
    decisions = decide(rows_of(pipeline, known.jobs, DesiredState.RUN), known, asked)
    jobs = tuple(each.plan for each in decisions)
    warnings = tuple(pipeline.warnings)
    return Plan(pipeline=pipeline.name, version=0, changed=True, jobs=jobs, refused=tuple(refused), warnings=warnings)


def changed_settings(known: Known, asked: Asked) -> list[Difference]:
    """Return the keys of section ``pipeline`` that differ."""
    if known.before is None:
        return []
    before, after = (plain(each.tree).get("pipeline", {}) for each in (known.before, asked.pipeline))
    return list(differences(before, after, ("pipeline",)))


def taken_settings(known: Known, asked: Asked) -> tuple[str, ...]:
    """Return, as lines, those of them that the server takes without a restart."""
    return lines(each for each in changed_settings(known, asked) if is_server_setting(str(each.path[1])))


def revision_changes(decisions: Sequence[Decision], known: Known, asked: Asked) -> RevisionChanges:
    """Return what a new version changes, for the history."""
    present = {name: job for name, job in known.jobs.items() if job.in_definition}
    rows = [each.row for each in decisions]
    return RevisionChanges(
        added=tuple(row.name for row in rows if row.name not in present),
        removed=tuple(job.name for job in removed(known, asked)),
        changed=tuple(row.name for row in rows if row.name in present and row.digest != present[row.name].digest),
        settings=keys(changed_settings(known, asked)),
    )


def schedule_conflict(pipeline: str, job: str, before: ScheduleSpec, after: ScheduleSpec) -> str | None:
    """Return why a schedule cannot go on as another one; None: it can."""
    if Rule.of(before).offsets is Rule.of(after).offsets:
        return None
    return (
        f"the schedule of job {pipeline}.{job} has another boundaryType: which rows lie between its times and offsets "
        "is not known; leave it, or submit the job without a schedule first"
    )


def _decide(row: JobRow, old: JobRow | None, known: Known, asked: Asked) -> Decision:
    name = row.name
    alike = old is not None and old.digest == row.digest
    job = asked.pipeline.jobs[name]
    renew, pending = name in asked.new_checkpoint, row.reset_checkpoint
    # One that is pending stays so, until the job is what ran before, or has no checkpoint that can be moved.
    as_before = not alike and known.ran_as.get(name) == row.digest
    row = replace(row, reset_checkpoint=renew or (pending and not as_before and _is_clearable(job, asked)))
    changes = tuple(_changes(row, job, old, known, asked))
    conflict = _schedule_conflict(row, known, asked)
    if conflict is not None:
        plan = JobPlan(job=name, action=Action.REFUSED, reasons=(conflict, *changes))
        return Decision(row=row, plan=plan, refused=conflict)
    if name in asked.incompatible and not row.reset_checkpoint:
        reasons, again = (asked.incompatible[name], *changes), tuple(_rows_again(job, asked))
        plan = JobPlan(job=name, action=Action.NEEDS_NEW_CHECKPOINT, reasons=reasons, rows_again=again)
        return Decision(row=row, plan=plan, refused=asked.incompatible[name])
    begins = row.want is DesiredState.RUN and row.begins_by_itself
    if old is not None and old.in_definition and alike and not renew:
        return Decision(row=row, plan=_unchanged(row, job, known, asked, begins=begins))
    ends_others = old is not None and (old.scheduled, old.on_demand) != (row.scheduled, row.on_demand)
    is_active = name in known.active
    reads_again = _reads_again(row, asked)
    renewed = row.reset_checkpoint and (old is not None or name in asked.checkpointed)
    dropped = _dropped(row, old)
    notes = [*reads_again, *(f"its subscription of topic {topic} is dropped" for topic in dropped)]
    if pending and not renew:
        what = "is still to be made" if row.reset_checkpoint else "is not made"
        notes.append(f"the new checkpoint that an earlier submission asked for {what}")
    plan = JobPlan(
        job=name,
        action=_action(row, begins=begins, is_active=is_active),
        reasons=(*changes, *notes, *_notes(row, job, known, asked, begins=begins)),
        rows_again=tuple(_rows_again(job, asked)) if renewed or (reads_again and _reads_all(row, asked)) else (),
        from_checkpoint=name in asked.checkpointed and not row.reset_checkpoint,
        ends_run=is_active and (begins or ends_others),
        drops_subscriptions=bool(dropped),
    )
    return Decision(row=row, plan=plan, begins=begins, ends_others=ends_others)


def _unchanged(row: JobRow, job: Job, known: Known, asked: Asked, *, begins: bool) -> JobPlan:
    """Return what is done with a job that is what it was: nothing. A remark says what to expect of it."""
    where, reasons = f"{row.pipeline}/{row.name}", []
    if row.name in known.lost:
        how = f"if you know that it has ended, `jobpipe pipeline restart {where} --force` starts it"
        reasons.append(f"it is LOST: it may still be running; {how}")
    elif begins and row.name not in known.active and row.next_run is None:
        reasons.append(f"its last run has ended: `jobpipe pipeline resume {where}` starts it")
    if row.reset_checkpoint:
        reasons.append("its next run begins without its checkpoint, as an earlier submission asked for")
    again = _rows_again(job, asked) if row.reset_checkpoint else ()
    return JobPlan(job=row.name, action=Action.UNCHANGED, reasons=tuple(reasons), rows_again=tuple(again))


def _is_clearable(job: Job, asked: Asked) -> bool:
    return has_checkpoint(job) and local_folder(_storage(job, asked)) is not None


def _storage(job: Job, asked: Asked) -> str:
    return PipelinePaths.of(asked.home, asked.pipeline.name).storage(asked.pipeline, job.name)


def _reads_again(row: JobRow, asked: Asked) -> tuple[str, ...]:
    """Return a remark on a job that had a checkpoint and keeps none from now on, or the other way round."""
    if row.name not in asked.previous:
        return ()
    had, has = asked.previous[row.name] is not None, has_checkpoint(asked.pipeline.jobs[row.name])
    if had and not has:
        return ("it keeps no checkpoint any more: what it has read so far does not count",)
    if has and not had and row.name in asked.checkpointed and not row.reset_checkpoint:
        return ("it goes on from a checkpoint that it left earlier: what it has read since does not count",)
    if has and not had:
        return ("it has kept no checkpoint, and begins one: what it has read so far does not count",)
    return ()


def _reads_all(row: JobRow, asked: Asked) -> bool:
    """Whether a job reads all that is there: it has no checkpoint, nor a range."""
    return row.begins_by_itself and row.name not in asked.checkpointed


def _dropped(row: JobRow, old: JobRow | None) -> list[str]:
    """Return the topics by whose subscriptions a job does not read any more."""
    if old is None:
        return []
    return [each.topic for each in old.subscriptions if each not in row.subscriptions]


def _action(row: JobRow, *, begins: bool, is_active: bool) -> Action:
    if row.reset_checkpoint:
        return Action.NEW_CHECKPOINT
    if not begins:
        return Action.STORED
    return Action.RESTARTED if is_active else Action.STARTED


def _schedule_conflict(row: JobRow, known: Known, asked: Asked) -> str | None:
    before, after = known.schedules.get(row.name), asked.pipeline.jobs[row.name].spec.schedule
    if before is None or after is None:
        return None
    return schedule_conflict(row.pipeline, row.name, before, after)


def _changes(row: JobRow, job: Job, old: JobRow | None, known: Known, asked: Asked) -> Iterator[str]:
    """Yield why a job is another one: the keys that changed."""
    if old is None or not old.in_definition:
        yield "new in the file"
        if job.name in asked.checkpointed:
            yield "a job of this name has left a checkpoint in the storage"
            for each in row.subscriptions:
                yield (
                    f"if its subscription of topic {each.topic} was dropped meanwhile, rows that were removed since "
                    "are missing: it fails with DataLoss, unless failOnDataLoss is false"
                )
        return
    if known.before is None or job.name not in known.before.jobs:
        yield "which keys changed is not known: the version before can no longer be loaded here"
        return
    if known.before.folder != asked.pipeline.folder:
        yield f"the folder of the file: {known.before.folder} -> {asked.pipeline.folder}"
    shared, own = settings_of(asked.pipeline, job)
    shared_before, own_before = settings_of(known.before, known.before.jobs[job.name])
    yield from lines(differences(shared_before, shared, ("pipeline",)))
    yield from lines(differences(own_before, own, ("jobs", job.name)))


def _notes(row: JobRow, job: Job, known: Known, asked: Asked, *, begins: bool) -> Iterator[str]:
    """Yield remarks: when the job begins, and what is compared only then."""
    if not begins:
        if row.scheduled:
            yield "from its next run on: its schedule makes its runs"
        elif row.on_demand:
            yield "from its next run on: `jobpipe runs start` begins one"
        else:
            yield "it is stopped: from `jobpipe pipeline resume` on"
    elif row.name in known.lost:
        yield "it is LOST: its next run begins when it is known that it has ended"
    if (was := _captured_before(job, known)) is not None:
        yield f"it captured {was}: if it has published, it fails now; give the job another name then"
    storage = _storage(job, asked)
    if has_checkpoint(job) and local_folder(storage) is None:
        yield f"its checkpoint in {storage} is compared when it starts: it cannot be seen from the server"


def _captured_before(job: Job, known: Known) -> str | None:
    """Return which database, slot and publication a capture had, if it has others now."""
    before = None if known.before is None else known.before.jobs.get(job.name)
    if before is None or not (job.spec.captures and before.spec.captures):
        return None
    one, other = (part_of(stage) for each in (before, job) for stage in each.sources.values())
    return None if one.is_same(other) else str(one)


def _rows_again(job: Job, asked: Asked) -> Iterator[str]:
    """Yield which rows are read again, and which topics get rows once more."""
    for stage in job.sources.values():
        yield f"it reads again what is there of {part_of(stage)}, from where a new query begins"
    if again := published_again(asked.pipeline, job.name):
        yield again
    for sink in job.sinks if has_checkpoint(job) and len(job.sinks) == 1 else ():
        if sink.plugin.folder(asked.pipeline.folder) is not None:
            yield f"{part_of(sink)}: a folder that the job has filled takes no other checkpoint; give the sink another"
