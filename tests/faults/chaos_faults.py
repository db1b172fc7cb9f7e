"""What :mod:`tests.faults.chaos` does to a pair: each fault returns when it is over, though not what came of it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import psutil

from tests.harness.proxies.lanes import BOTH

if TYPE_CHECKING:
    from tests.faults.chaos import Chaos

FLOW, FLOWED = "passes", "passed-on"  # a flow job, and what it publishes

Act: TypeAlias = Callable[["Chaos"], None]
FAULTS: list[Act] = []


def fault(act: Act) -> Act:
    """Add a fault to those that are drawn."""
    FAULTS.append(act)
    return act


# -- processes ---------------------------------------------------------------------------------------------------------


@fault
def kill_publisher(run: Chaos) -> None:
    """Its coordinator goes on, and hands over."""
    run.restart(run.rig.publisher)


@fault
def kill_subscriber(run: Chaos) -> None:
    """It goes on from its own position."""
    run.restart(run.subscriber())


@fault
def kill_coordinator(run: Chaos) -> None:
    """The publisher starts another one."""
    for process in run.coordinators():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@fault
def kill_data_process(run: Chaos) -> None:
    """The coordinator starts another one."""
    for process in run.rig.data_processes()[-1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@fault
def kill_publishers_host(run: Chaos) -> None:
    """Driver, coordinator and data process."""
    run.rig.publisher.signal(9)
    kill_coordinator(run)
    kill_data_process(run)
    run.restart(run.rig.publisher)


@fault
def stop_publisher(run: Chaos) -> None:
    """SIGSTOP, for less or more than a registry session."""
    run.rig.publisher.suspend()
    run.sleep(0.5, 6.0)
    run.rig.publisher.resume()


@fault
def stop_coordinator(run: Chaos) -> None:
    """SIGSTOP; its session may expire."""
    for process in run.coordinators():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            run.sleep(0.5, 7.0)
            process.resume()


@fault
def stop_subscriber(run: Chaos) -> None:
    """SIGSTOP."""
    program = run.subscriber()
    program.suspend()
    run.sleep(0.5, 6.0)
    program.resume()


@fault
def end_publisher(run: Chaos) -> None:
    """SIGTERM, as with a rolling restart."""
    run.rig.publisher.terminate(30.0)
    run.start(run.rig.publisher)


@fault
def end_subscriber(run: Chaos) -> None:
    """SIGTERM."""
    program = run.subscriber()
    program.terminate(30.0)
    run.start(program)


# -- a flow job --------------------------------------------------------------------------------------------------------


@fault
def kill_flow(run: Chaos) -> None:
    """Its driver; its tasks go on for a moment, its coordinator until the next driver comes."""
    run.restart(run.flow)


@fault
def kill_flow_task(run: Chaos) -> None:
    """Another attempt goes on."""
    for process in _task(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@fault
def late_flow_task(run: Chaos) -> None:
    """SIGSTOP; other attempts take all partitions, and then this one goes on with what it had.

    A driver that has a task has its handler too. One that was started a moment ago has neither, and makes other
    attempts by itself; the task is its predecessor's then.
    """
    for process in _task(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            if process.ppid() == run.flow.pid:
                run.flow.signal(signal.SIGUSR1)
        run.sleep(1.0, 5.0)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@fault
def kill_flow_coordinator(run: Chaos) -> None:
    """That of what it publishes; the driver starts another one."""
    for process in run.rig.flow_coordinators(FLOW)[-1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@fault
def stop_flow_coordinator(run: Chaos) -> None:
    """SIGSTOP; its session may expire."""
    for process in run.rig.flow_coordinators(FLOW)[-1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            run.sleep(0.5, 7.0)
            process.resume()


@fault
def kill_flows_host(run: Chaos) -> None:
    """Driver, tasks and coordinator."""
    run.flow.signal(signal.SIGKILL)
    for process in [*run.rig.flow_tasks(FLOW), *run.rig.flow_coordinators(FLOW)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    run.restart(run.flow)


@fault
def stop_flow(run: Chaos) -> None:
    """SIGSTOP of the driver; its tasks go on."""
    run.flow.suspend()
    run.sleep(0.5, 6.0)
    run.flow.resume()


@fault
def end_flow(run: Chaos) -> None:
    """SIGTERM."""
    run.flow.terminate(30.0)
    run.start(run.flow)


def _task(run: Chaos) -> list[psutil.Process]:
    """Return a random attempt of one of its tasks, if there is one."""
    drawn, found = run.chance.random(), run.rig.flow_tasks(FLOW)
    return [found[int(drawn * len(found))]] if found else []


# -- network -----------------------------------------------------------------------------------------------------------


@fault
def reset_links(run: Chaos) -> None:
    """RST of all links, some times."""
    for _ in range(run.chance.randrange(1, 5)):
        for proxy in run.rig.proxies:
            proxy.reset()
        run.sleep(0.0, 0.5)


@fault
def cut_links(run: Chaos) -> None:
    """At a random byte, of links that are open and of the next ones."""
    for proxy in run.rig.proxies:
        for way in BOTH:
            proxy.cut(way, run.chance.randrange(5000), open_ones=True, reset=run.chance.random() < 0.5)
            proxy.cut(way, run.chance.randrange(6000), times=2)
    run.sleep(0.5, 2.0)
    run.heal()


@fault
def flip_bits(run: Chaos) -> None:
    """TLS, or a checksum, notices."""
    for proxy in run.rig.proxies:
        for way in BOTH:
            bit = run.chance.randrange(8)
            proxy.flip(way, run.chance.randrange(5000), bit=bit, open_ones=True)
            proxy.flip(way, run.chance.randrange(4000), bit=bit)
    run.sleep(0.5, 2.0)
    run.heal()


@fault
def partition(run: Chaos) -> None:
    """Subscribers are cut off, without a word."""
    for proxy in run.rig.proxies:
        proxy.pause()
    run.sleep(0.5, 8.0)
    for proxy in run.rig.proxies:
        if run.chance.random() < 0.5:
            proxy.reset()
        proxy.resume()


@fault
def drop_one_way(run: Chaos) -> None:
    """One direction's bytes vanish; the links are of no use afterwards, and end."""
    way = run.chance.choice(BOTH)
    for proxy in run.rig.proxies:
        proxy.drop(way)
    run.sleep(0.5, 4.0)
    for proxy in run.rig.proxies:
        proxy.drop(way, False)
        proxy.reset()


