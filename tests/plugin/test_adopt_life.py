"""An adopted claim from its adoption to its end: what it holds, its files, its answers to the kubelet."""

from __future__ import annotations

import pytest
from moved_world import Moved
from node_world import DRIVER, POOL
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.plugin.claim_status import ClaimStatusWriter
from tesela.plugin.monitor import Monitor
from tesela.plugin.recover import Recovery

SLICED = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


@pytest.fixture
def moved(world):
    return Moved(world)


def test_a_partition_made_on_demand_becomes_ours_under_its_uuid(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)

    moved.adopt(ref)

    current = moved.world.record(ref).devices[0].current
    assert (current.ours, current.mig_uuid, current.placement) == (True, live.mig_uuid, live.placement)


def test_it_is_destroyed_when_the_kubelet_unprepares_its_claim(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)

    assert moved.world.unprepare(ref) is None

    assert moved.world.leftovers() == []


def test_its_cdi_file_stays_until_then_and_no_second_one_names_its_devices(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)

    moved.adopt(ref)

    assert [path.suffix for path in moved.world.cdi_dir.iterdir()] == [".yaml"]


def test_and_goes_then(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)

    moved.world.unprepare(ref)

    assert list(moved.world.cdi_dir.iterdir()) == []


def test_a_prepare_of_an_adopted_claim_answers_with_the_ids_of_their_file(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)

    (device,) = moved.world.prepare(ref)

    expected = f"k8s.gpu.nvidia.com/claim={ref.uid}-{device.device_name}"
    assert (device.cdi_device_ids, moved.world.cdi_path(ref).exists()) == ((expected,), False)


def test_their_file_when_it_vanishes_is_replaced_by_ours(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)
    moved.theirs.cdi_path(moved.world.cdi_dir, ref.uid).unlink()

    moved.world.look()

    assert live.mig_uuid in moved.world.cdi_path(ref).read_text()


@pytest.mark.parametrize("text", ["", "kind: other\n", "a: [", "kind: k8s.gpu.nvidia.com/claim\ndevices: []\n"])
def test_and_so_it_is_when_no_runtime_could_load_it(moved, text):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)
    moved.theirs.cdi_path(moved.world.cdi_dir, ref.uid).write_text(text)

    moved.world.look()

    assert [path.suffix for path in moved.world.cdi_dir.iterdir()] == [".json"]


def test_a_look_at_the_files_leaves_theirs_alone(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)
    before = moved.theirs.cdi_path(moved.world.cdi_dir, ref.uid).stat()

    Monitor(moved.world.node, Recovery(moved.world.node), lambda _reason: None).restore_files()

    assert moved.theirs.cdi_path(moved.world.cdi_dir, ref.uid).stat() == before


def test_a_whole_gpu_is_held_until_its_claim_ends(moved):
    ref = moved.whole("a", 2)
    moved.adopt(ref)

    refused = moved.world.refuse(moved.world.claim("b", moved.world.partition(2, "1g.10gb", 0)))

    assert "still held by claim default/a" in refused


def test_what_two_requests_got_answers_under_both(moved):
    ref = moved.world.claim("a", "gpu-2", "gpu-3")
    for number in (2, 3):
        request = f"r{number - 2}"
        moved.theirs.give_gpu(ref.uid, f"gpu-{number}", moved.world.uuid(number), request=request)
    moved.theirs.write_cdi(moved.world.cdi_dir, ref.uid)
    moved.adopt(ref)

    answer = moved.world.prepare(ref)

    assert [(one.request_names, one.device_name) for one in answer] == [(("r0",), "gpu-2"), (("r1",), "gpu-3")]


def test_a_subrequest_answers_under_the_name_that_the_pod_uses(moved):
    results = [{"request": "r0/small", "driver": DRIVER, "pool": POOL, "device": "gpu-2"}]
    ref = moved.world.allocate("a", results)
    moved.theirs.give_gpu(ref.uid, "gpu-2", moved.world.uuid(2), request="r0/small")
    moved.theirs.write_cdi(moved.world.cdi_dir, ref.uid)
    moved.adopt(ref)

    (device,) = moved.world.prepare(ref)

    assert device.request_names == ("r0",)


def test_a_time_slice_of_a_config_is_known_and_set_back(moved):
    calls = moved.world.install_smi()
    ref = moved.whole("a", 2, timeSliceApplied=True)
    moved.theirs.configure(ref.uid, SLICED)
    moved.adopt(ref)

    recorded = moved.world.record(ref).devices[0].time_slice
    moved.world.unprepare(ref)

    assert (recorded, calls.read_text().splitlines()[-1].split()[-1]) == ("Long", "0")


def test_a_time_slice_that_no_config_tells_is_set_back_too(moved):
    calls = moved.world.install_smi()
    ref = moved.whole("a", 2, timeSliceApplied=True)
    moved.adopt(ref)

    moved.world.unprepare(ref)

    assert calls.read_text().splitlines()[-1] == f"compute-policy -i {moved.world.uuid(2)} --set-timeslice 0"


def test_where_none_was_applied_none_is_set_back(moved):
    calls = moved.world.install_smi()
    ref = moved.whole("a", 2)
    moved.adopt(ref)

    moved.world.unprepare(ref)

    assert not calls.exists()


def test_a_claim_whose_name_nobody_tells_is_held_and_given_back_all_the_same(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt()

    name = moved.world.record(ref).claim.name
    moved.world.unprepare(ref)

    assert (name, moved.world.leftovers()) == ("", [])


def test_its_name_is_known_once_the_kubelet_prepares_it(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt()

    moved.world.prepare(ref)

    assert moved.world.record(ref).claim == ref


def test_a_damaged_record_of_an_adopted_claim_is_rebuilt_and_its_partition_never_destroyed(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)
    moved.world.record_path(ref).write_text("damaged")
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))

    moved.world.unprepare(ref)

    assert moved.live(0) == [live.gi_id]


def test_its_claim_s_status_tells_of_its_devices(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)

    ClaimStatusWriter(moved.world.kube, moved.world.node.records, lambda: moved.world.node.health.health).write()

    (device,) = moved.world.kube.get(RESOURCE_CLAIMS, "a", "default")["status"]["devices"]
    assert device["data"]["uuid"] == live.mig_uuid
