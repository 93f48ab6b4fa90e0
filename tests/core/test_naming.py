from __future__ import annotations

import pytest
from gpu_models import A100_40_PROFILES
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.naming import (
    PartitionName,
    WholeName,
    parse_device_name,
    render_counter_set_name,
    render_device_name,
    render_partition_name,
    render_profile_label,
)

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?", fullmatch=True)
names = st.one_of(
    st.builds(WholeName, number=st.integers(0, 10**6)),
    st.builds(
        PartitionName,
        number=st.integers(0, 10**4),
        profile_label=labels,
        profile_id=st.integers(0, 10**4),
        start=st.integers(0, 100),
    ),
)


@given(names)
def test_a_name_is_parsed_back_to_what_it_names(name):
    assert parse_device_name(render_device_name(name)) == name


@given(st.one_of(st.from_regex(r"gpu-\d{1,3}(-mig-[0-9a-z-]{1,12}-\d{1,3}-\d{1,2})?", fullmatch=True), st.text()))
def test_a_text_that_parses_is_exactly_the_rendering(text):
    name = parse_device_name(text)

    assert name is None or render_device_name(name) == text


@given(st.text(max_size=120), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**4))
def test_any_profile_name_gives_a_dns_label_that_keeps_the_numbers(profile, number, profile_id, start):
    name = PartitionName(number=number, profile_label=render_profile_label(profile), profile_id=profile_id, start=start)

    text = render_device_name(name)

    assert len(text) <= 63
    parsed = parse_device_name(text)
    assert isinstance(parsed, PartitionName)
    assert (parsed.number, parsed.profile_id, parsed.start) == (number, profile_id, start)


@pytest.mark.parametrize(
    ("profile", "label"),
    [
        ("1g.5gb", "1g5gb"),
        ("1g.5gb+me", "1g5gb-me"),
        ("1g.24gb-me", "1g24gb-me"),
        ("1g.24gb+me.all", "1g24gb-meall"),
        ("", "unnamed"),
    ],
)
def test_profile_label(profile, label):
    assert render_profile_label(profile) == label


def test_a_partition_is_named_as_nvidias_driver_names_it():
    profile = next(p for p in A100_40_PROFILES if p.name == "1g.10gb")

    assert render_partition_name(1, profile, profile.placements[3]) == "gpu-1-mig-1g10gb-15-6"


def test_whole_gpu_and_counter_set():
    assert (render_device_name(WholeName(number=3)), render_counter_set_name(3)) == ("gpu-3", "gpu-3-counter-set")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-",
        "gpu-00",
        "gpu-0-mig",
        "gpu-0-mig--19-0",
        "gpu-0-mig-1g5gb-019-0",
        "gpu-٣",
        "gpu-0\n",
        "gpu-vfio-0",
    ],
)
def test_other_texts_name_nothing(text):
    assert parse_device_name(text) is None
