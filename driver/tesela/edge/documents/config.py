"""Opaque configs of `resource.nvidia.com/v1beta1`, decoded strictly: what we do not understand we do not ignore.

Field names, kinds and allowed values are those of NVIDIA's API, so that its manifests work unchanged. Kinds and fields
that Tesela does not serve are known by name, because "unknown field" is no answer to somebody who copied them from
NVIDIA's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tesela.core.claim import AllocatedClaim, ConfigSource, RawConfig
from tesela.core.config import DeviceConfig, GpuConfig, MigDeviceConfig, SourcedConfig, TimeSliceInterval
from tesela.core.errors import DocumentError

API_VERSION: Final = "resource.nvidia.com/v1beta1"

_UNSERVED_KINDS: Final = {
    "VfioDeviceConfig": "passing a GPU through to a virtual machine",
    "ComputeDomainChannelConfig": "ComputeDomains",
    "ComputeDomainDaemonConfig": "ComputeDomains",
}
_MPS: Final = (
    "MPS is not supported yet: use TimeSlicing, or ask for a MIG profile, which gives each workload its own memory"
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _TimeSlicing(_Strict):
    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class _GpuSharing(_Strict):
    strategy: Literal["TimeSlicing"]
    time_slicing: _TimeSlicing | None = Field(default=None, alias="timeSlicingConfig")


class _MigSharing(_Strict):
    strategy: Literal["TimeSlicing"]


class _GpuDocument(_Strict):
    api_version: str = Field(alias="apiVersion")
    kind: Literal["GpuConfig"]
    sharing: _GpuSharing | None = None


class _MigDocument(_Strict):
    api_version: str = Field(alias="apiVersion")
    kind: Literal["MigDeviceConfig"]
    sharing: _MigSharing | None = None


def decode_config(parameters: Mapping[str, Any]) -> DeviceConfig:
    """The config in an opaque `parameters` object. DocumentError names the field and what may stand there."""
    kind = _check_type(parameters)
    _refuse_mps(parameters.get("sharing"))
    try:
        if kind == "GpuConfig":
            return _render_gpu(_GpuDocument.model_validate(dict(parameters)))
        _MigDocument.model_validate(dict(parameters))
    except ValidationError as error:
        _refuse(error)
    return MigDeviceConfig()


def decode_configs(claim: AllocatedClaim) -> tuple[SourcedConfig, ...]:
    """Every config addressed to us, whether a result uses it or not.

    DocumentError names the field, the config it stands in and the claim; its `path` is the field alone.
    """
    return tuple(_decode_sourced(claim, raw) for raw in claim.configs)


def _decode_sourced(claim: AllocatedClaim, raw: RawConfig) -> SourcedConfig:
    try:
        config = decode_config(raw.parameters)
    except DocumentError as error:
        owner = "claim" if raw.source is ConfigSource.CLAIM else "DeviceClass"
        requests = f"request {', '.join(raw.requests)}" if raw.requests else "all requests"
        raise DocumentError(
            error.path,
            f"{error.problem} (opaque config of the {owner} for {requests}, claim {claim.ref}); correct it there and "
            "create the claim anew, an allocated one keeps its copy",
        ) from error
    return SourcedConfig(index=raw.index, source=raw.source, requests=raw.requests, config=config)


def _check_type(parameters: Mapping[str, Any]) -> str:
    version = parameters.get("apiVersion")
    if version != API_VERSION:
        raise DocumentError("apiVersion", f"must be {API_VERSION}, not {version!r:.80}")
    kind = parameters.get("kind")
    if isinstance(kind, str) and kind in {"GpuConfig", "MigDeviceConfig"}:
        return kind
    if isinstance(kind, str) and kind in _UNSERVED_KINDS:
        raise DocumentError("kind", f"{kind} is not supported: Tesela does not do {_UNSERVED_KINDS[kind]} yet")
    raise DocumentError("kind", f"must be GpuConfig or MigDeviceConfig, not {kind!r:.80}")


def _refuse_mps(sharing: object) -> None:
    if not isinstance(sharing, Mapping):
        return
    if sharing.get("strategy") == "MPS":
        raise DocumentError("sharing.strategy", _MPS)
    if sharing.get("mpsConfig") is not None:
        raise DocumentError("sharing.mpsConfig", _MPS)


def _render_gpu(document: _GpuDocument) -> GpuConfig:
    if document.sharing is None:
        return GpuConfig()
    slicing = document.sharing.time_slicing or _TimeSlicing()
    return GpuConfig(time_slice=TimeSliceInterval(slicing.interval or "Default"))


def _refuse(error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            problem = "unknown field: take it out, or look for a typing error"
        case "missing":
            problem = "missing"
        case "literal_error":
            problem = f"must be {first['ctx']['expected']}, not {first['input']!r:.80}"
        case "model_type":
            problem = f"must be an object, not {first['input']!r:.80}"
        case _:
            problem = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r:.80}"
    raise DocumentError(path, problem) from error
