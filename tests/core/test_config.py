"""Opaque configs: strict decoding and precedence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.claim import AllocatedClaim, AllocatedResult, ConfigSource, RawConfig
from tesela.core.config import (
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    SourcedConfig,
    TimeSliceInterval,
    resolve_config,
)
from tesela.core.errors import ClaimRefused, DocumentError
from tesela.core.model import ClaimRef
from tesela.edge.documents.config import decode_config, decode_configs

V = "resource.nvidia.com/v1beta1"
WHOLE = AllocatedResult(request="gpu", pool="node-1", device="gpu-0")
PARTITION = AllocatedResult(request="gpu", pool="node-1", device="gpu-0-mig-1g5gb-19-0")
LONG, SHORT = GpuConfig(time_slice=TimeSliceInterval.LONG), GpuConfig(time_slice=TimeSliceInterval.SHORT)


def gpu(sharing=None, **more):
    return {"apiVersion": V, "kind": "GpuConfig"} | ({} if sharing is None else {"sharing": sharing}) | more


def mig(sharing=None):
    return {"apiVersion": V, "kind": "MigDeviceConfig"} | ({} if sharing is None else {"sharing": sharing})


def slicing(config):
    return gpu({"strategy": "TimeSlicing", "timeSlicingConfig": config})


def sourced(config: DeviceConfig, *requests: str, source=ConfigSource.CLAIM, index=0) -> SourcedConfig:
    return SourcedConfig(index=index, source=source, requests=requests, config=config)


@pytest.mark.parametrize(
    ("parameters", "config"),
    [
        (gpu(), GpuConfig()),
        (gpu(sharing=None) | {"sharing": None}, GpuConfig()),
        (gpu({"strategy": "TimeSlicing"}), GpuConfig(time_slice=TimeSliceInterval.DEFAULT)),
        (slicing({}), GpuConfig(time_slice=TimeSliceInterval.DEFAULT)),
        (slicing(None), GpuConfig(time_slice=TimeSliceInterval.DEFAULT)),
        (slicing({"interval": "Short"}), SHORT),
        (slicing({"interval": "Long"}), LONG),
        (mig(), MigDeviceConfig()),
        (mig({"strategy": "TimeSlicing"}), MigDeviceConfig()),
    ],
)
def test_a_config_decodes(parameters, config):
    assert decode_config(parameters) == config


@pytest.mark.parametrize(
    ("parameters", "path", "problem"),
    [
        ({}, "apiVersion", "must be resource.nvidia.com/v1beta1, not None"),
        (gpu(apiVersion="resource.nvidia.com/v1alpha1"), "apiVersion", "must be resource.nvidia.com/v1beta1"),
        ({"apiVersion": V}, "kind", "must be GpuConfig or MigDeviceConfig"),
        (gpu(kind="GPUConfig"), "kind", "not 'GPUConfig'"),
        (gpu(kind=["GpuConfig"]), "kind", "must be GpuConfig or MigDeviceConfig"),
        (gpu(kind="VfioDeviceConfig"), "kind", "VfioDeviceConfig is not supported"),
        (gpu(kind="ComputeDomainChannelConfig"), "kind", "ComputeDomains yet"),
        (gpu(kind="ComputeDomainDaemonConfig"), "kind", "ComputeDomains yet"),
        (gpu(colour="blue"), "colour", "unknown field"),
        (gpu("TimeSlicing"), "sharing", "must be an object, not 'TimeSlicing'"),
        (gpu({}), "sharing.strategy", "missing"),
        (gpu({"strategy": "Fair"}), "sharing.strategy", "must be 'TimeSlicing', not 'Fair'"),
        (gpu({"strategy": 1}), "sharing.strategy", "must be 'TimeSlicing', not 1"),
        (gpu({"strategy": "TimeSlicing", "weight": 2}), "sharing.weight", "unknown field"),
        (slicing([]), "sharing.timeSlicingConfig", "must be an object"),
        (slicing({"interval": "Forever"}), "sharing.timeSlicingConfig.interval", "'Medium' or 'Long', not 'Forever'"),
        (slicing({"interval": 2}), "sharing.timeSlicingConfig.interval", "not 2"),
        (slicing({"intervall": "Long"}), "sharing.timeSlicingConfig.intervall", "unknown field"),
        (gpu({"strategy": "MPS"}), "sharing.strategy", "MPS is not supported yet: use TimeSlicing"),
        (gpu({"strategy": "TimeSlicing", "mpsConfig": {}}), "sharing.mpsConfig", "MPS is not supported yet"),
        (mig({"strategy": "MPS"}), "sharing.strategy", "MPS is not supported yet"),
        (mig({"strategy": "TimeSlicing", "timeSlicingConfig": {}}), "sharing.timeSlicingConfig", "unknown field"),
    ],
)
def test_a_bad_config_is_refused_with_the_field(parameters, path, problem):
    with pytest.raises(DocumentError) as caught:
        decode_config(parameters)

    assert (caught.value.path, problem in caught.value.problem) == (path, True), str(caught.value)


def resolve(configs, result):
    return resolve_config(claim_with(), configs, result, whole="-mig-" not in result.device)


def claim_with(*parameters):
    return AllocatedClaim(
        ref=ClaimRef(namespace="ai", name="train", uid="uid-1"),
        pod_claim_name=None,
        results=(WHOLE,),
        configs=tuple(
            RawConfig(index=i, source=ConfigSource.CLASS, requests=("gpu",), parameters=p)
            for i, p in enumerate(parameters)
        ),
    )


def test_a_bad_config_names_its_owner_request_and_claim():
    expected = r"sharing\.strategy: .* \(opaque config of the DeviceClass for request gpu, claim ai/train \(uid-1\)\)"
    with pytest.raises(DocumentError, match=expected):
        decode_configs(claim_with(gpu({"strategy": "Fair"})))


def test_a_config_that_nothing_uses_must_decode_too():
    with pytest.raises(DocumentError):
        decode_configs(claim_with(gpu({"strategy": "Fair"}), gpu()))


def test_without_configs_the_default_of_the_kind_holds():
    assert (resolve((), WHOLE), resolve((), PARTITION)) == (GpuConfig(), MigDeviceConfig())


def test_a_claims_config_beats_a_later_one_of_the_class():
    configs = (sourced(LONG, index=0), sourced(SHORT, source=ConfigSource.CLASS, index=1))

    assert resolve(configs, WHOLE) == LONG


def test_the_later_of_one_source_wins():
    assert resolve((sourced(LONG, index=0), sourced(SHORT, index=1)), WHOLE) == SHORT


def test_a_config_for_another_request_is_left_alone():
    assert resolve((sourced(LONG, "other"),), WHOLE) == GpuConfig()


def test_a_config_for_a_request_covers_its_subrequests():
    subrequest = AllocatedResult(request="gpu/big", pool="node-1", device="gpu-0")

    assert resolve((sourced(LONG, "gpu"),), subrequest) == LONG


def test_a_config_for_one_subrequest_leaves_the_others_alone():
    subrequest = AllocatedResult(request="gpu/big", pool="node-1", device="gpu-0")

    assert resolve((sourced(LONG, "gpu/small"),), subrequest) == GpuConfig()


def test_a_config_for_all_requests_speaks_for_its_kind_only():
    assert resolve((sourced(LONG),), PARTITION) == MigDeviceConfig()


def test_a_config_of_the_wrong_kind_for_a_named_request_is_refused():
    with pytest.raises(ClaimRefused, match="config for request gpu is a GpuConfig, and this device takes a MigDevice"):
        resolve((sourced(LONG, "gpu"),), PARTITION)


@given(
    st.lists(
        st.builds(
            SourcedConfig,
            index=st.integers(0, 9),
            source=st.sampled_from(ConfigSource),
            requests=st.sampled_from([(), ("gpu",), ("other",)]),
            config=st.builds(GpuConfig, time_slice=st.none() | st.sampled_from(TimeSliceInterval)),
        ),
        unique_by=lambda one: one.index,
    ),
    st.randoms(),
)
def test_the_order_of_decoding_does_not_matter(configs, random):
    shuffled = random.sample(configs, len(configs))

    assert resolve(shuffled, WHOLE) == resolve(configs, WHOLE)


def test_intervals_carry_the_numbers_of_nvidia_smi():
    assert [interval.number for interval in TimeSliceInterval] == [0, 1, 2, 3]
