"""Compares our definitions of the kubelet's protocols with the published ones of the Go module `k8s.io/kubelet`.

    python tests/e2e/compare_descriptors.py "$(go env GOMODCACHE)/k8s.io/kubelet@v0.37.2"

Both sides are compiled by the same protoc. What counts is what goes over the wire or names it: packages, messages,
fields (name, number, type, label, presence), oneofs, map entries, enums and their values, services, methods and their
streams. Options such as go_package, file names and comments do not count. Exit status: 0 equal, 1 different.
"""

from __future__ import annotations

import importlib.resources
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parents[2] / "proto"

PUBLISHED = {
    "pluginregistration/v1/api.proto": "pkg/apis/pluginregistration/v1/api.proto",
    "dra/v1/api.proto": "pkg/apis/dra/v1/api.proto",
    "dra/v1beta1/api.proto": "pkg/apis/dra/v1beta1/api.proto",
    "dra_health/v1/api.proto": "pkg/apis/dra-health/v1/api.proto",
    "podresources/v1/api.proto": "pkg/apis/podresources/v1/api.proto",
    "dra_health/v1alpha1/api.proto": "pkg/apis/dra-health/v1alpha1/api.proto",
}
"""Our definition, below `proto/`, and the published one, below the module's folder."""


def read_file_descriptor(root: Path, name: str) -> descriptor_pb2.FileDescriptorProto:
    """Compiles the one file `name` below `root`; raises ValueError where protoc refuses it."""
    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch, "set.binpb")
        include = importlib.resources.files("grpc_tools") / "_proto"
        if protoc.main(
            ["protoc", f"--proto_path={root}", f"--proto_path={include}", f"--descriptor_set_out={compiled}", name]
        ):
            raise ValueError(f"protoc does not take {root / name}; its reason stands above")
        return descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file[0]


def list_facts(file: descriptor_pb2.FileDescriptorProto) -> dict[str, str]:
    """Everything that must be equal, flat: a path such as `.v1.DeviceHealth.message` and what is there."""
    scope = f".{file.package}"
    facts = {"package": file.package, "syntax": file.syntax}
    for message in file.message_type:
        facts.update(_message_facts(scope, message))
    for enum in file.enum_type:
        facts.update(_enum_facts(scope, enum))
    for service in file.service:
        facts[f"{scope}.{service.name}"] = "service"
        for method in service.method:
            facts[f"{scope}.{service.name}/{method.name}"] = (
                f"rpc {'stream ' * method.client_streaming}{method.input_type} "
                f"returns {'stream ' * method.server_streaming}{method.output_type}"
            )
    return facts


def find_differences(ours: Mapping[str, str], published: Mapping[str, str]) -> Iterator[str]:
    """One line per fact that is not the same on both sides."""
    for path in sorted(ours.keys() | published.keys()):
        if ours.get(path) != published.get(path):
            yield f"{path}: ours {ours.get(path, 'missing')}, published {published.get(path, 'missing')}"


def compare_with_module(module: Path) -> list[str]:
    """Differences between `proto/` and the unpacked module, each line prefixed with our file's name."""
    return [
        f"{name}: {line}"
        for name, published in PUBLISHED.items()
        for line in find_differences(
            list_facts(read_file_descriptor(PROTO, name)), list_facts(read_file_descriptor(module, published))
        )
    ]


def _message_facts(scope: str, message: descriptor_pb2.DescriptorProto) -> dict[str, str]:
    path = f"{scope}.{message.name}"
    facts = {path: "map entry" if message.options.map_entry else "message"}
    for field in message.field:
        label, kind = field.Label.Name(field.label), field.type_name or field.Type.Name(field.type)
        oneof = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        presence = " with presence" if field.proto3_optional else ""
        default = f" = {field.default_value}" if field.default_value else ""
        facts[f"{path}.{field.name}"] = (
            f"{label} {kind} {field.number} json {field.json_name}{oneof}{presence}{default}"
        )
    for number in message.reserved_range:
        facts[f"{path}[{number.start}:{number.end}]"] = "reserved"
    for nested in message.nested_type:
        facts.update(_message_facts(path, nested))
    for enum in message.enum_type:
        facts.update(_enum_facts(path, enum))
    return facts


def _enum_facts(scope: str, enum: descriptor_pb2.EnumDescriptorProto) -> dict[str, str]:
    path = f"{scope}.{enum.name}"
    return {path: "enum", **{f"{path}.{value.name}": f"value {value.number}" for value in enum.value}}


def main(arguments: list[str]) -> int:
    """Prints differences."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("usage: compare_descriptors.py FOLDER_OF_MODULE_k8s.io/kubelet\n")
        return 2
    differences = compare_with_module(Path(arguments[0]))
    for line in differences:
        sys.stderr.write(f"{line}\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
