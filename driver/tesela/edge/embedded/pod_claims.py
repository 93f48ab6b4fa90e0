"""Which ResourceClaims a pod has, and whether it still needs them: facts shared by controller, scheduler and kubelet.

Rules: k8s.io/dynamic-resource-allocation/resourceclaim and the resource claim controller of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator

from tesela.edge.kube.port import Json

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"


def is_finished(pod: Json) -> bool:
    """Whether all containers ended for good; the kubelet says so only after it unprepared the claims."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def claim_names(pod: Json) -> Iterator[tuple[str, str | None, bool]]:
    """(the pod's name for it, the ResourceClaim's name, whether it is from a template) for each claim of the pod.

    The name is None while the claim of a template was not created yet.
    """
    made = {entry["name"]: entry.get("resourceClaimName") for entry in pod["status"].get("resourceClaimStatuses", [])}
    for entry in pod["spec"].get("resourceClaims", []):
        from_template = "resourceClaimTemplateName" in entry
        yield entry["name"], made.get(entry["name"]) if from_template else entry["resourceClaimName"], from_template


def is_owned_by(claim: Json, pod: Json) -> bool:
    """Whether the claim was made for this pod."""
    owners = claim["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == pod["metadata"]["uid"] for owner in owners)


def is_reserved_for(claim: Json, pod: Json) -> bool:
    """Whether the pod may use the claim."""
    reserved = claim.get("status", {}).get("reservedFor", [])
    return any(entry["uid"] == pod["metadata"]["uid"] for entry in reserved)


def reservation(pod: Json) -> Json:
    """The entry of `status.reservedFor` for a pod."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
