"""Messages of DRA v1 and v1beta1 into the core's types and back, and the rules that both directions share. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from tesela.core.model import ClaimRef, PreparedDevice, Refusal
from tesela.edge.kubelet.port import PrepareResult
from tesela.pb.dra.v1 import api_pb2 as v1
from tesela.pb.dra.v1beta1 import api_pb2 as v1beta1

MAX_ANSWER_S = 40.0
"""The kubelet waits 45 s for either call; its answer has to be there before that."""

_MARGIN_S = 5.0
_MARGIN_SHARE = 0.2
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ClaimMessage(Protocol):
    """The message Claim of any version."""

    namespace: str
    uid: str
    name: str


def plan_deadline(remaining_s: float) -> float:
    """Seconds in which a call's answer has to be ready, out of what the caller waits (infinite without a deadline)."""
    margin_s = min(_MARGIN_S, max(remaining_s, 0.0) * _MARGIN_SHARE)
    return min(MAX_ANSWER_S, max(remaining_s, 0.0) - margin_s)


def parse_claims(messages: Iterable[ClaimMessage]) -> tuple[tuple[ClaimRef, ...], dict[str, str]]:
    """The claims to serve, each UID once, and by UID a sentence for those whose UID cannot be one.

    State is kept in files named after UIDs, so a UID that is no plain file name goes no further than this.
    """
    claims: dict[str, ClaimRef] = {}
    malformed: dict[str, str] = {}
    for message in messages:
        claim = ClaimRef(namespace=message.namespace, name=message.name, uid=message.uid)
        if _FILE_NAME.fullmatch(claim.uid):
            claims[claim.uid] = claim
        else:
            malformed[claim.uid] = (
                f"claim {claim.namespace}/{claim.name}: its UID {claim.uid!r} is none that an API server makes; "
                "nothing was done"
            )
    return tuple(claims.values()), malformed


def render_prepared_v1(results: Mapping[str, PrepareResult]) -> v1.NodePrepareResourcesResponse:
    """One entry per claim UID."""
    return v1.NodePrepareResourcesResponse(
        claims={
            uid: v1.NodePrepareResourceResponse(error=render_error(result.message))
            if isinstance(result, Refusal)
            else v1.NodePrepareResourceResponse(devices=[_render_device_v1(device) for device in result])
            for uid, result in results.items()
        }
    )


def render_prepared_v1beta1(results: Mapping[str, PrepareResult]) -> v1beta1.NodePrepareResourcesResponse:
    """One entry per claim UID; this version has no place for a share's id."""
    return v1beta1.NodePrepareResourcesResponse(
        claims={
            uid: v1beta1.NodePrepareResourceResponse(error=render_error(result.message))
            if isinstance(result, Refusal)
            else v1beta1.NodePrepareResourceResponse(devices=[_render_device_v1beta1(device) for device in result])
            for uid, result in results.items()
        }
    )


def render_unprepared_v1(results: Mapping[str, str | None]) -> v1.NodeUnprepareResourcesResponse:
    """One entry per claim UID."""
    return v1.NodeUnprepareResourcesResponse(
        claims={uid: v1.NodeUnprepareResourceResponse(error=_optional_error(e)) for uid, e in results.items()}
    )


def render_unprepared_v1beta1(results: Mapping[str, str | None]) -> v1beta1.NodeUnprepareResourcesResponse:
    """One entry per claim UID."""
    return v1beta1.NodeUnprepareResourcesResponse(
        claims={uid: v1beta1.NodeUnprepareResourceResponse(error=_optional_error(e)) for uid, e in results.items()}
    )


def render_error(sentence: str) -> str:
    """A sentence that a message can carry: never empty, for that means success, and always valid UTF-8."""
    return (
        sentence.encode("utf-8", "backslashreplace").decode() or "failed, and no reason was given: see the driver's log"
    )


def parse_prepared(
    response: v1.NodePrepareResourcesResponse | v1beta1.NodePrepareResourcesResponse,
) -> dict[str, PrepareResult]:
    """The other direction, for whoever plays the kubelet."""
    return {
        uid: Refusal(message=answer.error)
        if answer.error
        else tuple(_parse_device(device) for device in answer.devices)
        for uid, answer in response.claims.items()
    }


def parse_unprepared(
    response: v1.NodeUnprepareResourcesResponse | v1beta1.NodeUnprepareResourcesResponse,
) -> dict[str, str | None]:
    """By claim UID: None for success, else the sentence."""
    return {uid: answer.error or None for uid, answer in response.claims.items()}


def _optional_error(sentence: str | None) -> str:
    return "" if sentence is None else render_error(sentence)


def _render_device_v1(device: PreparedDevice) -> v1.Device:
    return v1.Device(
        request_names=device.request_names,
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=device.cdi_device_ids,
        share_id=device.share_id,
    )


def _render_device_v1beta1(device: PreparedDevice) -> v1beta1.Device:
    return v1beta1.Device(
        request_names=device.request_names,
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=device.cdi_device_ids,
    )


def _parse_device(device: v1.Device | v1beta1.Device) -> PreparedDevice:
    share_id = device.share_id if isinstance(device, v1.Device) and device.HasField("share_id") else None
    return PreparedDevice(
        request_names=tuple(device.request_names),
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=share_id,
    )
