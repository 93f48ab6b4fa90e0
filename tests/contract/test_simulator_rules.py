"""MIG's rules under random use: whatever is asked, no slice has two owners and no limit is passed."""

from __future__ import annotations

from collections import Counter

from contract.nvml_backends import code_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.models import MAX_GPU_INSTANCES, NO_ENGINES, list_models
from tesela.edge.simulator.nvml import SimulatedNvml

REFUSALS = {codes.INSUFFICIENT_RESOURCES, codes.IN_USE, codes.NOT_FOUND, codes.NOT_SUPPORTED}


class UsedGpu(RuleBasedStateMachine):
    """One GPU of any model; every call may be refused, but only with the codes that NVML documents."""

    @initialize(model=st.sampled_from(list_models()))
    def start(self, model):
        self.machine = build_machine(f"{model}:mig")
        self.nvml = SimulatedNvml(self.machine)
        self.nvml.init()
        self.gpu = self.nvml.get_uuid(0)
        self.model = self.machine.spec.gpus[0].model
        self.uuids: set[str] = set()

    def attempt(self, call, *arguments):
        try:
            return call(self.gpu, *arguments)
        except NvmlError as error:
            if error.code not in REFUSALS:
                raise
            return None

    @rule(data=st.data())
    def create(self, data):
        profile = data.draw(st.sampled_from(self.model.profiles))
        placement = data.draw(st.sampled_from(profile.placements))
        room = self.attempt(self.nvml.get_gpu_instance_remaining_capacity, profile.profile_id)
        made = self.attempt(self.nvml.create_gpu_instance, profile.profile_id, placement)
        assert made is None or room

    @rule(data=st.data())
    def create_compute(self, data):
        gi_id = data.draw(st.integers(0, MAX_GPU_INSTANCES - 1))
        profile_id = data.draw(st.integers(0, codes.COMPUTE_INSTANCE_PROFILE_COUNT - 1))
        made = self.attempt(self.nvml.create_compute_instance, gi_id, profile_id)
        if made is not None:
            assert made.mig_uuid not in self.uuids
            self.uuids.add(made.mig_uuid)

    @rule(gi_id=st.integers(0, MAX_GPU_INSTANCES - 1))
    def destroy(self, gi_id):
        self.attempt(self.nvml.destroy_gpu_instance, gi_id)

    @rule(gi_id=st.integers(0, MAX_GPU_INSTANCES - 1), ci_id=st.integers(0, 3))
    def destroy_compute(self, gi_id, ci_id):
        self.attempt(self.nvml.destroy_compute_instance, gi_id, ci_id)

    @precondition(lambda self: self.state().instances)
    @rule(data=st.data())
    def work(self, data):
        instance = data.draw(st.sampled_from(self.state().instances))
        self.machine.add_process("0", Process(pid=1, gi_id=instance.gi_id))

    @precondition(lambda self: self.state().processes)
    @rule()
    def rest(self):
        self.machine.remove_process("0", 1)

    @rule(mode=st.sampled_from([0, 1]))
    def toggle(self, mode):
        before = self.state()
        if mode != before.mig_current and before.instances:
            assert code_of(self.nvml.set_mig_mode, self.gpu, mode) == codes.IN_USE
            assert self.state() == before
        else:
            status = self.nvml.set_mig_mode(self.gpu, mode)
            assert (status == codes.SUCCESS) == (self.state().mig_current == mode)

    @rule()
    def reset(self):
        self.machine.reset("0", force=True)

    def state(self):
        return self.machine.gpu("0")

    @invariant()
    def no_slice_has_two_owners(self):
        owners = Counter(s for i in self.state().instances for s in i.placement.slices)
        assert not owners or max(owners.values()) == 1

    @invariant()
    def every_instance_lies_at_a_legal_place(self):
        legal = {(p.profile_id, x) for p in self.model.profiles for x in p.placements}
        assert {(i.profile_id, i.placement) for i in self.state().instances} <= legal

    @invariant()
    def limits_are_kept(self):
        live = Counter(i.profile_id for i in self.state().instances)
        assert all(live[p.profile_id] <= p.max_instances for p in self.model.profiles)

    @invariant()
    def engines_are_not_shared(self):
        profiles = [self.model.profile_of_id(i.profile_id) for i in self.state().instances]
        assert sum((p.engines for p in profiles), start=NO_ENGINES).fits(self.model.engines)

    @invariant()
    def compute_instances_fit_their_gpu_instance(self):
        for instance in self.state().instances:
            slices = self.model.profile_of_id(instance.profile_id).compute_slices
            assert sum(c.compute_slices for c in instance.compute_instances) <= slices

    @invariant()
    def nothing_lives_with_mig_off(self):
        assert self.state().mig_current or not self.state().instances


TestUsedGpu = UsedGpu.TestCase
TestUsedGpu.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
