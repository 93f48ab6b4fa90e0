"""The GPU driver's libraries in a container of Debian's, which has none of its own, opened as programs open them.

NVIDIA's own toolkit describes a driver root of stand-ins over the simulator's NVML, and its hooks run in containerd;
then the same without it. `dlopen` is the judge each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from e2e.harness import container_image
from e2e.harness.cluster import Cluster
from e2e.harness.driver import list_cdi_files
from e2e.harness.driver_files import LIBRARIES, DriverInstallation
from e2e.harness.node import Node
from e2e.harness.pods import (
    Namespace,
    render_claim_spec,
    render_container,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb:mig,h100-80gb"
VERSION = "580.95.05"  # of the simulator's driver, unless its machine says otherwise
SONAMES = sorted(soname.format(version=VERSION) for soname in LIBRARIES.values())
OPEN = """
import ctypes, json, os, signal
def text(function):
    function.restype = ctypes.c_char_p
    return function().decode()
opened = {}
for name in NAMES:
    try:
        library = ctypes.CDLL(name)
        opened[name] = [text(library.stand_in_soname), text(library.stand_in_release)]
    except OSError as error:
        opened[name] = str(error)
cuda = ctypes.CDLL("libcuda.so.1")
nvml = ctypes.CDLL("libnvidia-ml.so.1")
print(json.dumps({"opened": opened, "compiles": cuda.stand_in_compiles(), "nvml": hasattr(nvml, "nvmlInit_v2")}))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.pause()
"""


@pytest.fixture(scope="module")
def root(cluster: Cluster, node: Node) -> Iterator[DriverInstallation]:
    cluster.import_image(container_image.build_image())
    installation = DriverInstallation(node.simulator.driver_root)
    yield installation
    installation.remove()
    installation.remove_toolkit()


@pytest.fixture
def installed(root: DriverInstallation) -> DriverInstallation:
    """Toolkit and driver, as on most GPU nodes."""
    root.install(VERSION)
    root.install_toolkit()
    return root


def restart_driver(node: Node, *arguments: str) -> None:
    """A process of the driver with these arguments, which looks at the driver's files from the start."""
    node.driver.stop()
    node.driver.arguments = arguments
    node.driver.start()


@pytest.fixture(scope="module", params=["toolkit", "mount"])
def way(node: Node, root: DriverInstallation, request: pytest.FixtureRequest) -> str:
    """Each of the two, with everything there that either needs."""
    root.install(VERSION)
    root.install_toolkit()
    restart_driver(node, f"--driver-libraries={request.param}")
    return str(request.param)


def render_opener(names: Sequence[str], *, claims: Sequence[str], **security: bool) -> Json:
    """A container of our image, the one with Python and without a shell, that opens libraries by these names."""
    script = f"NAMES = {list(names)!r}\n{OPEN}"
    return {
        **render_container("main", claims=claims),
        "image": container_image.REFERENCE,
        "command": ["/opt/tesela/bin/python3", "-c", script],
        "securityContext": security,
        "resources": {
            "requests": {"cpu": "5m", "memory": "32Mi"},
            "claims": [{"name": claim} for claim in claims],
        },
    }


def start_opener(
    work: Namespace, name: str, *, names: Sequence[str] = tuple(SONAMES), claims: int = 1, restart: bool = False,
    **security: bool,
) -> None:  # fmt: skip
    """A pod with so many claims of a partition each, in one container."""
    numbers = [f"gpu{number}" for number in range(claims)]
    work.apply(render_template(f"{name}-part", render_claim_spec([render_request("part", profile="1g.10gb")])))
    container = render_opener(names, claims=numbers, **security)
    pod = render_pod(name, templates=dict.fromkeys(numbers, f"{name}-part"), containers=[container])
    if restart:
        pod["spec"]["restartPolicy"] = "Always"
    work.apply(pod)
    work.wait_running(name)


def read_opened(work: Namespace, name: str) -> Json:
    """What the pod's container printed."""
    wait_until(f"pod {name} has opened its libraries", lambda: work.logs(name).strip(), timeout_s=30)
    return dict(json.loads(work.logs(name)))


def read_common_edits(node: Node) -> Json:
    """What the only claim's CDI file does to every container."""
    (path,) = list_cdi_files(node.cluster)
    return dict(json.loads(path.read_text())["containerEdits"])


