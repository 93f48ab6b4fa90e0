"""The model tables: complete, possible, and as the sources say."""

from __future__ import annotations

import copy
import itertools
import json
from importlib import resources

import pytest
from tesela.core.errors import DocumentError
from tesela.edge.simulator.models import GpuModel, list_models, load_model, parse_model

SEVEN_SLICES = ("a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb")


def starts(model: GpuModel) -> dict[str, tuple[int, ...]]:
    return {p.name.partition(".")[0] + _suffix(p.name): tuple(x.start for x in p.placements) for p in model.profiles}


def _suffix(name: str) -> str:
    return name[name.index("gb") + 2 :]


def table(name: str) -> dict:
    return json.loads((resources.files("tesela.edge.simulator") / "tables" / f"{name}.json").read_text())


def test_the_models():
    assert list_models() == ("a100-40gb", "a100-80gb", "a30-24gb", "h100-80gb", "h200-141gb", "rtx-pro-6000")


def test_a30_has_a_short_name():
    assert load_model("a30") == load_model("a30-24gb")


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(DocumentError, match="a100-40gb"):
        load_model("gtx-1080")


@pytest.mark.parametrize("name", SEVEN_SLICES)
def test_profile_ids_of_the_seven_slice_family(name):
    assert [p.profile_id for p in load_model(name).profiles] == [19, 20, 15, 14, 9, 5, 0]


@pytest.mark.parametrize("name", SEVEN_SLICES)
def test_instance_limits_of_the_seven_slice_family(name):
    assert [p.max_instances for p in load_model(name).profiles] == [7, 1, 4, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "grid", "slices"),
    [("a100-40gb", 8, 7), ("a30-24gb", 4, 4), ("h100-80gb", 8, 7), ("h200-141gb", 8, 7), ("rtx-pro-6000", 12, 4)],
)
def test_grids(name, grid, slices):
    model = load_model(name)
    assert (model.memory_slices, model.compute_slices) == (grid, slices)


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [
        ("a100-40gb", [4864, 4864, 9856, 9856, 19968, 19968, 40192]),
        ("a100-80gb", [9728, 9728, 19968, 19968, 40192, 40192, 80384]),
        ("a30-24gb", [6016, 6016, 12032, 24064]),
        ("h100-80gb", [9984, 9984, 20096, 20096, 40448, 40448, 81152]),
        ("h200-141gb", [16384, 16384, 33024, 33024, 71168, 71168, 143104]),
    ],
)
def test_memory(name, memory_mib):
    assert [p.memory_mib for p in load_model(name).profiles] == memory_mib


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("a100-40gb", {"reported"}),
        ("a100-80gb", {"derived", "mock"}),
        ("a30-24gb", {"lgip"}),
        ("h100-80gb", {"derived"}),
    ],
)
def test_memory_keeps_its_basis(name, bases):
    assert {p.memory_basis for p in load_model(name).profiles} == bases


def test_inferred_placements_say_so():
    assert {p.placement_basis for p in load_model("h200-141gb").profiles} == {"inferred"}


def test_multiprocessors_are_not_proportional_on_hopper():
    assert [p.multiprocessors for p in load_model("h100-80gb").profiles] == [16, 16, 26, 32, 60, 64, 132]


def test_a30_lacks_the_profile_whose_id_nobody_knows():
    assert [p.name for p in load_model("a30").profiles] == ["1g.6gb", "1g.6gb+me", "2g.12gb", "4g.24gb"]


def test_hopper_offers_a_wider_1c_inside_2g():
    compute = load_model("h100-80gb").profile_of_id(14).compute_instances
    assert [(c.name, c.profile_enum, c.multiprocessors) for c in compute if c.profile_enum == 7] == [("1c", 7, 26)]


def test_the_a100_without_double_memory_has_298_legal_sets():
    # The count is known from an exhaustive search of this geometry, the +me profile left aside.
    plain = [p for p in load_model("a100-40gb").profiles if p.profile_id not in {15, 20}]
    placements = [frozenset(x.slices) for p in plain for x in p.placements]
    assert _count_disjoint(placements) == 298


def _count_disjoint(placements: list[frozenset[int]], taken: frozenset[int] = frozenset()) -> int:
    total = 1
    for index, placement in enumerate(placements):
        if not placement & taken:
            total += _count_disjoint(placements[index + 1 :], taken | placement)
    return total


@pytest.mark.parametrize("name", list_models())
def test_every_media_engine_of_a_packed_gpu_exists(name):
    # Plain profiles that fill the grid must not run out of engines: hardware lists them as possible.
    model = load_model(name)
    for profile in (p for p in model.profiles if not _suffix(p.name)):
        engines = sum((profile.engines for _ in range(profile.max_instances - 1)), start=profile.engines)
        assert engines.fits(model.engines), profile.name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "reads format 1"),
        ({"architecture": "Maxwell-ish"}, "unknown to NVML"),
        ({"memory_slices": 6}, "covers the whole grid"),
        ({"board_memory_mib": 100}, "exceeds the board"),
        ({"profiles": []}, "at least one profile"),
        ({"brand": "x"}, "wrong type"),
    ],
)
def test_impossible_tables_are_refused(change, problem):
    with pytest.raises(DocumentError, match=problem):
        parse_model(table("a100-40gb") | change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"placement_starts": [0, 0]}, "overlap"),
        ({"placement_starts": [7], "placement_size": 2}, "leaves the grid"),
        ({"max_instances": 8}, "exceed its placements"),
        ({"profile_id": 20}, "share a profile_id"),
        ({"profile_enum": 7}, "share a profile_enum"),
        ({"profile_enum": 18}, "none of NVML"),
        ({"compute_slices": 2}, "disagree"),
        ({"memory_basis": "guess"}, "memory_basis"),
        ({"compute_instances": []}, "no compute instance fills it"),
        ({"name": "large"}, "no MIG profile name"),
    ],
)
def test_impossible_profiles_are_refused(change, problem):
    document = copy.deepcopy(table("a100-40gb"))
    document["profiles"][0] |= change
    with pytest.raises(DocumentError, match=problem):
        parse_model(document)


@pytest.mark.parametrize("field", sorted(table("a30-24gb")))
def test_a_missing_field_is_named(field):
    document = table("a30-24gb")
    del document[field]
    with pytest.raises(DocumentError, match=field):
        parse_model(document)


@pytest.mark.parametrize("name", list_models())
def test_sizes_within_a_profile_are_equal(name):
    sizes = [{x.size for x in p.placements} for p in load_model(name).profiles]
    assert all(len(size) == 1 for size in sizes)


def test_no_two_models_are_the_same_board():
    ids = [load_model(name).pci_device_id for name in list_models()]
    assert all(a != b for a, b in itertools.combinations(ids, 2))
