"""What somebody who has the driver's token might try: commands of kubectl, each of which has to be refused.

They are about things that are really there, so that none is refused for want of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tesela.edge.kube.port import Json

DRIVER, OTHER_DRIVER, OTHER_NODE = "gpu.nvidia.com", "net.example.com", "node2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """`command` is kubectl's; `obj` goes to its standard input. `{...}` in both is for the test to fill in."""

    what: str
    command: str
    obj: Json | None = None

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


def render_slice(name: str, node: str, driver: str, pool: str = "") -> Json:
    """A small slice of `node`, in a pool that nobody else has unless it is named."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or f"{driver}-{node}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


def _write_status(what: str, claim: str, **status: object) -> Attempt:
    """An attempt at the status of a claim, as the driver writes it: `kubectl patch` would read it first."""
    metadata = {"name": claim, "namespace": "{namespace}"}
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "status": status}
    return Attempt(what=what, command="apply --server-side --force-conflicts --subresource=status -f -", obj=obj)


def _render_devices(*drivers: str) -> list[Json]:
    return [{"driver": driver, "pool": OTHER_NODE, "device": "gpu-0", "data": {"uuid": "x"}} for driver in drivers]


_RESULT = {"request": "primary-rendering-core", "driver": DRIVER, "pool": "node1", "device": "gpu-2"}
_ALLOCATION = {"devices": {"results": [_RESULT]}}
_CONSUMER = {"resource": "pods", "name": "mine", "uid": "1"}
_CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "mine", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "mine", "namespace": "tesela"},
    "spec": {"containers": [{"name": "main", "image": "mine"}]},
}
_EVENT = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "mine", "namespace": "kube-system"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "mine",
    "reportingInstance": "mine",
    "action": "Mine",
    "reason": "Mine",
    "type": "Normal",
    "regarding": {"kind": "Namespace", "name": "kube-system", "namespace": "kube-system"},
}
_RULE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "mine"},
    "spec": {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "x/y", "effect": "NoExecute"}},
}
_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "mine"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "tesela-node-plugin", "namespace": "tesela"}],
}

SLICES = (
    Attempt(
        what="publish devices of another node",
        command="create -f -",
        obj=render_slice("mine", OTHER_NODE, DRIVER),
    ),
    Attempt(
        what="publish devices of another driver",
        command="create -f -",
        obj=render_slice("mine", "node1", OTHER_DRIVER),
    ),
    Attempt(
        what="publish devices here in another node's pool",
        command="create -f -",
        obj=render_slice("mine", "node1", DRIVER, pool=OTHER_NODE),
    ),
    Attempt(what="change another node's slice", command="replace -f -", obj=render_slice("others", OTHER_NODE, DRIVER)),
    Attempt(
        what="change another driver's slice on this node",
        command="replace -f -",
        obj=render_slice("neighbour", "node1", OTHER_DRIVER),
    ),
    Attempt(what="remove another node's slice", command="delete resourceslice others --wait=false"),
    Attempt(what="remove another driver's slice", command="delete resourceslice neighbour --wait=false"),
)
CLAIMS = (
    Attempt(what="list claims", command="get resourceclaims -A"),
    Attempt(what="make a claim", command="create -f -", obj=_CLAIM),
    Attempt(what="remove a claim", command="delete resourceclaim {claim} -n {namespace} --wait=false"),
    Attempt(what="change a claim", command="annotate resourceclaim {claim} -n {namespace} mine=1"),
    _write_status("allocate a claim anew", "{claim}", allocation=_ALLOCATION),
    _write_status("reserve a claim", "{claim}", reservedFor=[_CONSUMER]),
    _write_status("tell of another driver's device", "{claim}", devices=_render_devices(OTHER_DRIVER)),
    _write_status("tell of a claim on another node", "elsewhere", devices=_render_devices(DRIVER)),
)
REST = (
    Attempt(what="list secrets", command="get secrets -A"),
    Attempt(what="read a secret of its own namespace", command="get secret kept -n tesela"),
    Attempt(what="list pods", command="get pods -A"),
    Attempt(what="read its own pod", command="get pod {pod} -n tesela"),
    Attempt(what="make a pod", command="create -f -", obj=_POD),
    Attempt(what="enter a pod", command="exec -n tesela {pod} -- true"),
    Attempt(what="read a pod's log", command="logs -n tesela {pod}"),
    Attempt(what="read ConfigMaps", command="get configmaps -n tesela"),
    Attempt(what="change its own DaemonSet", command="rollout restart daemonset/tesela-node-plugin -n tesela"),
    Attempt(what="list nodes", command="get nodes"),
    Attempt(what="label its own node", command="label node node1 mine=1"),
    Attempt(what="taint its own node", command="taint node node1 mine=1:NoExecute"),
    Attempt(what="watch namespaces", command="get namespaces"),
    Attempt(what="change a DeviceClass", command="annotate deviceclass gpu.nvidia.com mine=1"),
    Attempt(what="taint devices by a rule", command="create -f -", obj=_RULE),
    Attempt(what="write an Event in another namespace", command="create -f -", obj=_EVENT),
    Attempt(what="ask for more tokens", command="create token tesela-node-plugin -n tesela"),
    Attempt(what="be somebody else", command="get nodes --as=system:admin"),
    Attempt(what="be cluster-admin", command="create -f -", obj=_BINDING),
    Attempt(
        what="lift the admission policy",
        command="delete validatingadmissionpolicybinding tesela-node-plugin-slices --wait=false",
    ),
)
ATTEMPTS = (*SLICES, *CLAIMS, *REST)
