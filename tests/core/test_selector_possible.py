"""What a selector leaves out for certain, when only a device's kind is known."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.selector import Attribute, AttributeKind, Match, SelectorDevice, evaluate_selector, may_select

OURS: Final = "gpu.nvidia.com"
AT: Final = f'device.attributes["{OURS}"]'


def text(value: str) -> Attribute:
    return Attribute(AttributeKind.STRING, value)


def device(**attributes: str) -> SelectorDevice:
    return SelectorDevice(driver=OURS, attributes={k: text(v) for k, v in attributes.items()}, capacity={})


WHOLE: Final = device(type="gpu", profile="")
PARTITION: Final = device(type="mig")


@pytest.mark.parametrize(
    ("selector", "whole", "partition"),
    [
        (f'device.driver == "{OURS}"', True, True),
        ('device.driver == "gpu.example.com"', False, False),
        (f'device.driver == "{OURS}" && {AT}.type == "gpu"', True, False),
        (f'{AT}["type"] == "mig"', False, True),
        ('device.attributes[device.driver].type == "mig"', False, True),
        (f'!({AT}.type == "mig")', True, False),
        (f'{AT}.profile == "1g.5gb"', False, True),
        (f'{AT}.profile in ["1g.5gb", "2g.10gb"]', False, True),
        (f'{AT}.profile.startsWith("1g.")', False, True),
        (f'{AT}.profile == ""', True, True),
        (f'{AT}.productName == "H100" && {AT}.type == "mig"', False, True),
        (f'{AT}.productName == "H100" || {AT}.type == "mig"', True, True),
        (f'{AT}.productName == "H100" ? {AT}.type == "mig" : {AT}.type == "gpu"', True, True),
        (f'["mig", "shared"].exists(kind, {AT}.type == kind)', False, True),
        (f'device.capacity["{OURS}"].memory.isGreaterThan(quantity("10Gi"))', True, True),
    ],
)
def test_the_kind_decides_where_it_can(selector, whole, partition):
    assert (may_select(selector, WHOLE), may_select(selector, PARTITION)) == (whole, partition)


@pytest.mark.parametrize(
    "selector",
    [
        f"has({AT}.productName)",
        f'{AT}.?productName.orValue("") == ""',
        f'{AT}[?"productName"].hasValue()',
        f'"productName" in {AT}',
        f'!("productName" in {AT})',
        f"{AT}.exists(name, name == 'productName')",
        f"size({AT}) > 3",
        "size(device.attributes) > 3",
        'device.attributes.exists(domain, domain == "example.com")',
        '"example.com" in device.attributes',
        "device.allowMultipleAllocations",
        f'device.capacity["{OURS}"].?memory.hasValue()',
    ],
)
def test_an_expression_that_sees_what_is_missing_leaves_nothing_out(selector):
    assert (may_select(selector, WHOLE), may_select(selector, PARTITION)) == (True, True)


def test_what_is_known_may_be_asked_for_if_it_is_there():
    selector = f'{AT}.?type.orValue("") == "gpu"'

    assert (may_select(selector, WHOLE), may_select(selector, PARTITION)) == (True, False)


@pytest.mark.parametrize("selector", ["foo(", "device.colour == 1", '"text"', ""])
def test_a_wrong_expression_leaves_nothing_out(selector):
    assert may_select(selector, WHOLE)


def test_an_expression_that_takes_too_many_turns_leaves_nothing_out():
    """The API server takes it: its own limit, of cost, lies higher."""
    digits = f"{list(range(10))}"
    loops = "".join(f"{digits}.all(v{depth}, " for depth in range(5))

    assert may_select(f'{loops}true{")" * 5} && {AT}.type == "mig"', WHOLE)


NAMES: Final = st.sampled_from(["type", "profile", "productName", "brand"])
VALUES: Final = st.sampled_from(["gpu", "mig", "", "1g.5gb", "H100"])
LEAVES: Final = st.one_of(
    st.builds(lambda n, v: f'{AT}.{n} == "{v}"', NAMES, VALUES),
    st.builds(lambda n, v: f'{AT}.{n} != "{v}"', NAMES, VALUES),
    st.builds(lambda n, v: f'{AT}.?{n}.orValue("") == "{v}"', NAMES, VALUES),
    st.builds(lambda n: f"has({AT}.{n})", NAMES),
    st.builds(lambda n: f'("{n}" in {AT})', NAMES),
    st.builds(lambda n, v: f'{AT}.{n} in ["{v}", "mig"]', NAMES, VALUES),
    st.builds(lambda v: f"{AT}.all(name, name != '{v}')", NAMES),
    st.builds(lambda n: f"size({AT}) > {n}", st.integers(1, 4)),
)
SELECTORS: Final = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=5,
)
DEVICES: Final = st.one_of(
    st.builds(lambda more: (WHOLE, device(type="gpu", profile="", **more)), st.dictionaries(NAMES.filter(
        lambda name: name not in {"type", "profile"}), VALUES)),
    st.builds(lambda more: (PARTITION, device(type="mig", **more)), st.dictionaries(NAMES.filter(
        lambda name: name != "type"), VALUES)),
)  # fmt: skip


@given(SELECTORS, DEVICES)
def test_what_is_left_out_no_device_of_the_kind_is_selected_by(selector, pair):
    sketch, whole_truth = pair

    assert may_select(selector, sketch) or not isinstance(evaluate_selector(selector, whole_truth), Match)
