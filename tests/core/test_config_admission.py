"""The shipped policy of configs refuses exactly what prepare refuses, at the same field; its CEL is run as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from admission_policy import AdmissionPolicy
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import DocumentError
from tesela.edge.documents.config import API_VERSION, decode_config

OURS: Final = "gpu.nvidia.com"
ROOT: Final = Path(__file__).parents[2]
POLICY: Final = AdmissionPolicy("config-admission.yaml", "tesela-configs")
BAD: Final = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "Fair"}}
GOOD: Final = {"apiVersion": API_VERSION, "kind": "GpuConfig"}

Json = dict[str, Any]


def entry(parameters: Any, driver: str = OURS) -> Json:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def claim(*config: Json) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": {"config": list(config)}}}


def template(*config: Json) -> Json:
    spec = {"metadata": {}, "spec": claim(*config)["spec"]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": spec}


def device_class(*config: Json) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "spec": {"config": list(config)}}


TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4)  # the binding ends a string at NUL
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | TEXT
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2))


def often(*expected: Any) -> st.SearchStrategy[Any]:
    """Mostly one of these; else anything."""
    return st.one_of(*[st.sampled_from(expected)] * 6, ANYTHING)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Any of these fields, and now and then one that nobody knows."""
    return st.fixed_dictionaries({}, optional={**fields, "colour": ANYTHING})


SLICING = objects(interval=often("Default", "Short", "Medium", "Long", None, "Forever"))
SHARING = objects(
    strategy=often("TimeSlicing", "TimeSlicing", "MPS"),
    timeSlicingConfig=often(None) | SLICING,
    mpsConfig=st.none() | ANYTHING,
)
PARAMETERS = objects(
    apiVersion=often(API_VERSION),
    kind=often("GpuConfig", "MigDeviceConfig", "GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"),
    sharing=often(None) | SHARING,
)
TYPED = st.builds(
    lambda kind, fields: {**fields, "apiVersion": API_VERSION, "kind": kind},
    st.sampled_from(["GpuConfig", "MigDeviceConfig"]),
    PARAMETERS,
)


def refused_path(parameters: Json) -> str | None:
    """The field that prepare names; of several unknown ones beside each other either may be named: `?`."""
    try:
        decode_config(parameters)
    except DocumentError as error:
        return blur(error.path, error.problem)
    return None


def blur(path: str, problem: str) -> str:
    return f"{path.rpartition('.')[0]}.?" if problem.startswith("unknown field") else path


@given(PARAMETERS | TYPED)
def test_the_policy_refuses_what_prepare_refuses_at_the_same_field(parameters):
    message = POLICY.decide(claim(entry(parameters)))

    path, _, problem = (message or "").removeprefix("spec.devices.config[0].opaque.parameters.").partition(": ")
    assert (None if message is None else blur(path, problem)) == refused_path(parameters)


@given(st.dictionaries(TEXT | st.sampled_from(["apiVersion", "kind", "sharing"]), ANYTHING, max_size=5))
def test_the_policy_has_an_answer_to_any_object(parameters):
    typed = {"apiVersion": API_VERSION, "kind": "GpuConfig", **parameters}

    assert (POLICY.decide(claim(entry(typed))) is None) == (refused_path(typed) is None)


@given(SCALARS | st.lists(SCALARS, max_size=2))
def test_parameters_that_are_no_object_are_refused(parameters):
    message = POLICY.decide(claim(entry(parameters)))

    assert message == "spec.devices.config[0].opaque.parameters: must be an object"


@pytest.mark.parametrize(
    ("render", "path"),
    [(claim, "spec.devices.config"), (template, "spec.spec.devices.config"), (device_class, "spec.config")],
)
def test_the_path_begins_where_configs_stand_in_that_kind(render, path):
    obj = render(entry(BAD, driver="other.example.com"), entry(GOOD), entry(BAD))

    assert POLICY.decide(obj) == f"{path}[2].opaque.parameters.sharing.strategy: must be TimeSlicing"


