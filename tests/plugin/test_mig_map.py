"""The drawing of the MIG map: every block where its placement says, nothing wider than asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.cli.mig_map import LABEL_WIDTH, MAX_WIDTH, Detail, MapBlock, MapRow, render_mig_map
from tesela.core.model import Placement


def block(start: int, size: int, profile: str, holder: str | None) -> MapBlock:
    return MapBlock(placement=Placement(start=start, size=size), profile=profile, holder=holder)


def row(*blocks: MapBlock, name: str = "gpu-0", slices: int = 8, **facts) -> MapRow:
    known = {"product_name": "NVIDIA A100-SXM4-40GB", "mig": "on", **facts}
    return MapRow(name=name, memory_slices=slices, blocks=blocks, **known)


def lines(*rows: MapRow, **how) -> list[str]:
    return [line.rstrip() for line in render_mig_map(rows, **how).plain.split("\n")]


@st.composite
def map_rows(draw) -> MapRow:
    slices = draw(st.sampled_from([4, 8, 12]))
    blocks, start = [], 0
    while start < slices:
        size = draw(st.integers(1, slices - start))
        if draw(st.booleans()):
            profile = draw(st.sampled_from(["1g.5gb", "1g.24gb+me.all", "7g.141gb", "2g.48gb-me"]))
            blocks.append(block(start, size, profile, draw(st.sampled_from([None, "a", "a-pod-of-a-very-long-name"]))))
        start += size
    return row(*blocks, slices=slices, name=f"gpu-{draw(st.integers(0, 31))}")


def test_a_map_reads_like_this():
    drawn = lines(
        row(block(6, 1, "1g.5gb", "bridge"), block(0, 4, "3g.20gb", "job-1")), row(name="gpu-1"), ascii_only=True
    )

    assert drawn == [
        "2 x NVIDIA A100-SXM4-40GB",
        "  memory slice            0        1        2        3        4        5        6        7",
        "  gpu-0  MIG on   3 free |3g.20gb                            ........ ........ |1g.5gb  ........",
        "                         |job-1                              ........ ........ |bridge  ........",
        "",
        "  gpu-1  MIG on   8 free ........ ........ ........ ........ ........ ........ ........ ........",
        "",
        "  |1g   |3g   ... free   11 of 16 memory slices are free",
    ]


def test_a_whole_gpu_is_one_block():
    drawn = lines(row(whole_holder="training", mig="off"), ascii_only=True)

    assert drawn[2:4] == ["  gpu-0  MIG off  0 free |whole GPU", " " * LABEL_WIDTH + "|training"]


def test_a_partition_without_a_claim_says_so():
    assert "no claim" in lines(row(block(0, 4, "3g.20gb", None)))[3]


def test_a_lost_gpu_offers_nothing():
    drawn = lines(row(remark="LOST"))

    assert (drawn[2].split(), drawn[-1].strip()) == (["gpu-0", "LOST"], "··· free   0 of 8 memory slices are free")


def test_a_long_profile_keeps_what_tells_it_apart():
    assert "1g…+me" in lines(row(block(0, 1, "1g.10gb+me", "a")))[2]


def test_models_get_rulers_of_their_own():
    drawn = lines(row(), row(slices=4, product_name="NVIDIA A30"))

    assert [line for line in drawn if line.startswith("NVIDIA")] == ["NVIDIA A100-SXM4-40GB", "NVIDIA A30"]


def test_a_compact_map_has_one_line_per_gpu():
    drawn = lines(row(block(0, 4, "3g.20gb", "job-1")), row(name="gpu-1"), detail=Detail.COMPACT)

    assert (len(drawn), "3g.20gb job-1" in drawn[2]) == (6, True)


@pytest.mark.parametrize("detail", Detail)
@settings(max_examples=40)
@given(rows=st.lists(map_rows(), max_size=6), width=st.integers(64, 200))
def test_no_line_is_wider_than_asked(detail, rows, width):
    assert max(map(len, lines(*rows, width=width, detail=detail))) <= min(width, MAX_WIDTH)


@settings(max_examples=40)
@given(one=map_rows())
def test_every_block_begins_in_the_column_of_its_first_slice(one):
    drawn = render_mig_map([one]).plain.split("\n")
    starts = [column for column, letter in enumerate(drawn[2]) if letter == "▌"]

    assert starts == [LABEL_WIDTH + b.placement.start * (72 // one.memory_slices) for b in one.blocks]


@settings(max_examples=40)
@given(one=map_rows())
def test_every_free_slice_is_dotted(one):
    dots = render_mig_map([one]).plain.split("\n")[2].count("·")

    assert dots == one.free_slices * (72 // one.memory_slices - 1)


def test_without_colour_nothing_is_lost():
    drawn = render_mig_map([row(block(0, 1, "1g.5gb", "a"), block(1, 1, "1g.5gb", "b"))]).plain

    assert drawn.count("▌") == 5
