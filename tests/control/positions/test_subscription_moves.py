"""Moves of subscriptions over a coordinator in memory: what they mean, when they are refused, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobpipe.control.positions.move_plan import MovePlan
from jobpipe.control.positions.move_store import MOST_MOVES, MoveRow, MoveStore
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.errors import (
    ConfigError,
    ControlConflict,
    DataLoss,
    LinkTimeout,
    NotAuthorized,
    SubscriptionNotFound,
    TopicNotFound,
)
from jobpipe.jobs.storage.job_store import Store
from jobpipe.operations.messages.application import Application
from jobpipe.pipelines.model.job_states import JobState
from tests.control.positions.positions_kit import OneTopic, at
from tests.control.world import NAME, World, wait

READ = "report"


@pytest.fixture
def topic() -> OneTopic:
    return OneTopic(places={READ: at(7)})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "server.db", lambda: 1000.0)


@pytest.fixture
def moves(store: Store, topic: OneTopic) -> SubscriptionMoves:
    return SubscriptionMoves(store, topic, lambda: 1000.0)


def move(moves: SubscriptionMoves, to: str | int) -> None:
    """Move it as planned."""
    plan = moves.plan("flights", READ, to)
    moves.move("flights", READ, plan.to, expected=plan.at, by="token")


def undo(moves: SubscriptionMoves, plan: MovePlan, by: str = "token") -> None:
    """Take the move back that a plan takes back."""
    assert plan.undoes is not None
    moves.undo("flights", READ, number=plan.undoes.number, expected=plan.at, by=by)


@pytest.mark.parametrize(
    ("to", "rows", "said"),
    [
        ("latest", 1300, "report skips 1,300 rows that it never reads: offsets 7 to 19"),
        (8, 100, "report skips 100 rows that it never reads: offset 7"),
        ("4", 300, "report reads 300 rows again: offsets 4 to 6"),
        ("earliest", 700, "report reads 700 rows again: offsets 0 to 6"),
    ],
)
def test_a_plan_says_what_a_move_means(moves: SubscriptionMoves, to: str, rows: int, said: str) -> None:
    plan = moves.plan("flights", READ, to)
    assert (plan.rows, plan.said, plan.obstacles) == (rows, said, ())
    assert plan.again == (plan.to < 7)
    assert any("checkpoint" in each for each in plan.remarks)


def test_a_plan_says_which_batches_were_lost(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """They are not counted as skipped."""
    topic.tail = 10
    plan = moves.plan("flights", READ, "latest")
    assert plan.rows == 1000
    assert plan.said.startswith("report skips 1,000 rows that it never reads: offsets 10 to 19. Besides, 3 batches")


def test_a_position_inside_a_batch(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """Is a place of its own, and an undo goes back to it."""
    topic.places[READ] = inside = replace(at(7), r=2)
    first = moves.plan("flights", READ, 7)
    assert (first.again, first.obstacles) == (True, ())
    assert first.said.endswith("again: offset 7")  # of which it has read a part
    move(moves, "latest")
    undo(moves, moves.plan_undo("flights", READ))
    assert topic.places[READ] == inside


@pytest.mark.parametrize("to", ["committed", "-1", "soon", "2026-11-21T10:00:00", ""])
def test_a_place_that_is_none(moves: SubscriptionMoves, to: str) -> None:
    with pytest.raises(ConfigError, match="is not one of earliest, latest, an offset, or a time"):
        moves.plan("flights", READ, to)


def test_a_subscription_that_is_not_there(moves: SubscriptionMoves) -> None:
    assert moves.plan("flights", READ, 0).to == 0
    with pytest.raises(SubscriptionNotFound):
        moves.plan("flights", "other", 0)
    with pytest.raises(TopicNotFound):
        moves.plan("others", READ, 0)


@pytest.mark.parametrize("name", ["../x", "", "a/b", "x" * 200])
def test_what_is_no_name_of_a_topic_is_not_asked_for(moves: SubscriptionMoves, topic: OneTopic, name: str) -> None:
    """It would be a part of a path in the registry."""
    with pytest.raises(TopicNotFound, match="is not the name of a topic"):
        moves.plan(name, READ, 0)
    assert topic.asked == 0


def test_a_move_and_the_way_back_and_forth(moves: SubscriptionMoves, topic: OneTopic, store: Store) -> None:
    """An undo is a move, which can be undone; each is an event that says who, from where, and to where."""
    move(moves, "latest")
    assert topic.places[READ] == at(20)
    last = moves.last("flights")[READ]
    assert (last.before, last.to, last.by, last.time) == (7, 20, "token", 1000.0)
    plan = moves.plan_undo("flights", READ)
    assert (plan.said, plan.rows, plan.obstacles) == ("report reads 1,300 rows again: offsets 7 to 19", 1300, ())
    undo(moves, plan, by="certificate ann")
    assert topic.places[READ] == at(7)
    redo = moves.plan_undo("flights", READ)
    assert redo.said == "report skips 1,300 rows that it never reads: offsets 7 to 19"
    undo(moves, redo)
    assert topic.places[READ] == at(20)
    events = store.events_called("moved")
    assert [(each.fields["from"], each.fields["to"], each.fields["by"]) for each in events] == [
        (7, 20, "token"),
        (20, 7, "certificate ann"),
        (7, 20, "token"),
    ]
    assert events[0].detail == "report of topic flights from offset 7 to offset 20, by token"


def test_a_move_is_made_only_as_planned(moves: SubscriptionMoves, topic: OneTopic, store: Store) -> None:
    """Its reader has gone on since the plan: refused with both places. Planned once more it is made."""
    plan = moves.plan("flights", READ, "earliest")
    topic.places[READ] = at(9)
    with pytest.raises(ControlConflict, match="stands at offset 9, and the plan saw it at offset 7"):
        moves.move("flights", READ, plan.to, expected=plan.at, by="token")
    assert (topic.places[READ], moves.last("flights"), store.events_called("moved")) == (at(9), {}, [])
    move(moves, "earliest")
    assert topic.places[READ] == at(0)


def test_what_is_expected_is_a_place(moves: SubscriptionMoves) -> None:
    for wrong in ("7", "x:1:7:0", "a" * 16 + ":1:7", "a" * 16 + ":1:" + 19 * "9" + ":0"):
        with pytest.raises(ConfigError, match="is not `at` of a plan"):
            moves.move("flights", READ, 0, expected=wrong, by="token")


def test_a_connected_subscriber_is_in_the_way(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """Without it the same move is made."""
    topic.connected.add(READ)
    plan = moves.plan("flights", READ, 0)
    assert plan.obstacles == ("a subscriber is connected from alpha, pid 4711: stop its subscriber first",)
    with pytest.raises(ControlConflict, match="is not moved: a subscriber is connected"):
        moves.move("flights", READ, 0, expected=plan.at, by="token")
    assert topic.places[READ] == at(7)
    topic.connected.clear()
    move(moves, 0)
    assert topic.places[READ] == at(0)


def test_a_subscriber_that_connects_after_the_look(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """The coordinator refuses; the undo before it is kept."""
    move(moves, 9)
    plan = moves.plan("flights", READ, 0)
    topic.before_seek = lambda: topic.connected.add(READ)
    with pytest.raises(ControlConflict, match="report is not moved: it is held"):
        moves.move("flights", READ, 0, expected=plan.at, by="token")
    assert (topic.places[READ], moves.last("flights")[READ].to) == (at(9), 9)


def test_a_subscriber_that_lost_its_link_is_in_the_way(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """If it came back, it would go on where it was."""
    topic.states[READ] = "reconnecting"
    (why,) = moves.plan("flights", READ, 0).obstacles
    assert "may come back" in why
    with pytest.raises(ControlConflict, match="may come back"):
        move(moves, 0)
    topic.states[READ] = "absent"
    move(moves, 0)
    assert topic.places[READ] == at(0)


def test_cursors_of_a_flow_are_in_the_way(moves: SubscriptionMoves, topic: OneTopic) -> None:
    topic.keeper = "prices"
    (why,) = moves.plan("flights", READ, 0).obstacles
    assert "at its cursors, which topic prices keeps" in why
    with pytest.raises(ControlConflict):
        move(moves, 0)
    topic.keeper = None
    move(moves, 0)


def test_a_move_to_where_it_stands_is_none(moves: SubscriptionMoves) -> None:
    assert moves.plan("flights", READ, 7).obstacles == ("it stands there already",)
    assert moves.plan("flights", READ, 8).obstacles == ()


def test_a_position_of_another_log_is_moved_to_the_same_offset(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """A reader would be refused there; the move is what mends it."""
    topic.places[READ] = replace(at(7), epoch=9)
    plan = moves.plan("flights", READ, 7)
    assert plan.obstacles == ()
    moves.move("flights", READ, 7, expected=plan.at, by="token")
    assert topic.places[READ] == at(7)


def test_an_undo_is_refused_once_the_reader_has_gone_on(moves: SubscriptionMoves, topic: OneTopic) -> None:
    move(moves, 4)
    assert moves.plan_undo("flights", READ).obstacles == ()
    topic.places[READ] = at(5)
    plan = moves.plan_undo("flights", READ)
    assert plan.obstacles == (
        "it stands at offset 5, and not at offset 4, where the move left it: it was read or moved since",
    )
    with pytest.raises(ControlConflict, match="not at offset 4"):
        undo(moves, plan)
    assert topic.places[READ] == at(5)


def test_an_undo_is_refused_once_the_rows_are_gone(moves: SubscriptionMoves, topic: OneTopic) -> None:
    move(moves, "latest")
    topic.tail = 7
    assert moves.plan_undo("flights", READ).to == 7
    topic.tail = 8
    with pytest.raises(ControlConflict, match="cannot be undone: batches 7 to 7 are missing"):
        moves.plan_undo("flights", READ)


def test_nothing_to_undo(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """Before the first move; and after one of a subscription that had no position."""
    with pytest.raises(ControlConflict, match="nothing to undo"):
        moves.plan_undo("flights", READ)
    topic.places[READ] = None
    assert moves.plan("flights", READ, 3).said == "report has no position yet; it gets one, and begins at offset 3"
    move(moves, 3)
    with pytest.raises(ControlConflict, match="had no position before"):
        moves.plan_undo("flights", READ)


def test_what_happens_between_look_and_move_is_said(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """The coordinator knows where it really was: no undo is offered that would go elsewhere."""
    plan = moves.plan("flights", READ, 0)
    topic.before_seek = lambda: topic.places.update({READ: at(8)})
    with pytest.raises(ControlConflict, match="was at offset 8, and not at offset 7, when it was moved to offset 0"):
        moves.move("flights", READ, plan.to, expected=plan.at, by="token")
    assert moves.last("flights") == {}


def test_an_undo_takes_back_the_move_that_was_confirmed(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """Others may leave the subscription at the same place; their undo goes elsewhere."""
    move(moves, 10)
    confirmed = moves.plan_undo("flights", READ)
    assert (confirmed.to, confirmed.undoes) == (7, moves.last("flights")[READ])
    move(moves, 19)
    move(moves, 10)
    with pytest.raises(
        ControlConflict, match="another move of report was made since the plan: its undo goes to offset"
    ):
        undo(moves, confirmed)
    assert topic.places[READ] == at(10)
    undo(moves, moves.plan_undo("flights", READ))
    assert topic.places[READ] == at(19)


def test_a_move_that_is_refused_keeps_the_undo_before_it(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """By the same number: it is the same move."""
    move(moves, 9)
    confirmed = moves.plan_undo("flights", READ)
    topic.fails = NotAuthorized("no right")
    with pytest.raises(NotAuthorized):
        move(moves, 0)
    assert moves.last("flights")[READ].to == 9
    topic.fails = None
    undo(moves, confirmed)
    assert topic.places[READ] == at(7)


def test_a_move_in_doubt_that_was_not_made(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """The one before it can be undone; also after another one in doubt."""
    move(moves, 9)
    confirmed = moves.plan_undo("flights", READ)
    topic.fails = LinkTimeout("no answer")
    for to in (0, 1):
        with pytest.raises(LinkTimeout):
            move(moves, to)
        last = moves.last("flights")[READ]
        assert (last.before, last.to, last.in_doubt) == (9, to, True)
        assert moves.plan_undo("flights", READ) == confirmed
    topic.fails = None
    undo(moves, confirmed)
    assert topic.places[READ] == at(7)


def test_a_move_in_doubt_that_was_made(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """It is that one which is undone."""
    move(moves, 9)
    topic.fails = LinkTimeout("no answer")
    topic.before_seek = lambda: topic.places.update({READ: at(2)})
    with pytest.raises(LinkTimeout):
        move(moves, 2)
    topic.fails, topic.before_seek = None, lambda: None
    plan = moves.plan_undo("flights", READ)
    assert (plan.to, plan.obstacles, plan.undoes and plan.undoes.before) == (9, (), 9)
    undo(moves, plan)
    assert topic.places[READ] == at(9)


def test_a_move_in_doubt_whose_reader_has_gone_on(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """Nobody knows whether it was made: it is shown as such."""
    move(moves, 9)
    topic.fails = LinkTimeout("no answer")
    with pytest.raises(LinkTimeout):
        move(moves, 2)
    topic.places[READ] = at(5)
    plan = moves.plan_undo("flights", READ)
    assert plan.undoes is not None
    assert (plan.undoes.to, plan.undoes.in_doubt) == (2, True)
    assert "not at offset 2" in plan.obstacles[-1]


def test_a_first_move_in_doubt_that_was_not_made(moves: SubscriptionMoves, topic: OneTopic) -> None:
    topic.fails = LinkTimeout("no answer")
    with pytest.raises(LinkTimeout):
        move(moves, 2)
    with pytest.raises(ControlConflict, match="nothing to undo"):
        moves.plan_undo("flights", READ)


def test_two_moves_at_once(moves: SubscriptionMoves, topic: OneTopic) -> None:
    """The second one is refused, and not let wait."""
    seen: list[str] = []

    def other() -> None:
        topic.before_seek = lambda: None
        with pytest.raises(ControlConflict, match="under way") as caught:
            moves.move("flights", READ, 1, expected="", by="token")
        seen.append(caught.value.message)

    topic.before_seek = other
    move(moves, 0)
    assert len(seen) == 1
    move(moves, 2)


def test_the_last_move_outlives_the_server(tmp_path: Path, topic: OneTopic) -> None:
    path = tmp_path / "server.db"
    first = Store(path, lambda: 1.0)
    move(SubscriptionMoves(first, topic, lambda: 1.0), 0)
    first.close()
    again = SubscriptionMoves(Store(path, lambda: 2.0), topic, lambda: 2.0)
    undo(again, again.plan_undo("flights", READ))
    assert topic.places[READ] == at(7)


def test_moves_that_are_kept_are_bounded(store: Store) -> None:
    """The oldest go; another move of one is the newest."""
    kept = MoveStore(store)
    with store.write():
        for number in range(MOST_MOVES):
            kept.put(MoveRow(topic="t", subscription=f"s{number}", time=1.0, by="", before=None, after=at(0)))
        kept.put(MoveRow(topic="t", subscription="s0", time=2.0, by="", before=at(0), after=at(1)))
        kept.put(MoveRow(topic="t", subscription="more", time=2.0, by="", before=at(0), after=at(1)))
    found = kept.of_topic("t")
    assert (len(found), "s1" in found, "s2" in found) == (MOST_MOVES, False, True)
    assert found["s0"].before == at(0)


def test_a_store_of_the_version_before(tmp_path: Path, topic: OneTopic) -> None:
    """Gets the table."""
    path = tmp_path / "server.db"
    with_table = Store(path, lambda: 1.0)
    with with_table.write():
        with_table.database.execute("DROP TABLE moves")
        with_table.database.execute("PRAGMA user_version = 5")
    with_table.close()
    move(SubscriptionMoves(Store(path, lambda: 1.0), topic, lambda: 1.0), 0)
    assert topic.places[READ] == at(0)


def test_moves_of_the_version_before(tmp_path: Path, topic: OneTopic) -> None:
    """Were made, and can be undone."""
    path = tmp_path / "server.db"
    first = Store(path, lambda: 1.0)
    move(SubscriptionMoves(first, topic, lambda: 1.0), 0)
    with first.write():
        first.database.execute("ALTER TABLE moves DROP COLUMN earlier")
        first.database.execute("PRAGMA user_version = 6")
    first.close()
    again = SubscriptionMoves(Store(path, lambda: 1.0), topic, lambda: 1.0)
    undo(again, again.plan_undo("flights", READ))
    assert topic.places[READ] == at(7)


def test_a_job_of_the_server_is_named(world: World, topic: OneTopic) -> None:
    """It is in the way until it has ended, or nobody knows whether it has; and its checkpoint is mentioned."""
    server = world.server()
    server.submit(world.submission())
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    topic.applications[READ] = Application("id", pipeline=NAME, job="report")
    moves = SubscriptionMoves(server.store, topic, lambda: 1.0)
    plan = moves.plan("flights", READ, 0)
    assert plan.obstacles == ("job flights.report is RUNNING, and may connect at any moment: stop it first",)
    assert "--new-checkpoint report" in plan.remarks[0]
    topic.connected.add(READ)
    assert moves.plan("flights", READ, 0).obstacles == (
        "a subscriber is connected from alpha, pid 4711: stop job flights.report first",
    )
    topic.connected.clear()
    (run,) = server.store.runs(NAME, "report", 1)
    server.store.change_run(run.id, state=JobState.LOST)
    assert moves.plan("flights", READ, 0).obstacles == ()
    server.store.change_run(run.id, state=JobState.RUNNING)
    assert moves.plan("flights", READ, 0).obstacles != ()
    worker.end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    assert moves.plan("flights", READ, 0).obstacles == ()


def test_data_loss_of_the_place_to_go_to(moves: SubscriptionMoves) -> None:
    assert moves.plan("flights", READ, 20).to == 20
    with pytest.raises(DataLoss):
        moves.plan("flights", READ, 21)