@given(ANYTHING)
def test_configs_of_other_drivers_are_their_own_affair(parameters):
    assert POLICY.decide(claim(entry(parameters, driver="other.example.com"))) is None


@pytest.mark.parametrize("render", [claim, template, device_class])
def test_an_object_without_configs_passes(render):
    bare = {**render(), "spec": {}}

    assert [POLICY.decide(render()), POLICY.decide(bare)] == [None, None]


@pytest.mark.parametrize("render", [claim, template, device_class])
def test_an_object_that_was_there_before_the_policy_may_be_changed_elsewhere(render):
    old = render(entry(BAD))
    released = {**old, "metadata": {"finalizers": []}}

    assert POLICY.decide(released, old) is None


def test_a_class_whose_spec_changes_is_looked_at():
    assert POLICY.decide(device_class(entry(BAD)), device_class(entry(GOOD))) is not None


def test_every_bad_config_is_named_up_to_four():
    message = POLICY.decide(claim(*[entry(BAD)] * 32))

    assert [part[:22] for part in message.split("; ")] == [
        *(f"spec.devices.config[{number}]" for number in range(4)),
        "and more",
    ]


def test_the_last_config_that_an_object_may_have_is_looked_at():
    assert POLICY.decide(claim(*[entry(GOOD)] * 31, entry(BAD))).startswith("spec.devices.config[31].")


@pytest.mark.parametrize(
    "sharing", [{"strategy": "MPS"}, {"strategy": "TimeSlicing", "mpsConfig": {}}], ids=["strategy", "config"]
)
def test_mps_is_refused_in_the_words_of_prepare(sharing):
    parameters = {**GOOD, "sharing": sharing}
    with pytest.raises(DocumentError) as caught:
        decode_config(parameters)

    assert POLICY.decide(claim(entry(parameters))) == f"spec.devices.config[0].opaque.parameters.{caught.value}"


@pytest.mark.parametrize("kind", ["VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"])
def test_what_tesela_does_not_do_is_refused_in_the_words_of_prepare(kind):
    parameters = {**GOOD, "kind": kind}
    with pytest.raises(DocumentError) as caught:
        decode_config(parameters)

    assert POLICY.decide(claim(entry(parameters))) == f"spec.devices.config[0].opaque.parameters.{caught.value}"


def test_a_message_shows_the_beginning_of_a_long_name():
    message = POLICY.decide(claim(entry({**GOOD, "x" * 5000: 1})))

    assert message.startswith(f"spec.devices.config[0].opaque.parameters.{'x' * 60}: unknown field")


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        {},
        {**GOOD, "kind": "GPUConfig"},
        {**GOOD, "kind": "VfioDeviceConfig"},
        {**GOOD, "kind": "ComputeDomainChannelConfig"},
        {**GOOD, "sharing": 1},
        {**GOOD, "sharing": {}},
        BAD,
        {**GOOD, "sharing": {"strategy": "MPS"}},
        {**GOOD, "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}},
        {**GOOD, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": []}},
        {**GOOD, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}}},
        {**GOOD, "colour": 1},
    ],
)
def test_the_page_has_the_message(parameters):
    message = POLICY.decide(claim(entry(parameters))).removeprefix("spec.devices.config[0].opaque.parameters")
    page = (ROOT / "docs" / "admission.md").read_text()

    assert f"`{message.partition(': use TimeSlicing')[0]}" in page


def test_the_webhook_is_asked_about_the_same_objects():
    webhook = yaml.safe_load((ROOT / "daemonset/components/admission-webhook/webhook.yaml").read_text())["webhooks"][0]
    constraints = POLICY.spec["matchConstraints"]

    assert [webhook["matchConditions"], webhook["rules"], webhook["matchPolicy"]] == [
        POLICY.spec["matchConditions"],
        constraints["resourceRules"],
        constraints["matchPolicy"],
    ]
