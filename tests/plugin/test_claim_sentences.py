"""Whatever goes wrong below, the sentence on the pod names the claim, the device, the cause and the next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tesela.core.errors import StateError, TryAgain
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.plugin.sentence import naming
from tesela.plugin.service import ClaimService


class Broken:
    """A port of which one method raises."""

    def __init__(self, inner, method, error):
        self._inner, self._method, self._error = inner, method, error

    def __getattr__(self, name):
        return self._fail if name == self._method else getattr(self._inner, name)

    def _fail(self, *args, **kwargs):
        raise self._error


def break_port(world, port, method, error):
    world.wrap = lambda ports: replace(ports, **{port: Broken(getattr(ports, port), method, error)})
    world.start()


FULL = TryAgain("cannot write x: No space left on device: free space on that file system")
NO_NODE = StateError("the host has no number for it: see /proc/driver/nvidia-caps")
FAULTS = [
    ("records", "write", FULL),
    ("cdi", "write", FULL),
    ("metadata", "write", FULL),
    ("host", "get_gpu_node", NO_NODE),
    ("host", "get_capability_nodes", NO_NODE),
    ("host", "list_common_nodes", NO_NODE),
]


@pytest.mark.parametrize(("port", "method", "error"), FAULTS)
def test_a_prepare_that_disk_or_host_stops_names_claim_and_device(world, port, method, error):
    device = world.partition(0, "1g.5gb", 6)
    ref = world.claim("a", device)
    break_port(world, port, method, error)

    assert world.refuse(ref) == f"claim default/a: device {device}: {error}"


@pytest.mark.parametrize(("port", "method"), [("records", "remove"), ("cdi", "remove")])
def test_an_unprepare_that_the_disk_stops_names_claim_and_device(world, port, method):
    device = world.partition(0, "1g.5gb", 6)
    ref = world.claim("a", device)
    world.serve(ref)
    break_port(world, port, method, FULL)

    assert world.unprepare(ref) == f"claim default/a: device {device}: {FULL}"


@pytest.mark.parametrize("code", [codes.GPU_IS_LOST, codes.UNKNOWN])
@pytest.mark.parametrize("function", ["get_gpu_instances", "get_mig_mode", "get_minor_number"])
def test_a_gpu_that_does_not_answer_is_named_with_claim_and_next_step(world, function, code):
    device = world.partition(0, "1g.5gb", 6)
    ref = world.claim("a", device)
    world.machine.inject(Fault(function=function, code=code))

    sentence = world.refuse(ref)

    assert (f"claim default/a: device {device}: " in sentence, "tries again by itself" in sentence) == (True, True)


@pytest.mark.parametrize("device", ["gpu-1", "gpu-0-mig-1g5gb-19-6"])
@pytest.mark.parametrize("absent", [False, True])
def test_a_prepared_claim_on_a_gpu_that_is_gone_is_refused_in_words(world, device, absent):
    ref = world.claim("a", device)
    world.serve(ref)
    uuid = world.machine.gpu("0" if "mig" in device else "1").uuid
    world.machine.lose(uuid, absent=absent)
    world.lost_gpus.add(uuid)

    sentence = world.refuse(ref)

    assert (f"claim default/a: device {device}: " in sentence, "tries again by itself" in sentence) == (True, True)
    world.unnoticed.add(uuid)


def test_a_bad_config_names_the_device_and_the_next_step(world):
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": 3}}
    config = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}

    sentence = world.refuse(world.claim("a", "gpu-1", configs=(config,)))

    assert (
        sentence.startswith("claim default/a: device gpu-1: sharing.strategy: must be 'TimeSlicing', not 3"),
        "correct it there and create the claim anew" in sentence,
    ) == (True, True)


def test_many_devices_are_counted():
    ref = ClaimRef(namespace="default", name="a", uid="u")

    with (
        pytest.raises(TryAgain, match=r"^claim default/a: device d0, d1, d2, d3 and 4 more: busy$"),
        naming(ref, [f"d{number}" for number in range(8)]),
    ):
        raise TryAgain("claim default/a (u): busy")


# A fault of ours


@pytest.fixture
def refs(world):
    """Two claims of one pod."""
    return [world.claim("a", "gpu-1"), world.claim("b", world.partition(0, "1g.5gb", 6))]


def test_an_unexpected_error_in_one_claim_refuses_no_other(world, refs):
    break_port(world, "host", "get_capability_nodes", ZeroDivisionError("secret"))

    answers = ClaimService(world.node).prepare(refs, 20.0)

    assert [isinstance(answers[ref.uid], Refusal) for ref in refs] == [False, True]


def test_an_unexpected_error_is_a_sentence_and_its_text_stays_in_the_log(world, refs, caplog):
    break_port(world, "host", "get_capability_nodes", ZeroDivisionError("secret"))

    sentence = world.refuse(refs[1])

    assert ("prepare failed inside the driver (ZeroDivisionError)" in sentence, "secret" in sentence) == (True, False)
    assert "secret" in caplog.text


def test_an_unexpected_error_while_a_claim_ends_keeps_no_other(world, refs):
    for ref in refs:
        world.serve(ref)
    break_port(world, "nvml", "destroy_gpu_instance", ZeroDivisionError("secret"))

    answers = [world.unprepare(ref) for ref in refs]

    assert (answers[0], "unprepare failed inside the driver" in answers[1]) == (None, True)


def test_what_an_unexpected_error_left_is_undone_by_the_next_call(world, refs):
    break_port(world, "host", "get_capability_nodes", ZeroDivisionError("secret"))
    world.refuse(refs[1])
    world.wrap = lambda ports: ports
    world.start()

    assert world.leftovers() == []
