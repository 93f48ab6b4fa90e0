"""The life of a node under everything at once: claims come and go, drivers die, GPUs reset, administrators interfere.

The invariants are checked after every step. `TESELA_LIFE_EXAMPLES` asks for more lives than the suite has time for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from node_tap import Crash, Tap
from node_world import make_world
from tesela.core.errors import NvmlError
from tesela.core.model import Refusal
from tesela.edge.simulator.faults import Fault

EXAMPLES = int(os.environ.get("TESELA_LIFE_EXAMPLES", "120"))
MACHINE = "a100-40gb:mig,h100-80gb"
SMALL = [("1g.5gb", "1g.10gb", start) for start in range(7)]
BIG = [("2g.10gb", "2g.20gb", 0), ("3g.20gb", "3g.40gb", 4), ("4g.20gb", "4g.40gb", 0), ("7g.40gb", "7g.80gb", 0)]
SLOTS = st.sampled_from([*SMALL, *BIG])


def _device(world, number, slot):
    return world.partition(number, slot[number], slot[2])


class NodeLife(RuleBasedStateMachine):
    """GPU 0 is an A100 in MIG mode, GPU 1 an H100 that switches by itself."""

    claims = Bundle("claims")

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="node-life-"))
        self.tap = Tap()
        self.world = make_world(self.root, MACHINE, wrap=self.tap.wrap)
        self.count = 0
        self.owned = set()

    def teardown(self):
        shutil.rmtree(self.root)

    # The scheduler, careless on purpose: it allocates what may be taken

    @rule(target=claims, number=st.sampled_from([0, 1]), slot=SLOTS)
    def allocate_partition(self, number, slot):
        return self._claim(_device(self.world, number, slot))

    @rule(target=claims, slots=st.lists(st.tuples(st.sampled_from([0, 1]), SLOTS), min_size=2, max_size=3, unique=True))
    def allocate_partitions(self, slots):
        return self._claim(*(_device(self.world, number, slot) for number, slot in slots))

    @rule(target=claims)
    def allocate_whole(self):
        return self._claim("gpu-1")

    @rule(target=claims, slot=SLOTS)
    def allocate_for_an_admin(self, slot):
        return self._claim(_device(self.world, 0, slot), adminAccess=True)

    def _claim(self, *devices, **result):
        self.count += 1
        return self.world.claim(f"c{self.count}", *devices, **result)

    # The kubelet

    @rule(ref=claims)
    def prepare(self, ref):
        self._prepare(ref)

    @rule(ref=consumes(claims))
    def unprepare(self, ref):
        assert self.world.unprepare(ref) is None, "nothing is in the way"

    # Deaths

    @rule(ref=claims, number=st.integers(0, 40), phase=st.sampled_from(["before", "after"]))
    def die_while_preparing(self, ref, number, phase):
        self._die(number, phase, self._prepare, ref)

    @rule(ref=claims, number=st.integers(0, 25), phase=st.sampled_from(["before", "after"]))
    def die_while_unpreparing(self, ref, number, phase):
        self._die(number, phase, self.world.unprepare, ref)

    @rule()
    def restart(self):
        self.world.start()

    def _prepare(self, ref):
        again = ref.uid in self.world.promised
        answer = self.world.prepare(ref)
        if again and isinstance(answer, Refusal):
            assert self.world.lost_gpus, f"a promise was broken: {answer.message}"
            self.world.promised.pop(ref.uid)  # its GPU lost it, and somebody took the place

    def _die(self, number, phase, act, ref):
        self.tap.crash(number, phase)
        try:
            act(ref)
        except Crash:
            self.world.start()
            if self.world.lost_gpus:  # a claim that was being made anew is the kubelet's to ask for again
                self.world.promised.pop(ref.uid, None)
        finally:
            self.tap.disarm()

    # The machine

    @rule()
    def reboot(self):
        self.world.reboot()

    @rule(number=st.sampled_from([0, 1]))
    def reset(self, number):
        self.world.reset(number)
        self.world.look()

    @rule(number=st.sampled_from([0, 1]))
    def reset_unnoticed(self, number):
        self.world.reset(number)

    @rule()
    def reload_the_module(self):
        self.world.reload_module()
        self.world.look()

    @rule(
        function=st.sampled_from(["create_gpu_instance", "create_compute_instance", "set_mig_mode"]),
        when=st.sampled_from(["before", "after"]),
        ref=claims,
    )
    def nvml_fails_a_prepare(self, function, when, ref):
        self.world.machine.inject(Fault(function=function, when=when))
        self._prepare(ref)
        self.world.machine.release()

    # The administrator

    @rule(number=st.sampled_from([0, 1]), slot=SLOTS)
    def make_a_foreign_partition(self, number, slot):
        self._make_foreign(number, slot[number], slot[2])

    @rule(ref=claims, number=st.sampled_from([0, 1]), unnoticed=st.booleans())
    def take_the_place_of_a_claim_after_a_reset(self, ref, number, unnoticed):
        record = self.world.record_path(ref).exists() and self._read(ref)
        self.world.reset(number)
        if not unnoticed:
            self.world.look()
        for device in record.devices if record else ():
            if device.current and device.gpu_uuid == self.world.uuid(number):
                self._make_foreign(number, device.current.profile, device.current.placement.start)

    def _make_foreign(self, number, profile, start):
        if not self.world.node.records.list().unreadable:  # as in `damage_a_record`
            with contextlib.suppress(NvmlError):  # no room, or MIG is off
                self.world.make_foreign(number, profile, start)

    def _read(self, ref):
        return next((one for one in self.world.node.records.list().records if one.claim == ref), None)

    @precondition(lambda self: self.world.foreign)
    @rule(data=st.data())
    def destroy_a_foreign_partition(self, data):
        uuid, gi_id = data.draw(st.sampled_from(sorted(self.world.foreign)))
        number = next(n for n in (0, 1) if self.world.uuid(n) == uuid)
        lost = set(self.world.lost_gpus)
        self.world.destroy_by_hand(number, gi_id)
        self.world.lost_gpus = lost

    @rule(ref=claims)
    def delete_a_cdi_file(self, ref):
        if not self.world.node.records.list().unreadable:  # else nothing would tell what that claim holds
            self.world.cdi_path(ref).unlink(missing_ok=True)
            self.world.look()

    @rule(ref=claims)
    def damage_a_record(self, ref):
        path = self.world.record_path(ref)
        if path.exists() and not self.world.foreign:  # else a rebuild could not tell whose a partition is
            path.write_text("{")
            if not self.world.cdi_path(ref).exists():  # nothing is left to tell which ids it had before a loss
                self.world.forget_containers(ref)

    @invariant()
    def everything_holds(self):
        self.world.check()


def test_the_invariants_hold_in_every_life():
    run_state_machine_as_test(
        NodeLife,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            derandomize="TESELA_LIFE_EXAMPLES" not in os.environ,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
