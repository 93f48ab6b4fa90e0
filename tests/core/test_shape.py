from __future__ import annotations

import pytest
from gpu_models import a100, gpu_uuid, h100, known, t4
from tesela.core.model import Shape
from tesela.core.shape import DEFAULT_POLICY, PartitionSource, Policy, PolicyRule, plan_shape

ON_DEMAND, STATIC, NONE = PartitionSource.ON_DEMAND, PartitionSource.STATIC, PartitionSource.NONE


def shape(gpu, mode=None):
    policy = DEFAULT_POLICY if mode is None else Policy(rules=(PolicyRule(mode=mode),))
    planned = plan_shape(known(gpu), policy)
    return planned.whole, planned.partitions


@pytest.mark.parametrize(
    ("gpu", "mode", "expected"),
    [
        pytest.param(h100(), None, (True, ON_DEMAND), id="resetless, MIG off, default"),
        pytest.param(h100(mig_enabled=True), None, (True, ON_DEMAND), id="resetless, MIG on, default"),
        pytest.param(a100(), None, (False, ON_DEMAND), id="needs a reset, MIG on, default"),
        pytest.param(a100(mig_enabled=False), None, (True, NONE), id="needs a reset, MIG off, default"),
        pytest.param(t4(), None, (True, NONE), id="no MIG, default"),
        pytest.param(h100(profiles=()), None, (True, NONE), id="no profiles, default"),
        pytest.param(h100(mig_enabled=True), Shape.WHOLE, (True, NONE), id="whole where the mode follows"),
        pytest.param(a100(mig_enabled=False), Shape.WHOLE, (True, NONE), id="whole where MIG is off"),
        pytest.param(a100(), Shape.WHOLE, (False, NONE), id="whole where only a reset helps"),
        pytest.param(a100(), Shape.STATIC, (False, STATIC), id="static, MIG on"),
        pytest.param(h100(mig_enabled=True), Shape.STATIC, (False, STATIC), id="static, resetless, MIG on"),
        pytest.param(h100(), Shape.STATIC, (True, NONE), id="static, MIG off"),
        pytest.param(t4(), Shape.STATIC, (True, NONE), id="static without MIG"),
        pytest.param(h100(), Shape.IGNORE, (False, NONE), id="ignore"),
    ],
)
def test_what_a_gpu_offers(gpu, mode, expected):
    assert shape(gpu, mode) == expected


def test_a_gpu_that_can_offer_nothing_says_how_to_change_that():
    planned = plan_shape(known(a100()), Policy(rules=(PolicyRule(mode=Shape.WHOLE),)))

    assert "-mig 0" in planned.remark


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (PolicyRule(mode=Shape.IGNORE), {0, 1, 2}),
        (PolicyRule(mode=Shape.IGNORE, product="NVIDIA A100*"), {0}),
        (PolicyRule(mode=Shape.IGNORE, uuid=gpu_uuid(2)), {2}),
        (PolicyRule(mode=Shape.IGNORE, number=1), {1}),
    ],
)
def test_a_rule_names_gpus_by_product_uuid_or_number(rule, named):
    gpus = [known(a100(0)), known(h100(1)), known(t4(2))]

    assert {gpu.number for gpu in gpus if rule.matches(gpu)} == named


def test_the_first_rule_that_matches_decides():
    policy = Policy(rules=(PolicyRule(mode=Shape.STATIC, number=0), PolicyRule(mode=Shape.IGNORE)))

    assert plan_shape(known(a100(0)), policy).partitions is STATIC


def test_only_allowed_profiles_are_let_out():
    policy = Policy(rules=(PolicyRule(mode=Shape.ON_DEMAND, allowed_profiles=("3g.20gb",)),))

    planned = plan_shape(known(a100()), policy)

    assert [p.name for p in a100().profiles if planned.allows(p)] == ["3g.20gb"]
