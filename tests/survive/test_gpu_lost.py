"""A GPU falls off the bus while a claim is prepared, at every NVML call of it: words, and nothing stays."""

from __future__ import annotations

import itertools

import pytest
from tesela.core.model import Refusal

MACHINE = "a100-40gb:mig,h100-80gb"


class FallsOff:
    """GPU `number` is lost just before the NVML call with this number, counted from now on."""

    def __init__(self, world, number, call, *, absent):
        self._world, self._number, self._absent = world, number, absent
        self._left = call
        self.fell = False
        world.machine.on_call.append(self._on_call)

    def _on_call(self, _function, phase):
        if phase != "before" or self.fell:
            return
        self.fell = self._left == 0
        self._left -= 1
        if self.fell:
            self._world.machine.lose(str(self._number), absent=self._absent)
            self._world.lost_gpus.add(self._world.uuid(self._number))

    def end(self):
        self._world.machine.on_call.remove(self._on_call)


def partition(world):
    return [world.partition(0, "1g.5gb", 6)], 0


def switched_partition(world):
    return [world.partition(1, "1g.10gb", 0)], 1


def whole(world):
    return ["gpu-1"], 1


def of_two_gpus(world):
    return [world.partition(0, "3g.20gb", 4), "gpu-1"], 1


def lose_at_every_call(world, devices, *, absent):
    """Prepares until that makes no more calls, its GPU lost at each in turn; what it answered and how it ended."""
    for call in itertools.count():
        names, number = devices(world)
        ref = world.claim(f"c{call}", *names)
        falls = FallsOff(world, number, call, absent=absent)
        answer = world.prepare(ref)
        falls.end()
        world.look()
        world.check()
        if falls.fell:
            yield answer, world.unprepare(ref), world.leftovers()
            world.machine.reset(world.uuid(number))
            world.look()
        world.unprepare(ref)
        if not falls.fell:
            return


@pytest.mark.parametrize("absent", [False, True], ids=["answers lost", "not listed"])
@pytest.mark.parametrize("devices", [partition, whole, of_two_gpus])
def test_a_claim_whose_gpu_goes_ends_and_leaves_nothing(build, devices, absent):
    ends = [rest for _, *rest in lose_at_every_call(build(MACHINE), devices, absent=absent)]

    assert all(end == [None, []] for end in ends)


@pytest.mark.parametrize("absent", [False, True], ids=["answers lost", "not listed"])
@pytest.mark.parametrize("devices", [switched_partition])
def test_a_claim_whose_gpu_goes_is_refused_naming_claim_and_device(build, devices, absent):
    answers = [one for one, *_ in lose_at_every_call(build(MACHINE), devices, absent=absent)]

    refused = [answer.message for answer in answers if isinstance(answer, Refusal)]
    assert [
        sentence for sentence in refused if "claim default/c" not in sentence or "device gpu-" not in sentence
    ] == []


def test_another_gpu_serves_beside_it(build):
    world = build("a100-40gb:mig*2")
    falls = FallsOff(world, 0, 3, absent=False)
    world.prepare(world.claim("a", world.partition(0, "1g.5gb", 6)))
    falls.end()

    assert world.serve(world.claim("b", world.partition(1, "1g.5gb", 6)))


def test_a_claim_is_served_when_its_gpu_is_back(build):
    world = build(MACHINE)
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    falls = FallsOff(world, 0, 6, absent=True)
    world.refuse(ref)
    falls.end()
    world.look()
    world.machine.reset(world.uuid(0))
    world.look()

    assert world.serve(ref)
