"""The part of kube-controller-manager that devices need: makes claims from templates, frees and deletes them after use.

Rules: pkg/controller/resourceclaim of Kubernetes 1.37. Deciding on devices is the scheduler's.
"""

from __future__ import annotations

from tesela.core.errors import ApiNotFound
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.loop import Loop, change_status, with_condition, without_condition
from tesela.edge.embedded.pod_claims import FINALIZER, POD_CLAIM_ANNOTATION, claim_names, is_finished, is_owned_by
from tesela.edge.kube.port import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Json

PERIOD_S = 1.0
MAX_BASE_NAME = 57
FAILED_CREATION = "FailedResourceClaimCreation"


class ClaimController:
    """Runs from `start` to `close`; `sync` is one look at everything, for tests that want no thread."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._loop = Loop("claim-controller", cluster, self.sync, PERIOD_S)

    def start(self) -> None:
        """Starts looking."""
        self._loop.start()

    def close(self) -> None:
        """Stops, bounded; raises what it failed with."""
        self._loop.close()

    def sync(self) -> None:
        """Creates missing claims, then frees and deletes those whose pods are done."""
        # Claims first: whoever has one reserved by now is among the pods of a later look, or has gone.
        claims, pods = self._cluster.peek(RESOURCE_CLAIMS), self._cluster.peek(PODS)
        for pod in pods:
            if not is_finished(pod) and not pod["metadata"].get("deletionTimestamp"):
                self._create_missing(pod)
        users = {pod["metadata"]["uid"] for pod in pods if not is_finished(pod)}
        finished = [pod for pod in pods if is_finished(pod)]
        for claim in claims:
            self._free(claim, users)
            if any(is_owned_by(claim, pod) for pod in finished) and not claim["metadata"].get("deletionTimestamp"):
                self._delete(claim)

    def _create_missing(self, pod: Json) -> None:
        made = {entry["name"] for entry in pod["status"].get("resourceClaimStatuses", [])}
        templates = {
            entry["name"]: entry.get("resourceClaimTemplateName") for entry in pod["spec"].get("resourceClaims", [])
        }
        for pod_claim_name, _, from_template in claim_names(pod):
            if not from_template or pod_claim_name in made:
                continue
            claim = self._find_made(pod, pod_claim_name) or self._create(pod, pod_claim_name, templates[pod_claim_name])
            if claim is not None:
                self._record(pod, pod_claim_name, claim["metadata"]["name"])

    def _find_made(self, pod: Json, pod_claim_name: str) -> Json | None:
        """A claim made for the pod whose name was not recorded: the controller ended between the two writes."""
        for claim in self._cluster.peek(RESOURCE_CLAIMS):
            annotations = claim["metadata"].get("annotations", {})
            if is_owned_by(claim, pod) and annotations.get(POD_CLAIM_ANNOTATION) == pod_claim_name:
                return claim
        return None

    def _create(self, pod: Json, pod_claim_name: str, template_name: str) -> Json | None:
        metadata = pod["metadata"]
        try:
            template = self._cluster.get(RESOURCE_CLAIM_TEMPLATES, template_name, metadata["namespace"])
        except ApiNotFound as error:
            self._refuse(pod, f"PodResourceClaim {pod_claim_name}: {error.message}")
            return None
        given = template["spec"].get("metadata", {})
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        claim = {
            "metadata": {
                "namespace": metadata["namespace"],
                "generateName": f"{metadata['name']}-{pod_claim_name}"[:MAX_BASE_NAME] + "-",
                "labels": given.get("labels", {}),
                "annotations": {**given.get("annotations", {}), POD_CLAIM_ANNOTATION: pod_claim_name},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": template["spec"]["spec"],
        }
        return self._cluster.create(RESOURCE_CLAIMS, claim)

    def _record(self, pod: Json, pod_claim_name: str, claim_name: str) -> None:
        def change(newest: Json) -> Json:
            status = without_condition(newest["status"], FAILED_CREATION)
            known = [entry for entry in status.get("resourceClaimStatuses", []) if entry["name"] != pod_claim_name]
            entry = {"name": pod_claim_name, "resourceClaimName": claim_name}
            return {**status, "resourceClaimStatuses": [*known, entry]}

        change_status(self._cluster, PODS, pod, change)

    def _refuse(self, pod: Json, message: str) -> None:
        """The real controller's event of that name, as a condition: the embedded cluster has no events."""
        now = self._cluster.timestamp()

        def change(newest: Json) -> Json:
            return with_condition(newest["status"], FAILED_CREATION, "True", FAILED_CREATION, message, now)

        change_status(self._cluster, PODS, pod, change)

    def _free(self, claim: Json, users: set[str]) -> None:
        """Takes finished pods out of the reservations; the last one out frees the devices."""
        reserved = claim["status"].get("reservedFor", [])
        kept = [entry for entry in reserved if entry["resource"] != "pods" or entry["uid"] in users]
        if len(kept) < len(reserved):
            status = {key: value for key, value in claim["status"].items() if key != "reservedFor"}
            if kept:
                status["reservedFor"] = kept
            else:
                status = {}
            claim = self._cluster.replace_status(RESOURCE_CLAIMS, {**claim, "status": status})
        metadata = claim["metadata"]
        # not a claim that just has the finalizer: the scheduler sets it before the allocation
        is_done = len(kept) < len(reserved) or metadata.get("deletionTimestamp")
        if is_done and "allocation" not in claim["status"] and FINALIZER in metadata.get("finalizers", []):
            left = [name for name in metadata["finalizers"] if name != FINALIZER]
            self._cluster.replace(RESOURCE_CLAIMS, {**claim, "metadata": {**metadata, "finalizers": left}})

    def _delete(self, claim: Json) -> None:
        metadata = claim["metadata"]
        try:
            self._cluster.delete(RESOURCE_CLAIMS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except ApiNotFound:
            return
