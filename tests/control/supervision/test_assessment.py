"""The truth table of an attempt: every combination of what launcher, lease, end record and order say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from jobpipe.jobs.supervision.assessment import Assessment, EndOf, Facts, LauncherAnswer, LeaseOf, OrderOf, Step, judge
from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED, JobState

# A row may name several values, separated by /; * is any. The first row that fits counts, and each must be the first
# for some combination. A row that ends with ! cannot come about if registry and server keep their rules; it is judged
# all the same, as records can be changed by hand.
TABLE = """
launcher            | exit           | lease            | end        | order           | forced | state     step
# an end record beats everything that the launcher says; of an attempt that nobody told to stop, a stop is a failure
*                   | *              | *                | STOPPED    | run             | *      | FAILED    record
*                   | *              | *                | FINISHED   | *               | *      | FINISHED  record
*                   | *              | *                | FAILED     | *               | *      | FAILED    record
*                   | *              | *                | STOPPED    | *               | *      | STOPPED   record
*                   | *              | *                | CANCELED   | *               | *      | CANCELED  record
# whoever has the lease runs; the launcher may say that it ended before the session does
ended/rebooted      | *              | own              | none/older | none/run        | *      | RUNNING   evict
ended/rebooted      | *              | own              | none/older | *               | *      | STOPPING  evict
not known           | *              | own              | none/older | run             | *      | RUNNING   wait !
not known           | *              | own              | none/older | none            | *      | RUNNING   order !
not known           | *              | own              | none/older | *               | *      | STOPPING  wait !
running/unknown     | *              | own              | none/older | run             | *      | RUNNING   wait
running/unknown     | *              | own              | none/older | none            | *      | RUNNING   order
running/unknown     | *              | own              | none/older | *               | *      | STOPPING  wait
# the server ended while it started it: it is kept from beginning, then it is as if it had never been
not known           | *              | none/earlier     | none/older | none/run/stop   | *      | -         fence
not known           | *              | stranger         | none/older | none/run/stop   | *      | -         fence !
not known           | *              | *                | none/older | fence           | *      | CANCELED  record 0
not known           | *              | *                | none/older | fence of stop   | *      | CANCELED  record 0
not known           | *              | *                | none/older | other           | *      | CANCELED  record
# it runs, without a lease: it has none yet, or it lost its session
running             | *              | none/earlier     | none/older | run             | *      | SUBMITTED wait
running             | *              | none/earlier     | none/older | none            | *      | SUBMITTED order
running             | *              | stranger         | none/older | run             | *      | SUBMITTED wait !
running             | *              | stranger         | none/older | none            | *      | SUBMITTED order
running             | *              | *                | none/older | *               | *      | STOPPING  wait
# it has ended, and left nothing: first it is made certain that there is no end record
ended/rebooted      | *              | *                | none/older | other           | *      | CANCELED  record
ended/rebooted      | *              | *                | none/older | none/run/stop   | *      | -         fence
ended/rebooted      | misconfigured  | *                | none/older | *               | *      | FAILED    record
ended/rebooted      | 0              | *                | none/older | fence of stop   | *      | STOPPED   record
ended/rebooted      | *              | *                | none/older | fence of stop   | *      | CANCELED  record
ended/rebooted      | replaced       | *                | none/older | fence           | *      | CANCELED  record
ended/rebooted      | *              | *                | none/older | fence           | *      | FAILED    record
# nobody can say: it is LOST, and only a person ends that
unknown             | *              | *                | none/older | none            | no     | LOST      order
unknown             | *              | *                | none/older | *               | no     | LOST      wait
unknown             | *              | *                | none/older | none/run/stop   | yes    | -         fence
unknown             | *              | *                | none/older | *               | yes    | CANCELED  record
"""
CODES: dict[str, int | None] = {
    "unknown": None,
    "0": 0,
    "1": 1,
    "killed": -9,
    "replaced": REPLACED,
    "misconfigured": MISCONFIGURED,
}
REBOOTED = "rebooted"  # unknown to the launcher, of a host that has booted since

Key = tuple[str, str, str, str, str, str]


def rows() -> list[tuple[list[set[str]], str]]:
    found = []
    for line in TABLE.strip().splitlines()[1:]:
        if not line.startswith("#"):
            *conditions, result = (part.strip() for part in line.split("|"))
            found.append(([set(each.split("/")) for each in conditions], result))
    return found


def combinations() -> list[Key]:
    found: list[Key] = []
    launchers = [*map(str, LauncherAnswer), REBOOTED]
    for launcher, lease, end, order, forced in product(launchers, LeaseOf, EndOf, OrderOf, ("no", "yes")):
        codes = CODES if launcher == "ended" else ("unknown",)
        found += [(launcher, code, str(lease), str(end), str(order), forced) for code in codes]
    return found


def fits(conditions: list[set[str]], key: Key) -> bool:
    return all("*" in allowed or value in allowed for allowed, value in zip(conditions, key, strict=True))


def facts(key: Key) -> Facts:
    launcher, code, lease, end, order, forced = key
    return Facts(
        launcher=LauncherAnswer.UNKNOWN if launcher == REBOOTED else LauncherAnswer(launcher),
        lease=LeaseOf(lease),
        end=EndOf(end),
        order=OrderOf(order),
        exit_code=CODES[code],
        rebooted=launcher == REBOOTED,
        forced=forced == "yes",
    )


def expected(result: str, lease: str) -> Assessment:
    state, step, *rest = result.removesuffix("!").split()
    recorded = step == "record"
    return Assessment(
        state=None if state == "-" else JobState(state),
        step=Step(step),
        free=recorded and lease == "none",
        started=rest != ["0"],
    )


def test_every_combination_is_in_the_table_and_judged_as_it_says() -> None:
    table = rows()
    used = set()
    for key in combinations():
        number = next((number for number, (conditions, _) in enumerate(table) if fits(conditions, key)), None)
        assert number is not None, f"no row for {key}"
        used.add(number)
        found, right = judge(facts(key)), expected(table[number][1], key[2])
        judged = (found.state, found.step, found.free, found.started)
        assert judged == (right.state, right.step, right.free, right.started), key
    assert used == set(range(len(table))), "a row that is never the first to fit"


def test_one_that_was_to_stop_has_not_failed_though_its_order_could_not_be_changed() -> None:
    said = Facts(launcher=LauncherAnswer.ENDED, lease=LeaseOf.NONE, end=EndOf.STOPPED, order=OrderOf.RUN, stopping=True)
    assert judge(said).state is JobState.STOPPED


def test_what_fails_when_it_is_canceled_has_not_failed() -> None:
    """A cluster ends Spark first, and then Python tells of a connection that is lost."""
    said = Facts(launcher=LauncherAnswer.ENDED, lease=LeaseOf.NONE, end=EndOf.FAILED, order=OrderOf.STOP, stopping=True)
    assert judge(said).state is JobState.FAILED
    found = judge(replace(said, canceled=True))
    assert (found.state, found.step, "repeated" in found.detail) == (JobState.CANCELED, Step.RECORD, True)


def test_what_its_launcher_says_is_passed_on() -> None:
    lost = Facts(launcher=LauncherAnswer.UNKNOWN, lease=LeaseOf.NONE, end=EndOf.NONE, order=OrderOf.RUN)
    assert judge(lost).detail == "the launcher does not answer for it, and it has no lease; it may still run"
    said = replace(lost, said="its log is on w1")
    assert judge(said).detail == "its log is on w1, and it has no lease; it may still run"
    waits = judge(replace(said, launcher=LauncherAnswer.RUNNING))
    assert (waits.state, waits.detail) == (JobState.SUBMITTED, "its log is on w1")
    ended = judge(replace(said, launcher=LauncherAnswer.ENDED, order=OrderOf.FENCE, exit_code=1))
    assert ended.detail == "its process ended with code 1, without an end record; its log is on w1"


def test_lost_is_never_called_failed() -> None:
    for key in combinations():
        judged = judge(facts(key))
        nobody_says = key[0] == "unknown" and key[2] != "own" and key[3] in ("none", "older")
        if nobody_says:
            assert judged.state is not JobState.FAILED
        if nobody_says and key[5] == "no":
            assert (judged.state, judged.step) in {(JobState.LOST, Step.WAIT), (JobState.LOST, Step.ORDER)}


def test_nothing_begins_while_a_lease_is_there() -> None:
    assert not [key for key in combinations() if key[2] != "none" and judge(facts(key)).free]


@pytest.mark.parametrize(("code", "said"), [(None, "ended"), (-9, "was killed by signal 9"), (1, "ended with code 1")])
def test_how_it_ended_is_told(code: int | None, said: str) -> None:
    found = judge(
        Facts(launcher=LauncherAnswer.ENDED, lease=LeaseOf.NONE, end=EndOf.NONE, order=OrderOf.FENCE, exit_code=code)
    )
    assert found.detail == f"its process {said}, without an end record"
