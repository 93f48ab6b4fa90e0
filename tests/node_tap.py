"""A tap on the node program's ports: it writes down every call, and kills the driver before or after a chosen one.

A death is an exception that no `except` of the program catches; locks end with it, as they do with a process. Files and
GPUs stay as they are.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from node_world import Ports

Phase: TypeAlias = Literal["before", "after"]

UNTAPPED = {
    "locks": "a lock ends with its process, and its file guards nothing by itself",
    "rosters": "only a look at the machine writes it, and a tap for looks is made with `looks`",
}
"""Ports whose calls are not the acts of a claim's life."""

PURE = {"path", "held"}
"""Methods that touch nothing."""


class Crash(BaseException):
    """The driver's process dies here."""


class Tap:
    """Calls as `port.method`, in order; `crash` arms the death."""

    def __init__(self, *, looks: bool = False) -> None:
        self._untapped = UNTAPPED.keys() - ({"rosters"} if looks else set())
        self.calls: list[str] = []
        self._at: tuple[int, Phase] | None = None
        self._guard = threading.Lock()

    def wrap(self, ports: Ports) -> Ports:
        """The ports with the tap in front."""
        return Ports(
            **{
                field.name: getattr(ports, field.name)
                if field.name in self._untapped
                else _Tapped(getattr(ports, field.name), field.name, self)
                for field in dataclasses.fields(ports)
            }
        )

    def crash(self, number: int, phase: Phase) -> None:
        """Die at the call with this number from now on."""
        self.calls.clear()
        self._at = (number, phase)

    def disarm(self) -> None:
        """Only write down from now on."""
        self.calls.clear()
        self._at = None

    def call(self, name: str, call: Callable[[], Any]) -> Any:
        with self._guard:  # a look calls from a thread per GPU
            number = len(self.calls)
            self.calls.append(name)
        self._die(number, "before", name)
        try:
            result = call()
        except Exception:
            self._die(number, "after", name)
            raise
        self._die(number, "after", name)
        return result

    def _die(self, number: int, phase: Phase, name: str) -> None:
        if self._at == (number, phase):
            self._at = None
            raise Crash(f"{phase} {name}")


class _Tapped:
    def __init__(self, inner: Any, port: str, tap: Tap) -> None:
        self._inner, self._port, self._tap = inner, port, tap

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in PURE or not callable(value):
            return value
        return lambda *args, **kwargs: self._tap.call(f"{self._port}.{name}", lambda: value(*args, **kwargs))