def test_every_library_is_found_by_its_soname(way: str, work: Namespace) -> None:
    start_opener(work, "opener")

    assert read_opened(work, "opener") == {
        "opened": {name: [name, VERSION] for name in SONAMES},
        "compiles": 1,
        "nvml": True,
    }


def test_cuda_is_found_by_the_name_of_its_development_link(way: str, work: Namespace) -> None:
    start_opener(work, "linker", names=["libcuda.so"])

    assert read_opened(work, "linker")["opened"] == {"libcuda.so": ["libcuda.so.1", VERSION]}


def test_a_container_with_two_claims_starts(way: str, work: Namespace) -> None:
    """Each claim's CDI file mounts and links the same."""
    start_opener(work, "two", claims=2)

    assert read_opened(work, "two")["compiles"] == 1


def test_a_container_that_may_not_write_gets_them_too(way: str, work: Namespace) -> None:
    start_opener(work, "reader", readOnlyRootFilesystem=True)

    assert read_opened(work, "reader")["compiles"] == 1


def test_by_itself_the_driver_takes_what_the_toolkit_says(
    node: Node, installed: DriverInstallation, work: Namespace
) -> None:
    restart_driver(node)

    start_opener(work, "opener", names=["libcuda.so.1"])

    hooks = [hook["args"][1] for hook in read_common_edits(node)["hooks"]]
    assert hooks[:1] == ["create-symlinks"]


def test_without_the_toolkit_the_libraries_are_mounted_without_a_hook(
    node: Node, installed: DriverInstallation, work: Namespace
) -> None:
    installed.remove_toolkit()
    restart_driver(node)

    start_opener(work, "opener", names=["libcuda.so.1"])

    assert (read_opened(work, "opener")["compiles"], "hooks" in read_common_edits(node)) == (1, False)


def test_the_gpu_operators_toolkit_runs_with_the_drivers_root_as_its_own(
    node: Node, installed: DriverInstallation, work: Namespace
) -> None:
    """It is a script that names its program by the host's path, so it works under the host's root alone."""
    installed.wrap_toolkit(node.simulator.socket)
    restart_driver(node, "--driver-libraries=toolkit")

    start_opener(work, "opener", names=["libcuda.so.1"])

    paths = {hook["path"] for hook in read_common_edits(node)["hooks"]}
    assert (read_opened(work, "opener")["compiles"], paths) == (1, {str(installed.wrapped_hook)})


def test_a_container_that_starts_again_gets_the_libraries_that_replaced_those_of_before(
    node: Node, installed: DriverInstallation, work: Namespace
) -> None:
    restart_driver(node)
    start_opener(work, "stayer", names=["libcuda.so.1"], restart=True)
    before = read_opened(work, "stayer")["opened"]

    installed.install(VERSION, release="repaired")
    node.cluster.kill_container(work.get_container_id("stayer"))
    work.wait_restarted("stayer")

    after = partial(read_opened, work, "stayer")
    wait_until("the container opens the new library", lambda: after()["opened"] != before, timeout_s=60)
    assert after()["opened"] == {"libcuda.so.1": ["libcuda.so.1", "repaired"]}


def test_on_a_node_without_libraries_a_claim_has_its_device_nodes(
    node: Node, root: DriverInstallation, work: Namespace
) -> None:
    root.remove()
    root.remove_toolkit()
    restart_driver(node)

    work.apply(render_template("part", render_claim_spec([render_request("part", profile="1g.10gb")])))
    work.apply(render_pod("bare", templates={"gpu": "part"}))
    work.wait_running("bare")

    assert "mounts" not in read_common_edits(node)


def test_who_insists_on_the_toolkit_is_told_that_it_is_missing(
    node: Node, root: DriverInstallation, work: Namespace
) -> None:
    root.install(VERSION)
    root.remove_toolkit()
    restart_driver(node, "--driver-libraries=toolkit")

    work.apply(render_template("part", render_claim_spec([render_request("part", profile="1g.10gb")])))
    work.apply(render_pod("waiting", templates={"gpu": "part"}))

    assert work.wait_event("waiting", "FailedPrepareDynamicResources", "there is no nvidia-ctk in usr/bin")
