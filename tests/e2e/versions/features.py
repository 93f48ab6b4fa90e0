"""What of this driver each release of Kubernetes is tried for: a sentence, the gate that it hangs on, and the trial.

A trial returns what was seen instead, or the empty text where the feature works. It is over when `Scene.clear` has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from e2e.harness.build import HarnessError
from e2e.harness.driver import DRIVER, list_devices
from e2e.harness.tesela_command import find_tesela
from e2e.versions.plane import DOUBT_S, Scene, is_of_driver
from tesela.edge.kube.port import NAMESPACES, Json

_GATES: Final = ("DRADeviceTaints", "DRAExtendedResource", "DRAPartitionableDevices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Gates that an operator can open where a release has them off, and API versions that they need to be served."""

    gates: tuple[str, ...]
    served: tuple[str, ...] = ()


OPENED: Final[Mapping[str, Opened]] = {
    # Its scheduler follows DeviceTaintRules with DRADeviceTaints alone, and schedules nothing until it has listed them.
    "1.34": Opened(gates=_GATES, served=("resource.k8s.io/v1alpha3",)),
    "1.35": Opened(gates=_GATES),
}
"""By release; of the others, every gate that a feature hangs on is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One row of the table. `gate` is the one that it hangs on, where an older release has it off."""

    name: str
    says: str
    attempt: Callable[[Scene], str]
    gate: str = ""


def _ask(name: str, device_class: str, selector: str = "", **more: object) -> Json:
    exactly: Json = {"deviceClassName": device_class, **more}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def _of(name: str, value: str) -> str:
    return f'device.attributes["gpu.nvidia.com"].{name} == {value}'


def try_whole_gpu(scene: Scene) -> str:
    """Published, chosen by the scheduler, prepared."""
    scene.create_claim("whole", _ask("gpu", "gpu.nvidia.com"))
    return scene.schedule("whole", "whole") or scene.prepare("whole")


def try_partition(scene: Scene) -> str:
    """Two partitions of one GPU, which the counters keep apart."""
    selector = " && ".join([_of("profile", '"1g.10gb"'), _of("index", "0")])
    for name in ("part-1", "part-2"):
        scene.create_claim(name, _ask("gpu", "mig.nvidia.com", selector))
        if seen := scene.schedule(name, name) or scene.prepare(name):
            return seen
    return ""


def try_exclusion(scene: Scene) -> str:
    """No GPU is given whole while a partition of it is out, even where the API server knows no counters."""
    selector = _of("index", "0")
    scene.create_claim("first", _ask("gpu", "enterprise-nvidia-gpu", selector))
    if seen := scene.schedule("first", "first") or scene.prepare("first"):
        return seen
    scene.create_claim("second", _ask("gpu", "gpu.nvidia.com", selector))
    given = not scene.schedule("second", "second", patience_s=DOUBT_S)
    return "a GPU was given twice" if given else ""


def try_first_available(scene: Scene) -> str:
    """The second choice, where the first is nowhere."""
    choices = [
        {
            "name": "none",
            "deviceClassName": "gpu.nvidia.com",
            "selectors": [{"cel": {"expression": _of("index", "9")}}],
        },
        {"name": "any", "deviceClassName": "gpu.nvidia.com"},
    ]
    scene.create_claim("choice", {"name": "gpu", "firstAvailable": choices})
    return scene.schedule("choice", "choice") or scene.prepare("choice")


def try_admin_access(scene: Scene) -> str:
    """A monitor beside the claim that holds the GPU is not tried: the scheduler wants its counters, too."""
    namespace = scene.plane.kube.get(NAMESPACES, "default")
    namespace["metadata"].setdefault("labels", {})["resource.kubernetes.io/admin-access"] = "true"
    scene.plane.kube.replace(NAMESPACES, namespace)
    scene.create_claim("admin", _ask("gpu", "gpu.nvidia.com", adminAccess=True))
    return scene.schedule("admin", "admin") or scene.prepare("admin")


def try_extended_resource(scene: Scene) -> str:
    """`nvidia.com/gpu: 1` without a claim of the pod's own."""
    if seen := scene.schedule("plain", limits={"nvidia.com/gpu": "1"}):
        return seen
    claims = scene.find_claims_of("plain")
    return scene.prepare(claims[0]) if claims else "the scheduler made no claim for it"


