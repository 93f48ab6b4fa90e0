"""A ResourceClaim of resource.k8s.io/v1 as the API gives it, read for what a node driver needs.

Fields we do not know are left alone, because the API server has validated the object and grows new ones. What we do
read has to be there and of its type: a claim that is half understood must not be half prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

from tesela.core.claim import AllocatedClaim, AllocatedResult, ConfigSource, RawConfig
from tesela.core.errors import ClaimRefused, DocumentError
from tesela.core.model import DRIVER_NAME, ClaimRef

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""On a claim made from a template: the pod's name for it."""

_Object: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")


def decode_claim(claim: _Object) -> AllocatedClaim:
    """This driver's part of `claim`; other drivers' results and configs are skipped.

    ClaimRefused where the claim has no allocation; DocumentError, with the field's path, where it is no claim.
    """
    metadata = _get(claim, "metadata", dict, at="")
    ref = ClaimRef(
        namespace=_get(metadata, "namespace", str, at="metadata"),
        name=_get(metadata, "name", str, at="metadata"),
        uid=_get(metadata, "uid", str, at="metadata"),
    )
    annotations = _get_or(metadata, "annotations", dict, {}, at="metadata")
    status = _get_or(claim, "status", dict, {}, at="")
    allocation = _get_or(status, "allocation", dict, None, at="status")
    if allocation is None:
        raise ClaimRefused(
            f"claim {ref} has no allocation: it was deallocated meanwhile; the kubelet asks again once the scheduler "
            "has placed its pod anew"
        )
    devices = _get_or(allocation, "devices", dict, {}, at="status.allocation")
    return AllocatedClaim(
        ref=ref,
        pod_claim_name=annotations.get(POD_CLAIM_NAME) or None,
        results=_decode_results(devices, at="status.allocation.devices"),
        configs=_decode_configs(devices, at="status.allocation.devices"),
    )


def _decode_results(devices: _Object, *, at: str) -> tuple[AllocatedResult, ...]:
    results = []
    for index, result in enumerate(_get_or(devices, "results", list, [], at=at)):
        here = f"{at}.results[{index}]"
        _check(result, dict, here)
        if _get(result, "driver", str, at=here) != DRIVER_NAME:
            continue
        results.append(
            AllocatedResult(
                request=_get(result, "request", str, at=here),
                pool=_get(result, "pool", str, at=here),
                device=_get(result, "device", str, at=here),
                admin_access=_get_or(result, "adminAccess", bool, False, at=here),
                share_id=_get_or(result, "shareID", str, None, at=here),
            )
        )
    return tuple(results)


def _decode_configs(devices: _Object, *, at: str) -> tuple[RawConfig, ...]:
    configs = []
    for index, config in enumerate(_get_or(devices, "config", list, [], at=at)):
        here = f"{at}.config[{index}]"
        _check(config, dict, here)
        opaque = _get_or(config, "opaque", dict, None, at=here)
        if opaque is None:
            raise DocumentError(
                f"{here}.opaque", "missing, and this release knows no other kind of config: upgrade the driver"
            )
        if _get(opaque, "driver", str, at=f"{here}.opaque") != DRIVER_NAME:
            continue
        requests = _get_or(config, "requests", list, [], at=here)
        for number, request in enumerate(requests):
            _check(request, str, f"{here}.requests[{number}]")
        configs.append(
            RawConfig(
                index=index,
                source=_decode_source(config, at=here),
                requests=tuple(requests),
                parameters=_get(opaque, "parameters", dict, at=f"{here}.opaque"),
            )
        )
    return tuple(configs)


def _decode_source(config: _Object, *, at: str) -> ConfigSource:
    source = _get(config, "source", str, at=at)
    try:
        return ConfigSource(source)
    except ValueError:
        known = " and ".join(ConfigSource)
        raise DocumentError(f"{at}.source", f"{source!r} is unknown: this release knows {known}") from None


def _get(obj: _Object, field: str, kind: type[_T], *, at: str) -> _T:
    value = obj.get(field)
    if value is None:
        raise DocumentError(f"{at}.{field}" if at else field, "missing")
    return _check(value, kind, f"{at}.{field}" if at else field)


def _get_or(obj: _Object, field: str, kind: type[_T], default: Any, *, at: str) -> Any:
    value = obj.get(field)
    return default if value is None else _check(value, kind, f"{at}.{field}" if at else field)


def _check(value: object, kind: type[_T], path: str) -> _T:
    if not isinstance(value, kind):
        names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
        raise DocumentError(path, f"must be {names[kind]}, not {value!r:.80}")
    return value
