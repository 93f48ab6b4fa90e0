"""The chart's schema of values, without Helm: its defaults, the lists it repeats, and the policy it lets through."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela import __version__
from tesela.core.errors import DocumentError
from tesela.edge.documents.policy import decode_policy

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "daemonset" / "chart" / "tesela"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DOCUMENTS = {"policy"}
POLICIES = jsonschema.Draft202012Validator({**SCHEMA["$defs"]["policy"], "$defs": SCHEMA["$defs"]})

effects = st.sampled_from(["None", "NoSchedule", "NoExecute", "Evict"])
rules = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["whole", "onDemand", "static", "ignore", "mig"]),
        "product": st.sampled_from(["NVIDIA A100*", "", 3]),
        "uuid": st.sampled_from(["GPU-5b5e0a3c", "5b5e0a3c"]),
        "number": st.integers(-1, 3),
        "allowedProfiles": st.lists(st.sampled_from(["1g.5gb", 1]), max_size=2),
        "gpu": st.just(3),
    },
)
signals = st.fixed_dictionaries(
    {},
    optional={
        "signal": st.sampled_from(["xid-48", "xid-94", ""]),
        "state": st.sampled_from(["healthy", "degraded", "unhealthy", "gone"]),
        "effect": effects,
        "threshold": st.integers(0, 3),
        "recovery": st.sampled_from(["reading", "reset", "boot", "person", "never"]),
    },
)
states = st.dictionaries(st.sampled_from(["degraded", "unhealthy", "gone", "healthy"]), effects, max_size=2)
policies = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from([1, 1, 1, 2]),
        "rules": st.lists(rules, max_size=2),
        "health": st.fixed_dictionaries({}, optional={"effects": states, "signals": st.lists(signals, max_size=1)}),
    },
)


def decode(policy):
    """What the driver says of it at start: nothing, or why not."""
    try:
        decode_policy(yaml.safe_dump(policy))
    except DocumentError as error:
        return str(error)
    return ""


@settings(max_examples=300, deadline=None)
@given(policies)
def test_no_policy_that_the_driver_takes_is_refused(policy):
    assert decode(policy) or POLICIES.is_valid(policy)


@settings(max_examples=300, deadline=None)
@given(policies)
def test_what_the_driver_refuses_is_refused_before_but_for_the_meaning_of_a_signal(policy):
    refusal = decode(policy)

    assert not refusal or refusal.startswith("health.signals[") or not POLICIES.is_valid(policy)


def test_the_defaults_keep_to_the_schema():
    assert [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(VALUES)] == []


@pytest.mark.parametrize(
    "group", ["", *(name for name, one in VALUES.items() if name not in DOCUMENTS and isinstance(one, dict))]
)
def test_no_value_may_be_taken_away(group):
    """A null does that, and so does --reuse-values with what an older chart had: the templates would meet nothing."""
    schema, values = (SCHEMA["properties"][group], VALUES[group]) if group else (SCHEMA, VALUES)

    assert set(values) - set(schema["required"]) <= {"affinity"}


def test_the_default_policy_is_the_one_that_is_shipped():
    shipped = ROOT / "daemonset" / "base" / "node-plugin" / "policy.yaml"

    assert VALUES["policy"] == yaml.safe_load(shipped.read_text())


def test_the_families_are_those_of_the_catalogue():
    listed = SCHEMA["properties"]["deviceClasses"]["properties"]["families"]["items"]["enum"]

    assert set(listed) == {path.stem for path in (ROOT / "deviceclasses/profiles").glob("*.yaml")} - {"kustomization"}


def test_the_chart_is_of_this_release():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("name", [path.name for path in (ROOT / "daemonset" / "base" / "permissions").glob("*.yaml")])
def test_the_chart_has_every_file_of_permissions(name):
    """Helm makes the namespace itself."""
    assert (CHART / "files" / "permissions" / name).exists() or name in {"kustomization.yaml", "namespace.yaml"}
