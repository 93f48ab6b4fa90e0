"""The container image of this checkout's Dockerfile: what is in it, and that it runs with a read-only root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.container_image import REFERENCE, build_image
from e2e.harness.pods import Namespace
from packaging.utils import canonicalize_name
from tesela.edge.kube.port import Json

from image import archive
from image.build import get_architecture
from image.inside.trim import UNUSED_DISTRIBUTIONS
from image.lockfile import read_lock

MOST_BYTES_TO_PULL = 60 << 20
LOAD_EVERYTHING = """
import ctypes, importlib, pkgutil, tesela
for name in [module.name for module in pkgutil.walk_packages(tesela.__path__, "tesela.")]:
    importlib.import_module(name)
import opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.trace
# what libraries and programs of the host's NVIDIA driver are linked with
for name in "libc.so.6 libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1 libstdc++.so.6 libgcc_s.so.1".split():
    ctypes.CDLL(name)
print("all loaded")
"""
WRITE_EVERYWHERE = """
import os
written = []
for folder, folders, _ in os.walk("/"):
    folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
    try:
        open(os.path.join(folder, "mark"), "w")
        written.append(folder)
    except OSError:
        pass
print(written)
"""


@pytest.fixture(scope="module")
def written() -> Path:
    """The archive."""
    return build_image()


@pytest.fixture(scope="module")
def files(written: Path) -> set[str]:
    """The names of all files in it."""
    return archive.list_files(written)


@pytest.fixture(scope="module")
def parts(written: Path) -> list[dict[str, Any]]:
    """What its own list says to be in it."""
    components: list[dict[str, Any]] = json.loads(archive.read_file(written, archive.SBOM))["components"]
    return components


@pytest.fixture(scope="module")
def imported(cluster: Cluster, written: Path) -> str:
    """The image's name, as manifests have it, on the node."""
    cluster.import_image(written)
    return REFERENCE


def render_pod(name: str, image: str, **container: Any) -> Json:
    """Runs once, with a read-only root and a /tmp."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "securityContext": {"readOnlyRootFilesystem": True},
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    **container,
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def test_the_demo_runs_in_it(namespace: Namespace, imported: str) -> None:
    namespace.apply(render_pod("demo", imported, args=["demo"]))

    namespace.wait_succeeded("demo")

    assert "all 200 devices are free" in namespace.logs("demo")


def test_every_module_of_the_driver_loads_in_it(namespace: Namespace, imported: str) -> None:
    namespace.apply(render_pod("load", imported, command=["python3", "-c", LOAD_EVERYTHING]))

    namespace.wait_succeeded("load")

    assert namespace.logs("load") == "all loaded\n"


def test_nothing_in_it_can_be_written_to(namespace: Namespace, imported: str) -> None:
    namespace.apply(render_pod("write", imported, command=["python3", "-c", WRITE_EVERYWHERE]))

    namespace.wait_succeeded("write")

    assert namespace.logs("write") == "[]\n"


def test_no_shell_compiler_or_installer_is_in_it(files: set[str]) -> None:
    programs = {name.rsplit("/", 1)[-1] for name in files if "/bin/" in f"/{name}" or "/sbin/" in f"/{name}"}

    assert programs - {"python", "python3", "python3.11", "tesela"} == set()


def test_no_python_package_manager_is_in_it(files: set[str]) -> None:
    assert [name for name in files if "site-packages/pip" in name or "ensurepip" in name or "setuptools" in name] == []


def test_byte_code_lies_beside_every_module(files: set[str]) -> None:
    packages = "opt/tesela/lib/python3.11/site-packages/"
    modules = [Path(name) for name in files if name.startswith(packages) and name.endswith(".py")]
    missing = [str(path) for path in modules if f"{path.parent}/__pycache__/{path.stem}.cpython-311.pyc" not in files]

    assert missing == []


def test_its_list_has_the_python_distributions_of_the_lock(parts: list[dict[str, Any]]) -> None:
    listed = {part["name"]: part["hashes"][0]["content"] for part in parts if part["purl"].startswith("pkg:pypi/")}
    unused = {canonicalize_name(name) for name in UNUSED_DISTRIBUTIONS}
    wheels = [wheel for wheel in read_lock(get_architecture()) if canonicalize_name(wheel.name) not in unused]

    assert {name: digest for name, digest in listed.items() if name != "tesela"} == {
        wheel.name: wheel.sha256 for wheel in wheels
    }


def test_its_list_has_the_debian_packages_that_scanners_see(parts: list[dict[str, Any]], files: set[str]) -> None:
    status = "var/lib/dpkg/status.d/"

    assert {part["name"] for part in parts if part["purl"].startswith("pkg:deb/")} == {
        name.removeprefix(status) for name in files if name.startswith(status)
    }


def test_the_terms_of_each_debian_package_lie_in_it(parts: list[dict[str, Any]], files: set[str]) -> None:
    packages = [part["name"] for part in parts if part["purl"].startswith("pkg:deb/")]

    assert [name for name in packages if f"usr/share/doc/{name}/copyright" not in files] == []


def test_every_part_of_its_list_has_a_licence(parts: list[dict[str, Any]]) -> None:
    assert [part["name"] for part in parts if not part.get("licenses")] == []


def test_it_stays_small(written: Path) -> None:
    assert archive.read_facts(written).compressed_bytes < MOST_BYTES_TO_PULL
