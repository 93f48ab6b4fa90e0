"""The definitions in `proto/`, the stubs made of them, and the comparison that e2e runs against the published ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from e2e.compare_descriptors import PROTO, PUBLISHED, find_differences, list_facts, read_file_descriptor
from packaging.requirements import Requirement
from packaging.version import Version
from tesela.pb.dra.v1 import api_pb2 as dra_v1
from tesela.pb.dra.v1beta1 import api_pb2 as dra_v1beta1
from tesela.pb.dra_health.v1 import api_pb2 as health_v1
from tesela.pb.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from tesela.pb.pluginregistration.v1 import api_pb2 as registration_v1

ROOT = PROTO.parent
STUBS = ROOT / "driver" / "tesela" / "pb"
MODULES = [registration_v1, dra_v1, dra_v1beta1, health_v1, health_v1alpha1]

PLANTED = {
    "another name": ("string pool_name = 2;", "string pool = 2;"),
    "another number": ("string device_name = 3;", "string device_name = 7;"),
    "another type": ("string error = 1;", "bytes error = 1;"),
    "another label": ("repeated string cdi_device_ids = 4;", "string cdi_device_ids = 4;"),
    "no presence": ("optional string share_id = 5;", "string share_id = 5;"),
    "another map value": ("map<string, NodePrepareResourceResponse>", "map<string, NodeUnprepareResourceResponse>"),
    "another method": ("rpc NodePrepareResources(", "rpc NodePrepareResource("),
    "a stream": ("returns (NodePrepareResourcesResponse)", "returns (stream NodePrepareResourcesResponse)"),
    "another service": ("service DRAPlugin", "service DRAPlugins"),
    "another package": ("package k8s.io.kubelet.pkg.apis.dra.v1;", "package k8s.io.kubelet.pkg.apis.dra.v2;"),
    "one field more": ("string error = 1;", "string error = 1; string more = 2;"),
    "one message more": ("message Claim {", "message More {} message Claim {"),
}


def differences_after(tmp_path, text):
    (tmp_path / "api.proto").write_text(text, encoding="utf-8")
    changed = list_facts(read_file_descriptor(tmp_path, "api.proto"))
    return list(find_differences(changed, list_facts(read_file_descriptor(PROTO, "dra/v1/api.proto"))))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(tmp_path, fault):
    original = (PROTO / "dra/v1/api.proto").read_text(encoding="utf-8")
    right, wrong = PLANTED[fault]
    assert right in original
    assert differences_after(tmp_path, original.replace(right, wrong))


def test_an_enum_value_that_changed_is_found(tmp_path):
    (tmp_path / "api.proto").write_text((PROTO / "dra_health/v1/api.proto").read_text().replace("Y = 2", "Y = 3"))
    ours = list_facts(read_file_descriptor(PROTO, "dra_health/v1/api.proto"))
    changed = list_facts(read_file_descriptor(tmp_path, "api.proto"))
    assert list(find_differences(changed, ours)) == [".v1.HealthStatus.UNHEALTHY: ours value 3, published value 2"]


def test_options_and_comments_do_not_count(tmp_path):
    original = (PROTO / "dra/v1/api.proto").read_text(encoding="utf-8")
    assert differences_after(tmp_path, f'{original}\n// words\noption go_package = "example.com/api";\n') == []


def test_every_definition_is_compared():
    assert {path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto")} == PUBLISHED.keys()


@pytest.mark.parametrize(
    ("module", "methods"),
    [
        (registration_v1, {"pluginregistration.Registration": ["GetInfo", "NotifyRegistrationStatus"]}),
        (dra_v1, {"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]}),
        (
            dra_v1beta1,
            {"k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]},
        ),
        (health_v1, {"v1.DRAResourceHealth": ["NodeWatchResources"]}),
        (health_v1alpha1, {"v1alpha1.DRAResourceHealth": ["NodeWatchResources"]}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_methods_have_the_names_that_the_kubelet_calls(module, methods):
    services = module.DESCRIPTOR.services_by_name.values()
    assert {one.full_name: [method.name for method in one.methods] for one in services} == methods


def test_each_stub_has_a_file_name_of_its_own_in_the_descriptor_pool():
    names = [module.DESCRIPTOR.name for module in MODULES]
    assert len(set(names)) == len(names)
    assert all(name.startswith("tesela/pb/") for name in names)


def lower_bound(distribution):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [r for r in map(Requirement, project["dependencies"]) if r.name == distribution]
    return min(Version(one.version) for one in requirement.specifier if one.operator == ">=")


def generated_with(pattern, glob):
    return {Version(re.search(pattern, path.read_text(encoding="utf-8")).group(1)) for path in Path(STUBS).rglob(glob)}


def test_the_allowed_grpcio_is_what_the_stubs_take():
    assert generated_with(r"GRPC_GENERATED_VERSION = '(.+)'", "*_pb2_grpc.py") == {lower_bound("grpcio")}


def test_the_allowed_protobuf_is_what_the_stubs_take():
    assert generated_with(r"Protobuf Python Version: (\S+)", "*_pb2.py") == {lower_bound("protobuf")}
