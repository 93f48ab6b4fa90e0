"""The C library as an older driver ships it: without some symbols, without some struct versions, with older answers.

A symbol that is missing shows in the binding, before any call, so the simulator cannot act it out. Everything else goes
through to the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pynvml
from tesela.edge.nvml import codes


class OlderLibrary:
    """`library` without the symbols `missing`; calls of `refused` answer that code, `refused_once` the first time."""

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        missing=(),
        refused: Mapping[str, int] | None = None,
        refused_once: Mapping[str, int] | None = None,
        parent_in_info=False,
    ):
        self._library = library
        self._missing = frozenset(missing)
        self._refused = dict(refused or {})
        self._refused_once = dict(refused_once or {})
        self._parent_in_info = parent_in_info

    def __getattr__(self, name: str):
        if name in self._missing:
            raise AttributeError(name)
        if name in self._refused:
            return lambda *_arguments: self._refused[name]
        if name in self._refused_once:
            return lambda *arguments: self._answer_after_one_refusal(name, arguments)
        if name == "nvmlComputeInstanceGetInfo_v2" and self._parent_in_info:
            return self._get_info_with_parent
        return getattr(self._library, name)

    def _answer_after_one_refusal(self, name: str, arguments: tuple[object, ...]) -> int:
        # The binding keeps the function that it was given, so this one decides at each call.
        code = self._refused_once.pop(name, None)
        return getattr(self._library, name)(*arguments) if code is None else code

    def _get_info_with_parent(self, compute, info) -> int:
        """As nvml.h describes nvmlComputeInstanceInfo_t: the device is the parent."""
        code = self._library.nvmlComputeInstanceGetInfo_v2(compute, info)
        if code == codes.SUCCESS:
            parent = pynvml.c_nvmlDevice_t()
            code = self._library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(info._obj.device, ctypes.byref(parent))
            info._obj.device = parent
        return code


@contextmanager
def as_older(**differences) -> Iterator[None]:
    """What the binding has loaded is an older library, until the block ends."""
    before = pynvml.nvmlLib
    pynvml.nvmlLib = OlderLibrary(before, **differences)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
