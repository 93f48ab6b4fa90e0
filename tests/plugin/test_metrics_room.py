"""The room that is left on a GPU, as computed from records, against what NVML itself would still make there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_world import make_world
from slice_world import holding
from tesela.core.errors import NvmlError
from tesela.core.geometry import plan_partitions
from tesela.core.model import GpuInstance
from tesela.core.naming import render_partition_name
from tesela.core.room import find_largest
from tesela.core.shape import DEFAULT_POLICY
from tesela.plugin.partition import Partitions

MODELS = ("a100-40gb:mig", "h100-80gb:mig", "h200-141gb:mig", "a30-24gb:mig", "rtx-pro-6000:mig")


@pytest.fixture(scope="module")
def worlds():
    """A node for each model, in MIG mode."""
    with tempfile.TemporaryDirectory(prefix="tesela-") as folder:
        found = {}
        for model in MODELS:
            root = Path(folder) / model.partition(":")[0]
            root.mkdir()
            found[model] = make_world(root, model)
        yield found


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=15, deadline=None)
@given(ranks=st.lists(st.integers(min_value=0, max_value=10_000), max_size=7))
def test_the_largest_is_what_nvml_still_makes(worlds, model, ranks):
    world = worlds[model]
    known = world.node.lookout.roster.gpus[0]
    choices, partitions = plan_partitions(known.gpu), Partitions(world.admin)
    live, records = [], []
    try:
        for rank in ranks:
            wanted = choices[rank % len(choices)]
            try:
                live.append(partitions.create(known.gpu.uuid, wanted.profile, wanted.placement))
            except NvmlError:
                continue
            name = render_partition_name(0, wanted.profile, wanted.placement)
            records.append(holding(known.gpu, name, claim=f"claim-{len(records)}"))

        room = find_largest(known, DEFAULT_POLICY, records=records, fences=())

        assert room is not None
        assert room.memory_bytes == _find_largest_possible(world.admin, known.gpu)
    finally:
        for one in live:
            partitions.destroy(
                GpuInstance(gpu_uuid=one.gpu_uuid, profile_id=one.profile_id, placement=one.placement, gi_id=one.gi_id)
            )


def _find_largest_possible(nvml, gpu):
    """By NVML's own count of what could still be made."""
    possible = [
        profile.memory_bytes
        for profile in gpu.profiles
        if nvml.get_gpu_instance_remaining_capacity(gpu.uuid, profile.profile_id) > 0
    ]
    return max(possible, default=0)
