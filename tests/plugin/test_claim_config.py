"""Opaque configs from the claim to the GPU: strict, ranked, applied and taken back."""

from __future__ import annotations

import pytest


def config(source, *, requests=(), **parameters):
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **parameters}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def slicing(interval, source="FromClaim", **fields):
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return config(source, sharing=sharing, **fields)


def intervals(calls):
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [int(line.split()[-1]) for line in lines if "--set-timeslice" in line]


@pytest.fixture
def calls(world):
    """The arguments that the host's nvidia-smi was run with."""
    return world.install_smi()


def test_a_time_slice_is_set_on_the_gpu(world, calls):
    world.serve(world.claim("a", "gpu-1", configs=(slicing("Long"),)))

    assert calls.read_text().splitlines()[-1] == f"compute-policy -i {world.uuid(1)} --set-timeslice 3"


def test_the_time_slice_is_taken_back_when_the_claim_ends(world, calls):
    ref = world.claim("a", "gpu-1", configs=(slicing("Long"),))
    world.serve(ref)

    world.unprepare(ref)

    assert intervals(calls) == [3, 0]


def test_a_time_slice_is_set_again_after_a_boot(world, calls):
    ref = world.claim("a", "gpu-1", configs=(slicing("Short"),))
    world.serve(ref)
    world.reboot()
    world.serve(ref)

    assert intervals(calls) == [1, 1]


def test_preparing_twice_sets_it_once(world, calls):
    ref = world.claim("a", "gpu-1", configs=(slicing("Short"),))
    world.serve(ref)
    world.serve(ref)

    assert intervals(calls) == [1]


def test_without_config_no_time_slice_is_set(world, calls):
    world.serve(world.claim("a", "gpu-1"))

    assert intervals(calls) == []


def test_the_claims_config_goes_over_the_classs(world, calls):
    world.serve(world.claim("a", "gpu-1", configs=(slicing("Long"), slicing("Short", "FromClass"))))

    assert intervals(calls) == [3]


def test_a_config_for_a_request_covers_its_subrequests(world, calls):
    result = {"request": "core/big", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1"}

    world.serve(world.allocate("a", [result], (slicing("Medium", requests=["core"]),)))

    assert intervals(calls) == [2]


def test_a_partition_takes_a_time_slice_and_changes_nothing(world, calls):
    sharing = config("FromClaim", kind="MigDeviceConfig", sharing={"strategy": "TimeSlicing"})

    world.serve(world.claim("a", world.partition(0, "1g.5gb", 0), configs=(sharing,)))

    assert intervals(calls) == []


def test_without_nvidia_smi_the_claim_is_refused_and_leaves_nothing(world):
    ref = world.claim("a", "gpu-1", configs=(slicing("Long"),))

    sentence = world.refuse(ref)

    assert ("there is no nvidia-smi in" in sentence, world.unprepare(ref), world.leftovers()) == (True, None, [])


def test_a_time_slice_that_cannot_be_taken_back_keeps_the_claim(world, calls):
    ref = world.claim("a", "gpu-1", configs=(slicing("Long"),))
    world.serve(ref)
    smi = world.root / "driver/usr/bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho no such device\nexit 6\n")

    assert "said: no such device" in world.unprepare(ref)


def test_a_time_slice_that_could_not_be_set_is_taken_back(world, calls):
    """Half of it may have been done: the compute mode goes first."""
    smi = world.root / "driver/usr/bin/nvidia-smi"
    script = smi.read_text()
    smi.write_text(f'{script}case "$@" in *"timeslice 3") exit 1;; esac\n')

    world.refuse(world.claim("a", "gpu-1", configs=(slicing("Long"),)))

    assert (intervals(calls), world.leftovers()) == ([3, 0], [])


BAD = [
    ({"sharing": {"strategy": "MPS"}}, "sharing.strategy: MPS is not supported yet"),
    ({"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}, "sharing.mpsConfig: MPS is not supported"),
    ({"sharing": {"strategy": "RoundRobin"}}, "sharing.strategy: must be 'TimeSlicing', not 'RoundRobin'"),
    ({"sharing": {"strategie": "TimeSlicing"}}, "sharing.strategy: missing"),
    (
        {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}}},
        "sharing.timeSlicingConfig.interval: must be",
    ),
    (
        {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": 3}}},
        "sharing.timeSlicingConfig.interval: must be",
    ),
    ({"shring": {}}, "shring: unknown field"),
    ({"sharing": "TimeSlicing"}, "sharing: must be an object"),
    ({"kind": "VfioDeviceConfig"}, "kind: VfioDeviceConfig is not supported"),
    ({"kind": "GpuKonfig"}, "kind: must be GpuConfig or MigDeviceConfig"),
    ({"apiVersion": "resource.nvidia.com/v9"}, "apiVersion: must be resource.nvidia.com/v1beta1"),
]


@pytest.mark.parametrize(("parameters", "expected"), BAD)
def test_a_bad_config_is_refused_naming_its_field_and_the_claim(world, parameters, expected):
    sentence = world.refuse(world.claim("a", "gpu-1", configs=(config("FromClaim", **parameters),)))

    assert (expected in sentence, "default/a" in sentence, world.leftovers()) == (True, True, [])


def test_a_config_of_the_wrong_kind_for_its_request_is_refused(world):
    wrong = config("FromClaim", kind="MigDeviceConfig", requests=["r0"])

    sentence = world.refuse(world.claim("a", "gpu-1", configs=(wrong,)))

    assert "a MigDeviceConfig, and this device takes a GpuConfig" in sentence


def test_a_config_of_another_driver_is_not_ours_to_judge(world):
    theirs = {"source": "FromClass", "opaque": {"driver": "nic.example.com", "parameters": {"kind": "Nonsense"}}}

    world.serve(world.claim("a", "gpu-1", configs=(theirs,)))


def test_a_bad_config_keeps_no_other_claim_waiting(world):
    bad = world.claim("bad", "gpu-1", configs=(config("FromClaim", shring={}),))
    good = world.claim("good", "gpu-1")
    world.refuse(bad)

    world.serve(good)
