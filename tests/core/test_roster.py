from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_models import a100, gpu_uuid, known, roster
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.model import Inventory
from tesela.core.roster import EMPTY_ROSTER, plan_roster

ONE = a100(0)


def look(before, *gpus, boot_id="boot-1", module_token="module-1", silent=(), **facts):
    seen = Inventory(
        driver_version="580.95.05", cuda_driver_version=13000, gpus=gpus, partitions=(), silent=frozenset(silent)
    )
    return plan_roster(before, seen, boot_id=boot_id, module_token=module_token, **facts)


def generation(found, gpu=ONE):
    return found.find(gpu.uuid).generation


def test_a_new_gpu_is_numbered_by_its_minor():
    assert [one.number for one in look(EMPTY_ROSTER, a100(0), a100(5)).gpus] == [0, 5]


def test_a_new_gpu_whose_minor_is_taken_gets_the_lowest_free_number():
    before = look(EMPTY_ROSTER, a100(0), a100(1))
    newcomer = replace(a100(7), minor=1)

    assert look(before, a100(0), newcomer).find(newcomer.uuid).number == 2


def test_a_number_stays_when_minors_move():
    before = look(EMPTY_ROSTER, a100(0), a100(1))

    after = look(before, replace(a100(0), minor=1), replace(a100(1), minor=0))

    assert [(one.number, one.gpu.uuid) for one in after.gpus] == [(0, gpu_uuid(0)), (1, gpu_uuid(1))]


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 5), max_size=6), max_size=6))
def test_no_sequence_of_looks_moves_or_shares_a_number(looks):
    found, first = EMPTY_ROSTER, {}
    for minors in looks:
        found = look(found, *(replace(a100(index), minor=minor) for index, minor in minors.items()))
        for one in found.gpus:
            assert first.setdefault(one.gpu.uuid, one.number) == one.number
        assert len({one.number for one in found.gpus}) == len(found.gpus)


def test_a_gpu_that_is_not_seen_is_kept_with_its_last_facts():
    after = look(roster(ONE))

    assert after.gpus == (replace(known(ONE), present=False),)


def test_a_gpu_that_does_not_answer_stays_as_it_was():
    before = look(roster(ONE), ONE)

    assert look(before, silent={ONE.uuid}).gpus == before.gpus


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, 1, id="nothing happened"),
        pytest.param({"boot_id": "boot-2"}, 2, id="boot"),
        pytest.param({"module_token": "module-2"}, 2, id="module reload"),
        pytest.param({"emptied": [ONE.uuid]}, 2, id="emptied"),
        pytest.param({"emptied": [gpu_uuid(9)]}, 1, id="another one emptied"),
        pytest.param({"module_token": "module-2", "surviving": [ONE.uuid]}, 1, id="a recorded partition lives on"),
    ],
)
def test_generation(facts, expected):
    assert generation(look(roster(ONE), ONE, **facts)) == expected


def test_the_generation_rises_when_a_gpu_comes_back():
    assert generation(look(roster(known(ONE, present=False)), ONE)) == 2


def test_the_first_look_of_all_raises_nothing():
    assert generation(look(EMPTY_ROSTER, ONE)) == 1


def test_versions_that_nvml_does_not_tell_keep_their_last_value():
    silent = Inventory(driver_version="", cuda_driver_version=0, gpus=(), partitions=())

    after = plan_roster(roster(ONE), silent, boot_id="boot-1", module_token="module-1")

    assert (after.driver_version, after.cuda_driver_version) == ("580.95.05", 13000)


def test_a_gpu_whose_generation_takes_no_account_of_a_reload_yet_rises_at_the_next_look():
    """It was held back, because somebody was at work on it."""
    before = look(EMPTY_ROSTER, ONE)
    held_back = replace(before, module_token="module-2")

    assert generation(look(held_back, ONE, module_token="module-2")) == 2
