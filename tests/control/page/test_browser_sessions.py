"""Codes and cookies of browsers."""

from __future__ import annotations

import pytest

from jobpipe.control.page.browser_sessions import CODE_SECONDS, CODES, SESSION_SECONDS, BrowserSessions
from jobpipe.control.permissions import Right

TOKENS = {Right.OPERATE: "o" * 43, Right.VIEW: "v" * 43}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> BrowserSessions:
    return BrowserSessions(TOKENS, 8090, clock)


def _cookie(sessions: BrowserSessions, right: Right) -> str:
    """Return what a browser sends."""
    return sessions.cookie(right).partition(";")[0]


@pytest.mark.parametrize("right", list(Right))
def test_a_cookie_proves_its_right_until_it_ends(sessions: BrowserSessions, clock: Clock, right: Right) -> None:
    """And says until when."""
    cookie = _cookie(sessions, right)
    caller = sessions.caller(f"other=1; {cookie}")
    assert caller is not None
    assert (caller.right, caller.until) == (right, 1000.0 + SESSION_SECONDS)
    clock.now += SESSION_SECONDS - 1
    assert sessions.caller(cookie) is not None
    clock.now += 1
    assert sessions.caller(cookie) is None


def test_a_cookie_is_for_this_site_alone_and_no_script_reads_it(sessions: BrowserSessions) -> None:
    header = sessions.cookie(Right.VIEW)
    attributes = {part.strip() for part in header.split(";")[1:]}
    assert attributes == {"Path=/", f"Max-Age={SESSION_SECONDS}", "HttpOnly", "SameSite=Strict"}
    assert not any(token in header for token in TOKENS.values())


def test_a_changed_cookie_proves_nothing(sessions: BrowserSessions, clock: Clock) -> None:
    """Each character counts: the right, the end, the nonce and the signature."""
    cookie = _cookie(sessions, Right.VIEW)
    assert sessions.caller(cookie) is not None
    name, _, value = cookie.partition("=")
    for place in range(len(value)):
        other = "0" if value[place] != "0" else "1"
        assert sessions.caller(f"{name}={value[:place]}{other}{value[place + 1 :]}") is None, place
    operates = value.replace("view", "operate", 1)
    assert sessions.caller(f"{name}={operates}") is None
    for wrong in ("", ".", "view", "view.1.x", f"{value}.", "operate.99999999999.a.b", "é", "view.-1.x.y"):
        assert sessions.caller(f"{name}={wrong}") is None


def test_a_cookie_of_another_port_or_token_is_none(clock: Clock) -> None:
    """So a replaced token ends all sessions; a server that starts again with the same token knows them."""
    cookie = _cookie(BrowserSessions(TOKENS, 8090, clock), Right.OPERATE)
    assert BrowserSessions(TOKENS, 8090, clock).caller(cookie) is not None
    assert BrowserSessions(TOKENS, 8091, clock).caller(cookie) is None
    assert BrowserSessions({**TOKENS, Right.OPERATE: "n" * 43}, 8090, clock).caller(cookie) is None


def test_a_code_is_taken_once_and_in_time(sessions: BrowserSessions, clock: Clock) -> None:
    code = sessions.make_code(Right.VIEW)
    assert sessions.take_code(code + "x") is None
    assert sessions.take_code(code) is Right.VIEW
    assert sessions.take_code(code) is None
    late = sessions.make_code(Right.OPERATE)
    clock.now += CODE_SECONDS
    assert sessions.take_code(late) is None


def test_codes_are_bounded(sessions: BrowserSessions) -> None:
    """The oldest make room."""
    codes = [sessions.make_code(Right.VIEW) for _ in range(CODES + 1)]
    assert sessions.take_code(codes[0]) is None
    assert sessions.take_code(codes[1]) is Right.VIEW
    assert sessions.take_code(codes[-1]) is Right.VIEW


def test_tokens_have_their_rights(sessions: BrowserSessions) -> None:
    assert [sessions.right_of_token(TOKENS[right]) for right in Right] == list(Right)
    for wrong in ("", "o", "o" * 42, "o" * 44, "é" * 43):
        assert sessions.right_of_token(wrong) is None


@pytest.mark.parametrize(
    "other", ['prefs={"theme":"dark"}', "foo", "a=b c", 'x="', "user=Jörg", "a@b=1", "jobpipe-8090=junk"]
)
def test_cookies_of_other_programs_do_not_matter(sessions: BrowserSessions, other: str) -> None:
    """Browsers send those of all ports of a host; before ours or after it."""
    cookie = _cookie(sessions, Right.VIEW)
    for header in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert sessions.caller(header) is not None
    assert sessions.caller(other) is None
