from __future__ import annotations

import pytest
from tesela.core.quantity import parse_quantity
from tesela.core.selector import (
    Attribute,
    AttributeKind,
    CompileError,
    Match,
    NoMatch,
    SelectorDevice,
    SelectorRuntimeError,
    SelectorUndecided,
    evaluate_selector,
)

GPU = 'device.attributes["gpu.nvidia.com"]'
MEMORY = 'device.capacity["gpu.nvidia.com"].memory'
DEVICE = SelectorDevice(
    driver="gpu.nvidia.com",
    attributes={
        "profile": Attribute(AttributeKind.STRING, "1g.5gb"),
        "index": Attribute(AttributeKind.INT, 3),
        "ready": Attribute(AttributeKind.BOOL, True),
        "driverVersion": Attribute(AttributeKind.VERSION, "580.95.5"),
        "ids": Attribute(AttributeKind.INTS, (1, 2)),
        "resource.kubernetes.io/pcieRoot": Attribute(AttributeKind.STRING, "pci0000:00"),
    },
    capacity={"memory": parse_quantity("4864Mi"), "nic.example.com/lanes": parse_quantity("1500m")},
)


def _bare(**attributes: Attribute) -> SelectorDevice:
    return SelectorDevice(driver="gpu.nvidia.com", attributes=attributes, capacity={})


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        'device.driver == "gpu.nvidia.com"',
        f'{GPU}.profile == "1g.5gb"',
        f'{GPU}["profile"] == "1g.5gb"',
        'device.attributes[device.driver].profile == "1g.5gb"',
        f"{GPU}.ready",
        f"{GPU}.index > 2 && {GPU}.index in [1, 3]",
        f"{GPU}.index > 2.5",
        "1 < 2.5 && 3u >= 2",
        'device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")',
        '"gpu.nvidia.com" in device.attributes && !("nic.example.com" in device.attributes)',
        "size(device.attributes) == 2 && device.capacity.size() == 2",
        'device.attributes.exists(domain, domain == "resource.kubernetes.io")',
        f"cel.bind(own, {GPU}, own.ready && own.index == 3)",
        "!device.allowMultipleAllocations",
        f'{GPU}.profile.matches("^1g") && {GPU}.profile.split(".")[0] == "1g" && "x".upperAscii() == "X"',
        f"{GPU}.ids.exists(id, id == 2)",
    ],
)
def test_the_device_is_seen_as_kubernetes_shows_it(expression):
    assert evaluate_selector(expression, DEVICE) == Match()


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["nic.example.com"].?speed.orValue(1) == 1',
        'device.attributes[?"nic.example.com"].?speed.orValue(1) == 1',
        "device.attributes.?nic.?speed.orValue(1) == 1 && device.capacity.?nic.?lanes.hasValue() == false",
        '!has(device.attributes["nic.example.com"].speed)',
        f'has({GPU}.profile) && !has({GPU}.speed) && {GPU}.?speed.orValue("") == ""',
        f'{GPU}.profile == "1g.5gb" || {GPU}.speed == 1',
        f'{GPU}.speed == 1 || {GPU}.profile == "1g.5gb"',
        "has(device.attributes.anything)",
    ],
)
def test_what_is_missing_can_be_asked_for_without_an_error(expression):
    assert evaluate_selector(expression, DEVICE) == Match()


@pytest.mark.parametrize(
    "expression", ["false", f"{GPU}.speed == 1 && false", '"nic.example.com" in device.attributes']
)
def test_no_match(expression):
    assert evaluate_selector(expression, DEVICE) == NoMatch()


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (f"{GPU}.speed == 1", "no such key: speed"),
        ('device.attributes["no-such-domain"].attr.isGreaterThan(quantity("0"))', "no such key: attr"),
        ('device.capacity["no-such-domain"]["attr"].isInteger()', "no such key: attr"),
        ('quantity("much") == quantity("1")', "no quantity"),
        ('semver("1.2") == semver("1.2.0")', "no semantic version"),
        ("device.capacity['nic.example.com'].lanes.asInteger() == 1", "cannot convert value to integer"),
        (f"{GPU}.index", "CEL result of type int could not be converted to bool"),
        (f"{GPU}.ids", "CEL result of type list could not be converted to bool"),
        (f'{GPU}.index > "a"', "overload"),
        (f'{GPU}.profile.isGreaterThan(quantity("1"))', "overload"),
        (f'{GPU}.driverVersion.isGreaterThan(quantity("1"))', "not a semantic version"),
    ],
)
def test_an_error_at_run_time(expression, text):
    outcome = evaluate_selector(expression, DEVICE)

    assert isinstance(outcome, SelectorRuntimeError)
    assert text in outcome.text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("?!", "Syntax error"),
        ("1", "must evaluate to bool or the unknown type, not int"),
        ("frobnicate(device.driver)", "undeclared reference to 'frobnicate'"),
        ("device.serial == 1", "undefined field 'serial'"),
        ("devices.driver == 'x'", "undeclared reference to 'devices.driver'"),
        (f'{MEMORY} > quantity("1Gi")', "(kubernetes.Quantity, kubernetes.Quantity)"),
        (f"{MEMORY}.sign() == 1", "undeclared reference to 'sign'"),
        ("device.driver > 1", "no matching overload"),
    ],
)
def test_an_error_for_every_device(expression, text):
    outcome = evaluate_selector(expression, DEVICE)

    assert isinstance(outcome, CompileError)
    assert text in outcome.text


