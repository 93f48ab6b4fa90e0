"""The operator's policy file: what each GPU offers, and what its health means. YAML, read at start, decoded strictly.

    version: 1
    rules:
      - uuid: GPU-5b5e0a3c-2f8c-4f39-9d5c-0d6c2f3b7a11
        mode: static
      - number: 3            # gpu-3
        mode: ignore
      - product: "NVIDIA A100*"
        mode: onDemand
        allowedProfiles: [1g.5gb, 3g.20gb]

    health:
      effects: {unhealthy: NoExecute}
      signals:
        - signal: xid-94
          state: degraded
          threshold: 3

The first rule that matches a GPU decides; a GPU that no rule names gets `onDemand`. `rules` and `health` may be left
out. What a signal's entry leaves out stays as the table in `core/health/signals.py` has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tesela.core.errors import DocumentError, StartError
from tesela.core.health.model import Effect, Evidence, HealthState
from tesela.core.health.signals import DEFAULT_TABLE, Override, apply_overrides
from tesela.core.model import Shape
from tesela.core.shape import Policy, PolicyRule

VERSION: Final = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Rule(_Strict):
    mode: Literal["whole", "onDemand", "static", "ignore"]
    product: str | None = Field(default=None, min_length=1)
    uuid: str | None = Field(default=None, pattern=r"^GPU-[0-9A-Za-z-]+$")
    number: int | None = Field(default=None, ge=0)
    allowed_profiles: list[str] | None = Field(default=None, alias="allowedProfiles", min_length=1)

    @model_validator(mode="after")
    def _check(self) -> _Rule:
        if sum(given is not None for given in (self.product, self.uuid, self.number)) > 1:
            raise ValueError("give one of product, uuid and number, or none of them for every GPU")
        if self.allowed_profiles is not None and self.mode not in {"onDemand", "static"}:
            raise ValueError(
                f"allowedProfiles has no meaning with mode {self.mode}: remove it, or use onDemand or static"
            )
        return self


class _Signal(_Strict):
    signal: str = Field(min_length=1)
    state: Literal["healthy", "degraded", "unhealthy"] | None = None
    effect: Literal["None", "NoSchedule", "NoExecute"] | None = None
    threshold: int | None = Field(default=None, ge=1)
    recovery: Literal["reading", "reset", "boot", "person"] | None = None

    @model_validator(mode="after")
    def _check(self) -> _Signal:
        if all(one is None for one in (self.state, self.effect, self.threshold, self.recovery)):
            raise ValueError("nothing is changed: give state, effect, threshold or recovery, or remove the entry")
        return self


class _Effects(_Strict):
    degraded: Literal["None", "NoSchedule", "NoExecute"] | None = None
    unhealthy: Literal["None", "NoSchedule", "NoExecute"] | None = None
    gone: Literal["None", "NoSchedule", "NoExecute"] | None = None


class _Health(_Strict):
    effects: _Effects = _Effects()
    signals: list[_Signal] = []


class _Document(_Strict):
    version: int
    rules: list[_Rule] | None = None
    health: _Health | None = None


def read_policy(path: Path) -> Policy:
    """The policy in the file at `path`. StartError names the file, the field and what is wrong."""
    try:
        return decode_policy(path.read_bytes())
    except OSError as error:
        raise StartError(f"the policy file {path} cannot be read: {error.strerror}; check --policy") from error
    except DocumentError as error:
        raise StartError(f"the policy file {path}: {error}") from error


def decode_policy(text: str | bytes) -> Policy:
    """The policy in a YAML file. `DocumentError` names the field and says what is allowed there."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DocumentError("", f"this is no YAML: {_locate(error)}") from error
    if not isinstance(document, dict):
        raise DocumentError("", "a policy file is a map with the fields version, rules and health")
    version = document.get("version")
    if "version" in document and version != VERSION:
        raise DocumentError("version", f"this release reads version {VERSION}, not {version!r}")
    try:
        decoded = _Document.model_validate(document)
    except ValidationError as error:
        raise _explain(error) from error
    if decoded.rules is None and decoded.health is None:
        raise DocumentError("rules", "this field is required, unless health is given")
    health = decoded.health or _Health()
    overrides = [_plan_override(one) for one in health.signals]
    effects = {HealthState(state): Effect(effect) for state, effect in health.effects if effect is not None}
    return Policy(
        rules=tuple(_plan_rule(rule) for rule in decoded.rules or ()),
        health=apply_overrides(DEFAULT_TABLE, overrides, effects),
    )


def _plan_override(one: _Signal) -> Override:
    return Override(
        signal=one.signal,
        state=None if one.state is None else HealthState(one.state),
        effect=None if one.effect is None else Effect(one.effect),
        threshold=one.threshold,
        evidence=None if one.recovery is None else Evidence(one.recovery),
    )


def _plan_rule(rule: _Rule) -> PolicyRule:
    return PolicyRule(
        mode=Shape(rule.mode),
        product=rule.product,
        uuid=rule.uuid,
        number=rule.number,
        allowed_profiles=None if rule.allowed_profiles is None else tuple(rule.allowed_profiles),
    )


def _explain(error: ValidationError) -> DocumentError:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    match first["type"]:
        case "extra_forbidden":
            return DocumentError(path, "unknown field: check its spelling and remove it")
        case "missing":
            return DocumentError(path, "this field is required")
        case "value_error":
            return DocumentError(path, first["msg"].removeprefix("Value error, "))
        case _:
            return DocumentError(path, f"{first['msg']}; {first['input']!r} was given")


def _locate(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "unreadable"
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
