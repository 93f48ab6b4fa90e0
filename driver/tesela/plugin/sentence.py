"""Errors from below know files, ports and locks; on their way up they learn whose claim and which device they are of.

A sentence that names its device already is left as it is. Nothing is decided here and nothing is swallowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tesela.core.errors import ClaimRefused, DocumentError, StateError, TeselaError, TryAgain
from tesela.core.model import ClaimRef

_MOST_DEVICES = 4


@contextmanager
def naming(ref: ClaimRef, devices: Iterable[str]) -> Iterator[None]:
    """Errors that leave the block name the claim and a device of it: all of them where the error could be any's.

    A refusal stays one, and so does what another attempt may cure; a malformed document is a refusal here.
    """
    devices = tuple(dict.fromkeys(devices))
    try:
        yield
    except TeselaError as error:
        text = str(error)
        if not devices or any(f"device {device}: " in text for device in devices):
            raise
        raise _error_like(error)(f"{_render_head(ref, devices)}: {_strip_claim(ref, text)}") from error


def _error_like(error: TeselaError) -> type[ClaimRefused | StateError | TryAgain]:
    if isinstance(error, ClaimRefused | DocumentError):
        return ClaimRefused
    return StateError if isinstance(error, StateError) else TryAgain


def _render_head(ref: ClaimRef, devices: tuple[str, ...]) -> str:
    named = ", ".join(devices[:_MOST_DEVICES])
    more = f" and {len(devices) - _MOST_DEVICES} more" if len(devices) > _MOST_DEVICES else ""
    return f"claim {ref.namespace}/{ref.name}: device {named}{more}"


def _strip_claim(ref: ClaimRef, text: str) -> str:
    return text.removeprefix(f"claim {ref}: ").removeprefix(f"claim {ref.namespace}/{ref.name}: ")
