"""Claims side by side: GPUs do not wait for each other, and two driver processes share one node without a conflict."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from node_world import DEADLINE_S
from tesela.core.model import Refusal
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.store.locks import FileLock, FileLocks, hold
from tesela.plugin.deadline import Deadline
from tesela.plugin.recover import Recovery


@pytest.fixture
def two(build):
    """A world with two driver processes over one state: `world.node` and `other`."""
    world = build("a100-40gb:mig*2")
    other = world.build()
    other.lookout.refresh()
    return world, other


def test_eight_gpus_are_cut_at_the_same_time(build):
    """Each call waits until all eight are inside NVML: one after the other they would never meet."""
    world = build("a100-40gb:mig*8")
    refs = [world.claim(f"c{n}", world.partition(n, "1g.5gb", 0)) for n in range(8)]
    inside = threading.Barrier(8)
    world.machine.on_call.append(
        lambda name, phase: inside.wait(DEADLINE_S) if (name, phase) == ("create_gpu_instance", "before") else None
    )

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(world.prepare, refs))

    assert not any(isinstance(answer, Refusal) for answer in answers)


def test_a_gpu_that_hangs_holds_up_no_other(build):
    world = build("a100-40gb:mig*2")
    stuck, quick = (world.claim(f"c{n}", world.partition(n, "1g.5gb", 0)) for n in range(2))
    world.machine.inject(Hang(function="create_gpu_instance", gpu="0"))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.prepare, stuck)
        assert world.machine.wait_for_hung_calls(1, DEADLINE_S)
        answer = world.prepare(quick)
        world.machine.release()
        waiting.result(DEADLINE_S)

    assert not isinstance(answer, Refusal)


def watch(world, timeout_s=1):
    """A driver whose NVML calls are given up after `timeout_s`."""
    world.wrap = lambda ports: dataclasses.replace(ports, nvml=WatchedNvml(ports.nvml, timeout_s=timeout_s))
    world.start()


def test_a_call_that_hangs_fails_its_claim_with_a_sentence(build):
    world = build("a100-40gb:mig*2")
    watch(world)
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Hang(function="create_gpu_instance", gpu="0"))

    sentence = world.refuse(ref)

    assert f"nvmlDeviceCreateGpuInstanceWithPlacement on GPU {world.uuid(0)}: did not return within 1 s" in sentence
    world.machine.release()


def test_a_call_that_hangs_frees_the_locks(build):
    world = build("a100-40gb:mig*2")
    watch(world)
    world.machine.inject(Hang(function="create_gpu_instance", gpu="0"))

    world.refuse(world.claim("a", world.partition(0, "1g.5gb", 0)))

    with hold(world.node.locks.gpu_lock(world.uuid(0)), 0, "GPU"):
        world.machine.release()


def test_what_a_late_call_made_is_not_lost(build):
    """The partition comes into being after its claim was refused; the claim's record covers it."""
    world = build("a100-40gb:mig*2")
    watch(world)
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Hang(function="create_gpu_instance", gpu="0"))
    world.refuse(ref)
    made = threading.Event()
    world.machine.on_call.append(
        lambda name, phase: made.set() if (name, phase) == ("create_gpu_instance", "after") else None
    )
    world.machine.release()
    assert made.wait(DEADLINE_S)

    world.start()
    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_two_processes_prepare_one_claim_once(two):
    world, other = two
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda node: world.prepare(ref, node), (world.node, other)))

    assert (answers[0], len(world.instances(0))) == (answers[1], 1)


def test_two_processes_give_one_slot_to_one_claim(two):
    world, other = two
    device = world.partition(0, "3g.20gb", 0)
    refs = [world.claim(name, device) for name in ("a", "b")]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(world.prepare, refs, (world.node, other)))

    assert sorted(isinstance(answer, Refusal) for answer in answers) == [False, True]


def test_what_one_process_prepared_the_other_gives_back(two):
    world, other = two
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.serve(ref)

    assert (world.unprepare(ref, other), world.leftovers()) == (None, [])


def test_a_process_that_has_not_noticed_a_reset_gives_back_what_the_other_made_after_it(two):
    """The generation that counts is the one on disk, not the one remembered."""
    world, other = two
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.serve(ref)
    world.reset(0)
    world.look()
    world.serve(ref)

    assert (world.unprepare(ref, other), world.leftovers()) == (None, [])


def test_a_process_that_has_not_noticed_a_reset_destroys_nothing_of_others(two):
    """The other process left a claim half done before the reset."""
    world, other = two
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Fault(function="create_compute_instance"))
    world.machine.inject(Fault(function="destroy_gpu_instance", times=2))
    world.refuse(ref)
    world.reload_module()
    world.node.lookout.refresh()

    gi_id = world.make_foreign(0, "1g.5gb", 0)

    world.unprepare(ref, other)

    assert [instance.gi_id for instance in world.instances(0)] == [gi_id]


def test_a_starting_process_leaves_a_claim_alone_that_the_other_is_preparing(two):
    world, other = two
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Hang(function="create_compute_instance", gpu="0"))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.prepare, ref)
        assert world.machine.wait_for_hung_calls(1, DEADLINE_S)
        recovery = Recovery(other)
        recovery.start()
        recovery.join(DEADLINE_S)
        left_alone = world.record_path(ref).exists()
        world.machine.release()
        answer = waiting.result(DEADLINE_S)

    assert (left_alone, isinstance(answer, Refusal)) == (True, False)


def test_many_claims_come_and_go_through_both_processes(two):
    world, other = two
    nodes = (world.node, other)

    def live(number):
        for turn in range(3):
            ref = world.claim(f"c{number}-{turn}", world.partition(number % 2, "1g.5gb", number // 2))
            assert not isinstance(world.prepare(ref, nodes[turn % 2]), Refusal)
            assert world.unprepare(ref, nodes[(turn + 1) % 2]) is None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(8)))

    assert world.leftovers() == []


class NotedLocks(FileLocks):
    """Notes for which GPUs a lock was asked, in order."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.asked: list[str] = []

    def gpu_lock(self, uuid: str) -> FileLock:
        self.asked.append(uuid)
        return super().gpu_lock(uuid)


def test_locks_of_several_gpus_are_taken_in_one_order_so_that_two_claims_never_wait_for_each_other(build):
    world = build("h100-80gb*8")
    locks = NotedLocks(world.state_dir)
    node = dataclasses.replace(world.node, locks=locks)

    with node.hold_gpus([world.uuid(n) for n in (5, 2, 7, 0, 3, 6, 1, 4)], Deadline.after(DEADLINE_S)):
        pass

    assert locks.asked == sorted(locks.asked)
