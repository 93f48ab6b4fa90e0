"""A ResourceClaim of resource.k8s.io/v1 as the API gives it, read for what a node driver needs.

Fields we do not know are left alone, because the API server has validated the object and grows new ones. What we do
read has to be there and of its type: a claim that is half understood must not be half prepared.
"""

from __future__ import annotations

from typing import Final

from tesela.core.claim import AllocatedClaim, AllocatedResult, ConfigSource, RawConfig
from tesela.core.errors import ClaimRefused, DocumentError
from tesela.core.model import DRIVER_NAME, ClaimRef
from tesela.edge.documents.fields import ApiObject, get_field, get_field_or, list_field

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""On a claim made from a template: the pod's name for it."""


def decode_claim(claim: ApiObject) -> AllocatedClaim:
    """This driver's part of `claim`; other drivers' results and configs are skipped.

    ClaimRefused where the claim has no allocation; DocumentError, with the field's path, where it is no claim.
    """
    metadata = get_field(claim, "metadata", dict, at="")
    ref = ClaimRef(
        namespace=get_field(metadata, "namespace", str, at="metadata"),
        name=get_field(metadata, "name", str, at="metadata"),
        uid=get_field(metadata, "uid", str, at="metadata"),
    )
    annotations = get_field_or(metadata, "annotations", dict, {}, at="metadata")
    status = get_field_or(claim, "status", dict, {}, at="")
    allocation = get_field_or(status, "allocation", dict, None, at="status")
    if allocation is None:
        raise ClaimRefused(
            f"claim {ref} has no allocation: it was deallocated meanwhile; the kubelet asks again once the scheduler "
            "has placed its pod anew"
        )
    devices = get_field_or(allocation, "devices", dict, {}, at="status.allocation")
    return AllocatedClaim(
        ref=ref,
        pod_claim_name=annotations.get(POD_CLAIM_NAME) or None,
        results=_decode_results(devices, at="status.allocation.devices"),
        configs=_decode_configs(devices, at="status.allocation.devices"),
    )


def _decode_results(devices: ApiObject, *, at: str) -> tuple[AllocatedResult, ...]:
    results = []
    for index, result in enumerate(list_field(devices, "results", dict, at=at)):
        here = f"{at}.results[{index}]"
        if get_field(result, "driver", str, at=here) != DRIVER_NAME:
            continue
        results.append(
            AllocatedResult(
                request=get_field(result, "request", str, at=here),
                pool=get_field(result, "pool", str, at=here),
                device=get_field(result, "device", str, at=here),
                admin_access=get_field_or(result, "adminAccess", bool, False, at=here),
                share_id=get_field_or(result, "shareID", str, None, at=here),
            )
        )
    return tuple(results)


def _decode_configs(devices: ApiObject, *, at: str) -> tuple[RawConfig, ...]:
    configs = []
    for index, config in enumerate(list_field(devices, "config", dict, at=at)):
        here = f"{at}.config[{index}]"
        opaque = get_field_or(config, "opaque", dict, None, at=here)
        if opaque is None:
            raise DocumentError(
                f"{here}.opaque", "missing, and this release knows no other kind of config: upgrade the driver"
            )
        if get_field(opaque, "driver", str, at=f"{here}.opaque") != DRIVER_NAME:
            continue
        requests = list_field(config, "requests", str, at=here)
        configs.append(
            RawConfig(
                index=index,
                source=_decode_source(config, at=here),
                requests=tuple(requests),
                parameters=get_field(opaque, "parameters", dict, at=f"{here}.opaque"),
            )
        )
    return tuple(configs)


def _decode_source(config: ApiObject, *, at: str) -> ConfigSource:
    source = get_field(config, "source", str, at=at)
    try:
        return ConfigSource(source)
    except ValueError:
        known = " and ".join(ConfigSource)
        raise DocumentError(f"{at}.source", f"{source!r} is unknown: this release knows {known}") from None
