"""What an allocation may say that this release, this policy or this driver does not serve: refused by name."""

from __future__ import annotations

import pytest
from tesela.core.record import ClaimState

SHARE = "11111111-1111-4111-8111-111111111111"


# Consumable shares


@pytest.mark.parametrize("device", ["gpu-1", "gpu-0-mig-1g5gb-19-0"])
def test_a_share_is_refused_by_name(world, device):
    sentence = world.refuse(world.claim("a", device, shareID=SHARE))

    assert f"device {device}: it was allocated as a share of a device, and Tesela does not serve" in sentence


def test_a_share_of_a_gpu_that_is_held_leaves_its_holder_alone(world):
    holder = world.claim("holder", "gpu-1")
    world.serve(holder)
    world.refuse(world.claim("late", "gpu-1", shareID=SHARE))

    assert world.record(holder).state is ClaimState.PREPARED