@fault
def late_frames(run: Chaos) -> None:
    """What subscribers sent arrives seconds later, over links that they may have left."""
    for proxy in run.rig.proxies:
        proxy.hold("up")
    run.sleep(0.5, 6.0)
    if run.chance.random() < 0.5:
        run.restart(run.subscriber())
    for proxy in run.rig.proxies:
        proxy.release()


@fault
def slow_links(run: Chaos) -> None:
    """100 ms each way and 3 Mbit/s."""
    for proxy in run.rig.proxies:
        proxy.delay(0.1)
        proxy.limit_rate(3e6 / 8)
    run.sleep(1.0, 4.0)
    run.heal()


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


@fault
def kill_zookeeper(run: Chaos) -> None:
    """For less or more than a session."""
    run.rig.zookeeper.kill()
    run.sleep(0.0, 8.0)
    run.rig.zookeeper.start()


@fault
def partition_zookeeper(run: Chaos) -> None:
    """All sessions may expire."""
    run.rig.zookeeper.proxy.pause()
    run.sleep(0.5, 10.0)
    run.rig.zookeeper.proxy.resume()


@fault
def lose_zookeepers_answers(run: Chaos) -> None:
    """It does what it is told, and nobody hears."""
    run.rig.zookeeper.proxy.drop("down")
    run.sleep(0.2, 2.0)
    run.rig.zookeeper.proxy.drop("down", False)
    run.rig.zookeeper.proxy.reset()
