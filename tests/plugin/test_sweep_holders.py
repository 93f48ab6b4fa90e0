"""A partition that is in use: who holds it is named, and only he; it is tried again within bounds; others go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from node_world import POOL
from tesela.core.model import ClaimRef
from tesela.edge.kube.port import EVENTS, NODES
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process
from tesela.plugin.announce import Announcer
from tesela.plugin.sweep_look import list_claim_holders

DEADLINE_S = 20.0
TRAINER = Process(pid=4711, ci_id=0, name="trainer")
NEIGHBOUR = Process(pid=4712, ci_id=0, name="neighbour")
AGENT = Process(pid=4713, kind="open", name="dcgm")


def gi_of(world, ref: ClaimRef) -> int:
    return world.record(ref).devices[0].current.gi_id


@pytest.fixture
def neighbour(world):
    """A claim with a partition of GPU 0 in which a process runs."""
    neighbour = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(neighbour)
    world.machine.add_process("0", replace(NEIGHBOUR, gi_id=gi_of(world, neighbour)))
    return neighbour


def note_refusal(world) -> threading.Event:
    """Set once a partition's end was asked for."""
    asked = threading.Event()
    world.machine.on_call.append(
        lambda name, phase: asked.set() if (name, phase) == ("destroy_compute_instance", "before") else None
    )
    return asked


def use(world, ref):
    world.machine.add_process("0", replace(TRAINER, gi_id=gi_of(world, ref)))


def test_the_process_inside_is_named_and_no_neighbour(world, ref, neighbour):
    """Whoever reads it may end what it names."""
    use(world, ref)

    sentence = world.unprepare(ref)

    assert ("trainer (pid 4711)" in sentence, "neighbour" in sentence) == (True, False)


def test_an_agent_that_holds_the_gpu_itself_is_named_where_nobody_is_inside(world, ref, neighbour):
    world.machine.add_process("0", AGENT)
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE, times=3))

    sentence = world.unprepare(ref)

    assert ("which is one of dcgm (pid 4713); end that process" in sentence, "neighbour" in sentence) == (True, False)


def open_capability(world, ref, name):
    """A process that NVML does not list has the capability file of the claim's compute instance open."""
    current = world.record(ref).devices[0].current
    nodes = world.node.host.get_capability_nodes(0, current.gi_id, current.ci_id)
    process = world.root / "host/proc/4714"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text(f"{name}\n")
    (process / "fd" / "7").symlink_to(nodes[1].path)


def test_who_has_its_capability_file_open_is_named(world, ref, neighbour):
    open_capability(world, ref, "opener")
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE, times=3))

    sentence = world.unprepare(ref)

    assert ("in use by opener (pid 4714); end" in sentence, "neighbour" in sentence) == (True, False)


def test_who_has_its_capability_file_open_keeps_a_claim_that_is_gone(world, ref):
    open_capability(world, ref, "opener")

    assert list_claim_holders(world.node, world.record(ref)) == ("opener (pid 4714)",)


def test_a_holder_that_nobody_names_is_said_to_be_that(world, ref, neighbour):
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE, times=3))

    assert "a client that neither NVML nor /proc names" in world.unprepare(ref)


def test_every_unprepare_fails_with_that_text_until_the_process_ends(world, ref):
    use(world, ref)

    answers = [world.unprepare(ref) for _ in range(3)]

    assert ["in use by trainer (pid 4711)" in answer for answer in answers] == [True] * 3


def test_trying_again_is_bounded(world, ref):
    world.start(in_use_retry_s=1.0)
    use(world, ref)
    began_s = time.monotonic()

    world.unprepare(ref)

    assert 0.5 < time.monotonic() - began_s < 5


def test_a_process_that_ends_within_the_bound_is_waited_for(world, ref):
    world.start(in_use_retry_s=DEADLINE_S)
    use(world, ref)
    refused = note_refusal(world)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.unprepare, ref)
        refused.wait(DEADLINE_S)
        world.machine.remove_process("0", TRAINER.pid)
        answer = waiting.result(DEADLINE_S)

    assert (answer, world.leftovers()) == (None, [])


def test_the_claim_s_other_devices_are_given_back_meanwhile(world):
    """On the same GPU and on another one, whichever comes first."""
    devices = [world.partition(0, "1g.5gb", 6), world.partition(0, "1g.5gb", 5), world.partition(2, "1g.10gb", 0)]
    ref = world.claim("several", *devices)
    for device in world.serve(ref).devices[:1]:
        world.machine.add_process("0", replace(TRAINER, gi_id=device.current.gi_id))

    world.unprepare(ref)

    assert ([one.placement.start for one in world.instances(0)], world.instances(2)) == ([6], ())


@pytest.mark.parametrize("number", [0, 2], ids=["on the same GPU", "on another GPU"])
def test_other_claims_go_on_meanwhile(world, ref, number):
    """They do not wait for the one that is stuck, whose GPU's lock is free between two tries."""
    world.start(in_use_retry_s=DEADLINE_S)
    use(world, ref)
    profile = "1g.5gb" if number == 0 else "1g.10gb"
    refused = note_refusal(world)

    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(world.unprepare, ref)
        refused.wait(DEADLINE_S)
        began_s = time.monotonic()
        other = world.claim("other", world.partition(number, profile, 0))
        world.serve(other)
        answer = world.unprepare(other)
        took_s = time.monotonic() - began_s
        went_on = not stuck.done()
        world.machine.remove_process("0", TRAINER.pid)
        stuck.result(DEADLINE_S)

    assert (answer, went_on, took_s < DEADLINE_S / 2) == (None, True, True)


def test_the_holder_is_told_by_an_event(world, ref):
    """The kubelet writes none about an unprepare that fails, while the pod stays Terminating."""
    announcer = Announcer(world.kube, POOL)
    world.kube.create(NODES, {"metadata": {"name": POOL}})
    world.start(announcer=announcer)
    use(world, ref)
    sentence = world.unprepare(ref)

    announcer.send()

    (event,) = world.kube.list(EVENTS).items
    assert (event["reason"], event["note"], event["related"]["uid"]) == ("PartitionInUse", sentence, ref.uid)
