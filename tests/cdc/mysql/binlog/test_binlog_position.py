"""Places in the log, and sets of transactions, as texts."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_places_are_ordered_by_the_number_of_their_file() -> None:
    texts = ["binlog.000002:9", "binlog.000002:10", "binlog.000010:4", "binlog.999999:4", "binlog.1000000:4"]
    places = [Position.of(text) for text in texts]
    assert sorted([*places[2:], *places[:2]]) == places
    assert [str(place) for place in places] == texts
    assert Position("binlog.000002", 9) == places[0]
    assert places[0] <= places[1] < places[2]


@pytest.mark.parametrize("text", ["", "binlog.000001", "binlog:4", "binlog.000001:", "binlog.000001:-4", ".:4", "1:4"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        Position.of(text)


def test_a_state_of_mariadb() -> None:
    state = GtidState.of("1-5-20, 0-1-100", True)
    assert state.text == str(state) == "0-1-100,1-5-20"
    assert state.contains("0-9-100")
    assert not state.contains("0-1-101")
    assert not state.contains("2-1-1")
    more = state.adding("0-2-101").adding("2-3-4").adding("1-5-19")
    assert more.text == "0-2-101,1-5-20,2-3-4"
    assert state.text == "0-1-100,1-5-20"
    assert more.covers(state)
    assert not state.covers(more)
    assert state.covers(GtidState.of("", True))
    assert not GtidState.of("", True).covers(state)


def test_a_state_of_mysql() -> None:
    state = GtidState.of(f"{OTHER}:1-3,\n{UUID.upper()}:7:1-4:5:9-9", False)
    assert state.text == f"{UUID}:1-5:7:9,{OTHER}:1-3"
    assert [n for n in range(1, 12) if state.contains(f"{UUID}:{n}")] == [1, 2, 3, 4, 5, 7, 9]
    assert state.adding(f"{UUID}:10").text == f"{UUID}:1-5:7:9-10,{OTHER}:1-3"
    assert state.adding(f"{UUID}:8").text == f"{UUID}:1-5:7-9,{OTHER}:1-3"
    assert state.adding(f"{UUID}:6").text == f"{UUID}:1-7:9,{OTHER}:1-3"
    assert state.adding(f"{UUID}:7") is state
    assert state.adding(f"{UUID}:tag:1").text == f"{UUID}:1-5:7:9:tag:1,{OTHER}:1-3"
    for covered in ("", f"{UUID}:2-4", f"{UUID}:7:9", f"{OTHER}:1-3,{UUID}:1"):
        assert state.covers(GtidState.of(covered, False))
    for other in (f"{UUID}:1-6", f"{UUID}:5-7", f"{UUID}:10", f"{UUID}:tag:1", f"{OTHER}:1-4"):
        assert not state.covers(GtidState.of(other, False))


def test_tags() -> None:
    text = f"{UUID}:1-2:a_1:5-6:zone:1:3"
    state = GtidState.of(text, False)
    assert state.text == text
    assert state.contains(f"{UUID}:zone:3")
    assert not state.contains(f"{UUID}:zone:2")
    assert not state.contains(f"{UUID}:3")


def test_as_the_command_has_it() -> None:
    assert GtidState.of("", False).encoded() == struct.pack("<Q", 0)
    state = GtidState.of(f"{UUID}:1-5:7", False)
    wanted = struct.pack("<Q", 1) + bytes.fromhex(UUID.replace("-", "")) + struct.pack("<QQQQQ", 2, 1, 6, 7, 8)
    assert state.encoded() == wanted
    uuid, one = bytes.fromhex(UUID.replace("-", "")), struct.pack("<QQQ", 1, 3, 4)
    tagged = bytes([1, 2, 0, 0, 0, 0, 0, 1]) + uuid + b"\0" + one + uuid + b"\x08zone" + one
    assert GtidState.of(f"{UUID}:3:zone:3", False).encoded() == tagged


@pytest.mark.parametrize(
    ("text", "mariadb"),
    [
        *((text, True) for text in ["0-1", "0-1-2-3", "a-1-2", "0-1-2,0-1-3", f"{UUID}:1", "4294967296-1-2", "0-1-2,"]),
        *((text, False) for text in ["0-1-2", UUID, f"{UUID}:", f"{UUID}:0", f"{UUID}:5-4", f"{UUID}:1-", "x:1"]),
        *((text, False) for text in [f"{UUID}:tag", f"{UUID}:a b:1", f"{UUID}:1,", f"{UUID}:{2**63}", f"{UUID}:٣"]),
    ],
)
def test_what_is_no_state(text: str, mariadb: bool) -> None:
    with pytest.raises(ValueError, match="GTID"):
        GtidState.of(text, mariadb)


@pytest.mark.parametrize("gtid", ["", "0-1", f"{UUID}", f"{UUID}:x", f"{UUID}:1-2", f"{UUID}:A b:2"])
@pytest.mark.parametrize("mariadb", [False, True])
def test_what_is_no_gtid(gtid: str, mariadb: bool) -> None:
    state = GtidState.of("", mariadb)
    for use in (state.contains, state.adding):
        with pytest.raises(ValueError, match="GTID"):
            use(gtid)


def test_states_of_both_servers_do_not_compare() -> None:
    mine, theirs = GtidState.of("0-1-2", True), GtidState.of(f"{UUID}:1", False)
    for left, right in ((mine, theirs), (theirs, mine)):
        with pytest.raises(TypeError):
            left.covers(right)


@given(st.lists(st.tuples(st.sampled_from([UUID, OTHER, f"{UUID}:tag"]), st.integers(1, 12))))
def test_a_state_is_the_set_of_what_was_added(added: list[tuple[str, int]]) -> None:
    state = GtidState.of("", False)
    for source, number in added:
        state = state.adding(f"{source}:{number}")
    for source in (UUID, OTHER, f"{UUID}:tag"):
        for number in range(1, 14):
            assert state.contains(f"{source}:{number}") == ((source, number) in added)
    assert GtidState.of(state.text, False) == state
    shuffled = random.Random(1).sample(added, len(added))
    other = GtidState.of("", False)
    for source, number in shuffled:
        other = other.adding(f"{source}:{number}")
    assert other == state
    assert other.covers(state)


def test_a_hundred_thousand_transactions_are_one_interval() -> None:
    state = GtidState.of(f"{OTHER}:1-5", False)
    for number in range(1, 100_001):
        state = state.adding(f"{UUID}:{number}")
    assert state.text == f"{UUID}:1-100000,{OTHER}:1-5"


def test_the_text_is_the_server_s_own(logged: LoggedDatabase) -> None:
    logged.run("CREATE TABLE t (id int)")
    ((text,),) = logged.run("SELECT @@gtid_binlog_pos" if logged.mariadb else "SELECT @@gtid_executed")
    assert text
    assert GtidState.of(text, logged.mariadb).text == text.replace("\n", "")