@pytest.mark.parametrize(
    "expression",
    [
        f'{MEMORY} == quantity("4864Mi") && {MEMORY} == quantity("4980736Ki")',
        f'{MEMORY}.compareTo(quantity("5Gi")) == -1 && {MEMORY}.compareTo(quantity("4864Mi")) == 0',
        f'{MEMORY}.isLessThan(quantity("5Gi")) && {MEMORY}.isGreaterThan(quantity("4Gi"))',
        f'{MEMORY}.add(quantity("256Mi")) == quantity("5Gi") && {MEMORY}.sub(1).isLessThan({MEMORY})',
        f"{MEMORY}.isInteger() && {MEMORY}.asInteger() == 5100273664 && sign({MEMORY}) == 1",
        'device.capacity["nic.example.com"].lanes.asApproximateFloat() == 1.5',
        'isQuantity("1.5Gi") && isQuantity("Gi") && !isQuantity("1 Gi") && quantity("1e3") == quantity("1k")',
    ],
)
def test_quantities(expression):
    assert evaluate_selector(expression, DEVICE) == Match()


@pytest.mark.parametrize(
    "expression",
    [
        f'{GPU}.driverVersion == semver("580.95.5+build")',
        f'{GPU}.driverVersion.isGreaterThan(semver("580.9.0")) && {GPU}.driverVersion.isLessThan(semver("581.0.0"))',
        f'{GPU}.driverVersion.compareTo(semver("v580.095.5", true)) == 0',
        f"{GPU}.driverVersion.major() == 580 && {GPU}.driverVersion.minor() == 95 && {GPU}.driverVersion.patch() == 5",
        'isSemver("1.2.3-rc.1") && !isSemver("v1.2.3") && isSemver("v1.2", true) && !isSemver("1.2-rc", true)',
        'semver("1.0.0-alpha.2").isLessThan(semver("1.0.0-alpha.10"))',
        'semver("1.0.0-1").isLessThan(semver("1.0.0-alpha")) && semver("1.0.0-rc").isLessThan(semver("1.0.0"))',
    ],
)
def test_semantic_versions(expression):
    assert evaluate_selector(expression, DEVICE) == Match()


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("sets.contains([1], [1])", "sets.contains"),
        ("[3, 1].isSorted()", "isSorted"),
        (f"{GPU}.ids.includes(1)", "includes"),
        ("{'a': 1}.all(k, v, v == 1)", "all with two variables"),
        ("['a'].indexOf('a') == 0", "indexOf on a list"),
        ("ip('10.0.0.1') == ip('10.0.0.1')", "ip"),
        ("true || url('http://x/').getPort() == ''", "getPort"),
        ("cel.bind(all, device.attributes, all['x'].y == 1)", "device.attributes as a value"),
        ("cel.bind(d, device, d.driver == 'x')", "device as a value"),
        ("has(device.driver)", "has(device.driver)"),
        ("device.attributes['gpu.' + 'nvidia.com'].index == 3", "a computed domain"),
    ],
)
def test_what_kubernetes_has_and_we_lack_is_undecided_by_name(expression, what):
    assert evaluate_selector(expression, DEVICE) == SelectorUndecided(what)


def test_an_attribute_that_cannot_be_read_fails_every_selector():
    device = _bare(driverVersion=Attribute(AttributeKind.VERSION, "not a version"))

    assert evaluate_selector("true", device) == SelectorRuntimeError(
        "attribute driverVersion: 'not a version' is no semantic version"
    )


def test_an_attribute_of_an_unknown_kind_fails_every_selector():
    device = _bare(future=Attribute(AttributeKind.NONE, ""))

    assert evaluate_selector("true", device) == SelectorRuntimeError("attribute future: unsupported attribute value")


@pytest.mark.parametrize("operator", ["==", "!="])
def test_a_version_compared_with_a_string_is_an_error(operator):
    outcome = evaluate_selector(f'{GPU}.driverVersion {operator} "580.95.5" && true', DEVICE)

    assert outcome == SelectorRuntimeError("no such overload")


def test_a_string_compared_with_a_version_is_different():
    assert evaluate_selector(f'"580.95.5" == {GPU}.driverVersion', DEVICE) == NoMatch()


def test_a_list_literal_of_several_types_is_an_error_for_every_device():
    assert isinstance(evaluate_selector('[1, "a"].size() == 2', DEVICE), CompileError)


def test_a_list_of_several_types_may_be_formatted():
    assert evaluate_selector('"%s-%d".format(["a", 1]) == "a-1"', DEVICE) == Match()


def test_whole_numbers_that_kubernetes_may_not_hold_as_integers_are_undecided():
    outcome = evaluate_selector('quantity("200Ti").isInteger()', DEVICE)

    assert outcome == SelectorUndecided("isInteger or asInteger on 100Ti or more")


def test_the_selector_without_guards_works_where_every_device_has_the_attribute():
    whole = _bare(profile=Attribute(AttributeKind.STRING, ""))

    assert evaluate_selector(f'{GPU}.profile == "1g.5gb" || {GPU}.profile == "3g.20gb"', whole) == NoMatch()
