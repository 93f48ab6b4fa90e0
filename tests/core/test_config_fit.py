"""Configs of a kind that their requests' devices cannot take, told before anything is allocated."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.claim import AllocatedClaim, AllocatedResult, ConfigSource
from tesela.core.config import GpuConfig, MigDeviceConfig, SourcedConfig, resolve_config
from tesela.core.config_fit import Ask, Fit, PlacedConfig, judge_claim, judge_class
from tesela.core.errors import ClaimRefused
from tesela.core.model import ClaimRef

AT: Final = 'device.attributes["gpu.nvidia.com"]'
CLASSES: Final = {
    "gpu.nvidia.com": ('device.driver == "gpu.nvidia.com"', f'{AT}.type == "gpu"'),
    "mig.nvidia.com": (f'device.driver == "gpu.nvidia.com" && {AT}.type == "mig"',),
    "any": ('device.driver == "gpu.nvidia.com"',),
    "other": ('device.driver == "nic.example.com"',),
}
GPU, MIG = GpuConfig(), MigDeviceConfig()
KIND: Final = "opaque.parameters.kind"


def ask(name: str, class_name: str, *selectors: str) -> Ask:
    return Ask(name=name, class_name=class_name, selectors=selectors)


def placed(*configs: tuple) -> list[PlacedConfig]:
    return [
        PlacedConfig(path=f"spec.devices.config[{index}]", config=config, requests=tuple(requests))
        for index, (config, *requests) in enumerate(configs)
    ]


def judge(*asks: Ask, configs: list[PlacedConfig]) -> Fit:
    return judge_claim(asks, configs, CLASSES)


def test_a_config_that_fits_its_request_is_no_matter():
    assert judge(ask("core", "gpu.nvidia.com"), configs=placed((GPU, "core"))) == Fit()


def test_a_config_of_the_other_kind_is_a_problem_and_says_what_to_write():
    fit = judge(ask("core", "mig.nvidia.com"), configs=placed((MIG,), (GPU, "core")))

    (problem,) = fit.problems
    assert problem == (
        f"spec.devices.config[1].{KIND}: is GpuConfig, and request core (DeviceClass mig.nvidia.com) takes partitions "
        "only: make it MigDeviceConfig, or change what it is for"
    )


def test_the_request_s_own_selectors_count_too():
    fit = judge(ask("core", "any", f'{AT}.profile == "1g.10gb"'), configs=placed((GPU, "core")))

    assert len(fit.problems) == 1


def test_an_alternative_that_a_config_of_its_request_does_not_fit_is_a_problem():
    big, small = ask("core/big", "gpu.nvidia.com"), ask("core/small", "mig.nvidia.com")

    fit = judge(big, small, configs=placed((GPU, "core")))

    assert [text.split(": ")[1].split(" (")[0] for text in fit.problems] == ["is GpuConfig, and request core/small"]


def test_configs_may_name_alternatives_one_by_one():
    big, small = ask("core/big", "gpu.nvidia.com"), ask("core/small", "mig.nvidia.com")

    assert judge(big, small, configs=placed((GPU, "core/big"), (MIG, "core/small"))) == Fit()


def test_a_later_config_makes_good_an_earlier_one():
    assert judge(ask("core", "mig.nvidia.com"), configs=placed((GPU, "core"), (MIG, "core"))).problems == ()


def test_a_config_without_requests_speaks_for_its_kind_alone():
    whole, part = ask("a", "gpu.nvidia.com"), ask("b", "mig.nvidia.com")

    assert judge(whole, part, configs=placed((GPU,))) == Fit()


def test_a_config_that_speaks_for_nothing_is_warned_of():
    fit = judge(ask("core", "mig.nvidia.com"), configs=placed((GPU,)))

    assert fit == Fit(warnings=(f"spec.devices.config[0].{KIND}: governs nothing: no request here takes a whole GPU",))


def test_a_config_for_another_driver_s_request_is_warned_of():
    fit = judge(ask("nic", "other"), configs=placed((GPU, "nic")))

    assert fit == Fit(
        warnings=(f"spec.devices.config[0].{KIND}: governs nothing: request nic takes no device of gpu.nvidia.com",)
    )


@pytest.mark.parametrize("class_name", ["any", "not there"])
def test_where_either_kind_may_come_the_other_is_warned_of(class_name):
    fit = judge(ask("core", class_name), configs=placed((GPU, "core")))

    assert (fit.problems, len(fit.warnings)) == ((), 1)


def test_a_class_whose_config_fits_no_device_of_it_is_a_problem():
    fit = judge_class(CLASSES["mig.nvidia.com"], [PlacedConfig(path="spec.config[0]", config=GPU)])

    (problem,) = fit.problems
    assert problem.startswith(
        f"spec.config[0].{KIND}: is GpuConfig, and the class selects partitions only: make it Mig"
    )


@pytest.mark.parametrize(("class_name", "warnings"), [("gpu.nvidia.com", 0), ("any", 1), ("other", 1)])
def test_a_class_is_warned_where_its_config_may_not_be_meant(class_name, warnings):
    fit = judge_class(CLASSES[class_name], [PlacedConfig(path="spec.config[0]", config=GPU)])

    assert (fit.problems, len(fit.warnings)) == ((), warnings)


def test_a_class_without_configs_is_no_matter():
    assert judge_class(CLASSES["other"], []) == Fit()


NAMES: Final = st.sampled_from(["core", "core/big", "core/small", "other"])
CONFIGS: Final = st.lists(st.tuples(st.sampled_from([GPU, MIG]), st.lists(NAMES, max_size=2)), max_size=4)


@given(CONFIGS, st.sampled_from(["gpu.nvidia.com", "mig.nvidia.com"]), st.sampled_from(["core/big", "core"]))
def test_prepare_refuses_the_device_of_every_problem_and_no_other(configs, class_name, name):
    fit = judge(ask(name, class_name), configs=placed(*[(config, *requests) for config, requests in configs]))

    result = AllocatedResult(request=name, pool="node-1", device="any")
    claim = AllocatedClaim(ref=ClaimRef(namespace="ai", name="train", uid="1"), pod_claim_name=None, results=(result,))
    sourced = [
        SourcedConfig(index=index, source=ConfigSource.CLAIM, requests=tuple(requests), config=config)
        for index, (config, requests) in enumerate(configs)
    ]
    try:
        resolve_config(claim, sourced, result, whole=class_name == "gpu.nvidia.com")
        refused = False
    except ClaimRefused:
        refused = True
    assert bool(fit.problems) == refused
