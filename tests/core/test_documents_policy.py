from __future__ import annotations

import pytest
from tesela.core.errors import DocumentError, StartError
from tesela.core.health.model import Effect, Evidence, HealthState
from tesela.core.model import Shape
from tesela.core.shape import Policy, PolicyRule
from tesela.edge.documents.policy import decode_policy, read_policy


def test_a_policy():
    text = """
    version: 1
    rules:
      - uuid: GPU-5b5e0a3c-2f8c-4f39-9d5c-0d6c2f3b7a11
        mode: static
      - number: 3
        mode: ignore
      - product: "NVIDIA A100*"
        mode: onDemand
        allowedProfiles: [1g.5gb, 3g.20gb]
      - mode: whole
    """

    assert decode_policy(text) == Policy(
        rules=(
            PolicyRule(mode=Shape.STATIC, uuid="GPU-5b5e0a3c-2f8c-4f39-9d5c-0d6c2f3b7a11"),
            PolicyRule(mode=Shape.IGNORE, number=3),
            PolicyRule(mode=Shape.ON_DEMAND, product="NVIDIA A100*", allowed_profiles=("1g.5gb", "3g.20gb")),
            PolicyRule(mode=Shape.WHOLE),
        )
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a map with the fields"),
        ("- mode: whole", "a map with the fields"),
        ("version: 2\nrules: []", "version: this release reads version 1"),
        ("rules: []", "version: this field is required"),
        ("version: 1", "rules: this field is required"),
        ("version: 1\nrules: [{mode: mig}]", "rules[0].mode: "),
        ("version: 1\nrules: [{mode: whole, gpu: 3}]", "rules[0].gpu: unknown field"),
        ("version: 1\nrules: [{number: 3}]", "rules[0].mode: this field is required"),
        ("version: 1\nrules: [{mode: whole, number: '3'}]", "rules[0].number: "),
        ("version: 1\nrules: [{mode: whole, number: 3, product: x}]", "rules[0]: give one of"),
        ("version: 1\nrules: [{mode: whole, allowedProfiles: [1g.5gb]}]", "rules[0]: allowedProfiles has no meaning"),
        ("version: 1\nrules: [{mode: static, allowedProfiles: [1]}]", "rules[0].allowedProfiles[0]: "),
        ("version: 1\nrules: [", "line 2"),
        ("version: 1\nhealth: {effects: {healthy: NoExecute}}", "health.effects.healthy: unknown field"),
        ("version: 1\nhealth: {effects: {gone: Evict}}", "health.effects.gone: "),
        ("version: 1\nhealth: {signals: [{signal: xid-48}]}", "health.signals[0]: nothing is changed"),
        ("version: 1\nhealth: {signals: [{signal: xid-x, state: healthy}]}", "health.signals[0].signal: there is no"),
        ("version: 1\nhealth: {signals: [{signal: xid-48, state: gone}]}", "health.signals[0].state: "),
        (
            "version: 1\nhealth: {signals: [{signal: gone, threshold: 2}]}",
            "health.signals[0].threshold: gone is a state",
        ),
        ("version: 1\nhealth: {signals: [{signal: xid-13, effect: NoExecute}]}", "health.signals[0].effect: xid-13 is"),
        ("version: 1\nrules: [{mode: static, uuid: 3}]", "rules[0].uuid: "),
    ],
)
def test_a_bad_policy_names_the_field(text, message):
    with pytest.raises(DocumentError) as refusal:
        decode_policy(text)

    assert message in str(refusal.value)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(StartError, match=r"policy\.yaml cannot be read"):
        read_policy(tmp_path / "policy.yaml")


def test_a_file_that_is_wrong_is_named_with_its_field(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules: [{mode: mig}]")

    with pytest.raises(StartError, match=r"policy\.yaml: rules\[0\]\.mode"):
        read_policy(path)


def test_a_signal_is_changed_in_what_its_entry_names():
    text = """
    version: 1
    health:
      signals: [{signal: xid-94, state: degraded, effect: NoExecute, threshold: 3, recovery: person}]
    """

    row = decode_policy(text).health.find("xid-94")

    assert row is not None
    assert (row.state, row.effect, row.threshold, row.evidence) == (
        HealthState.DEGRADED,
        Effect.NO_EXECUTE,
        3,
        Evidence.PERSON,
    )


def test_effects_are_given_by_state():
    row = decode_policy("version: 1\nhealth: {effects: {gone: NoExecute}}").health.find("gone")

    assert row is not None
    assert row.effect is Effect.NO_EXECUTE
