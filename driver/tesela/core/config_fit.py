"""Which kinds of config can govern which requests: what a claim or class shows before anything is allocated.

`core.config.resolve_config` decides when a device is there. Here the device is any that a request's selectors let
through, and a problem is only what no such device can make good: it depends on no inventory. Selectors are read as far
as attributes go whose value follows from what a device is (core/slices/device.py): `type`, and `profile`, which whole
GPUs do not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from tesela.core.config import DeviceConfig, GpuConfig
from tesela.core.model import DRIVER_NAME
from tesela.core.selector import Attribute, AttributeKind, SelectorDevice, may_select


class ConfigKind(StrEnum):
    """A config's kind, which says what devices it is for."""

    WHOLE = "GpuConfig"
    PARTITION = "MigDeviceConfig"


_SKETCHES: Final[dict[ConfigKind, SelectorDevice]] = {
    ConfigKind.WHOLE: SelectorDevice(
        driver=DRIVER_NAME,
        attributes={
            "type": Attribute(AttributeKind.STRING, "gpu"),
            "profile": Attribute(AttributeKind.STRING, ""),
        },
        capacity={},
    ),
    ConfigKind.PARTITION: SelectorDevice(
        driver=DRIVER_NAME, attributes={"type": Attribute(AttributeKind.STRING, "mig")}, capacity={}
    ),
}
_WORDS: Final[dict[ConfigKind, str]] = {ConfigKind.WHOLE: "whole GPU", ConfigKind.PARTITION: "partition"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, or one alternative of a prioritized one; `name` is as configs and results write it."""

    name: str
    class_name: str
    selectors: tuple[str, ...] = ()

    @property
    def addresses(self) -> frozenset[str]:
        """What a config may name to speak of it."""
        return frozenset({self.name, self.name.split("/", 1)[0]})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedConfig:
    """A config of ours as it stands in a claim or class: `path` is its entry's, as `spec.devices.config[1]`."""

    path: str
    config: DeviceConfig
    requests: tuple[str, ...] = ()

    @property
    def kind(self) -> ConfigKind:
        """What devices it is for."""
        return ConfigKind.WHOLE if isinstance(self.config, GpuConfig) else ConfigKind.PARTITION


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is wrong for certain (`problems` begin with a field's path), and what is likely not meant (`warnings`)."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge_claim(asks: Iterable[Ask], configs: Sequence[PlacedConfig], classes: Mapping[str, tuple[str, ...]]) -> Fit:
    """The configs of a claim or template, in its order. `classes` are the selectors of the DeviceClasses there are.

    A class that is not there leaves nothing out.
    """
    offered = {ask: _list_kinds((*classes.get(ask.class_name, ()), *ask.selectors)) for ask in asks}
    problems: list[str] = []
    warnings: list[str] = []
    for ask, kinds in offered.items():
        refused = {kind: bad for kind in kinds if (bad := _find_refused(ask, kind, configs)) is not None}
        for kind, bad in refused.items():
            sentence = f"request {ask.name} (DeviceClass {ask.class_name})"
            if len(refused) == len(kinds):
                problems.append(_render_problem(bad, kind, f"{sentence} takes {_WORDS[kind]}s only"))
            else:
                warnings.append(f"{_at(bad)}: {sentence} may be given a {_WORDS[kind]}, which refuses {bad.kind}")
    warnings += [_render_idle(one) for one in configs if not _governs(one, offered)]
    return Fit(problems=tuple(dict.fromkeys(problems)), warnings=tuple(warnings))


def judge_class(selectors: tuple[str, ...], configs: Sequence[PlacedConfig]) -> Fit:
    """The configs of a DeviceClass: the last one speaks for every device that a claim is given through the class."""
    if not configs:
        return Fit()
    last, kinds = configs[-1], _list_kinds(selectors)
    if not kinds:
        return Fit(warnings=(f"{_at(last)}: governs nothing: the class selects no device of {DRIVER_NAME}",))
    if last.kind not in kinds:
        return Fit(problems=(_render_problem(last, kinds[0], f"the class selects {_WORDS[kinds[0]]}s only"),))
    others = [kind for kind in kinds if kind is not last.kind]
    return Fit(
        warnings=tuple(
            f"{_at(last)}: the class may give a {_WORDS[kind]}, which refuses {last.kind}" for kind in others
        )
    )


def _list_kinds(selectors: Iterable[str]) -> tuple[ConfigKind, ...]:
    texts = tuple(selectors)
    return tuple(kind for kind in _SKETCHES if all(_lets_through(text, kind) for text in texts))


@lru_cache(maxsize=512)
def _lets_through(text: str, kind: ConfigKind) -> bool:
    return may_select(text, _SKETCHES[kind])


def _find_refused(ask: Ask, kind: ConfigKind, configs: Sequence[PlacedConfig]) -> PlacedConfig | None:
    """The config that makes prepare refuse a device of `kind`: the last that names the request, if of another kind."""
    for one in reversed(configs):
        addressed = bool(ask.addresses & set(one.requests))
        if addressed and one.kind is not kind:
            return one
        if one.kind is kind and (addressed or not one.requests):
            return None
    return None


def _governs(config: PlacedConfig, offered: Mapping[Ask, tuple[ConfigKind, ...]]) -> bool:
    """Whether some request may be given a device that it speaks of; a config of the wrong kind is told elsewhere."""
    return any(
        bool(ask.addresses & set(config.requests)) if config.requests else config.kind in kinds
        for ask, kinds in offered.items()
        if kinds
    )


def _render_idle(config: PlacedConfig) -> str:
    if config.requests:
        names = ", ".join(config.requests)
        return f"{_at(config)}: governs nothing: request {names} takes no device of {DRIVER_NAME}"
    return f"{_at(config)}: governs nothing: no request here takes a {_WORDS[config.kind]}"


def _render_problem(config: PlacedConfig, kind: ConfigKind, why: str) -> str:
    return f"{_at(config)}: is {config.kind}, and {why}: make it {kind}, or change what it is for"


def _at(config: PlacedConfig) -> str:
    return f"{config.path}.opaque.parameters.kind"