def try_claim_status(scene: Scene) -> str:
    """status.devices, written with the rights of the driver's own pod."""
    scene.create_claim("told", _ask("gpu", "gpu.nvidia.com"))
    if seen := scene.schedule("told", "told") or scene.prepare("told"):
        return seen

    def is_told() -> bool:
        return any(map(is_of_driver, scene.get_claim("told").get("status", {}).get("devices", [])))

    return "" if scene.wait(is_told) else f"status.devices stays empty: {scene.find_complaint()}"


def try_own_slices_only(scene: Scene) -> str:
    """The admission policy on the token's node name."""
    pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
    metadata, spec = {"name": "another-node"}, {"driver": DRIVER, "nodeName": "other", "pool": pool, "devices": []}
    piece = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    said = scene.try_apply(piece, kubeconfig=scene.node.identity.kubeconfig)
    return "" if "may write only ResourceSlices of that node" in said else said or "another node's slice was written"


def try_config_policy(scene: Scene) -> str:
    """The admission policy on the configs of claims."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Magic"}}
    config = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    devices = {"requests": [_ask("gpu", "gpu.nvidia.com")], "config": [config]}
    metadata = {"name": "bad", "namespace": "default"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    said = scene.try_apply({**claim, "spec": {"devices": devices}})
    return "" if "spec.devices.config[0]" in said else said or "the claim was accepted"


def try_cordon(scene: Scene) -> str:
    """`tesela gpu cordon`, which writes DeviceTaintRules."""
    kubeconfig = f"--kubeconfig={scene.plane.certificates.path('admin.kubeconfig')}"
    try:
        scene.plane.run([find_tesela(), "gpu", "cordon", "gpu-1", "--node=node1", kubeconfig])
    except HarnessError as error:
        return str(error)
    scene.create_claim("cordoned", _ask("gpu", "gpu.nvidia.com", _of("index", "1")))
    given = not scene.schedule("cordoned", "cordoned", patience_s=DOUBT_S)
    scene.plane.run([find_tesela(), "gpu", "uncordon", "gpu-1", "--node=node1", kubeconfig])
    return "a cordoned GPU was given" if given else ""


def try_health(scene: Scene) -> str:
    """A GPU that fell ill is given to nobody: tainted, or left out where the API server knows no taints."""
    scene.ail(2)

    def is_fenced() -> bool:
        shown = list_devices(scene.plane).get("gpu-2")
        return shown is None or bool(shown.get("taints"))

    if not scene.wait(is_fenced):
        return "the slices show nothing of it"
    scene.create_claim("ill", _ask("gpu", "gpu.nvidia.com", _of("index", "2")))
    return "" if scene.schedule("ill", "ill", patience_s=DOUBT_S) else "a GPU that fell ill was given"


def try_taints(scene: Scene) -> str:
    """The same GPU, for a claim that tolerates it: only a taint leaves it that choice. After `try_health`."""
    tolerations = [{"operator": "Exists", "key": "gpu.nvidia.com/xid"}]
    scene.create_claim("bears", _ask("gpu", "gpu.nvidia.com", _of("index", "2"), tolerations=tolerations))
    return scene.schedule("bears", "bears") or scene.prepare("bears")


FEATURES: Final = (
    Feature(name="whole-gpu", says="whole GPUs", attempt=try_whole_gpu),
    Feature(
        name="partition",
        says="MIG partitions on demand, beside whole GPUs",
        attempt=try_partition,
        gate="DRAPartitionableDevices",
    ),
    Feature(name="exclusion", says="no GPU is given out twice", attempt=try_exclusion),
    Feature(name="first-available", says="`firstAvailable`", attempt=try_first_available),
    Feature(name="admin-access", says="admin access", attempt=try_admin_access),
    Feature(
        name="extended-resource",
        says="`nvidia.com/gpu` as an extended resource",
        attempt=try_extended_resource,
        gate="DRAExtendedResource",
    ),
    Feature(name="claim-status", says="claim status (`status.devices`)", attempt=try_claim_status),
    Feature(name="own-slices", says="a node writes only its own slices", attempt=try_own_slices_only),
    Feature(name="config-policy", says="bad configs refused at create time", attempt=try_config_policy),
    Feature(name="health", says="GPUs that fell ill are given to nobody", attempt=try_health),
    Feature(name="taints", says="taints that a claim may tolerate", attempt=try_taints, gate="DRADeviceTaints"),
    Feature(name="cordon", says="`tesela gpu cordon` and `drain`", attempt=try_cordon),
)
"""In this order: what makes a GPU ill comes after what needs all of them well."""
