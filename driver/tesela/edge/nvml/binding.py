"""Calls through the module `pynvml` of nvidia-ml-py, with the binding's errors turned into the port's.

Used by `native` and its parts only. What the calls mean does not belong here.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path
from typing import Any, Final

import pynvml

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS

NO_INSTANCE: Final = 0xFFFFFFFF
"""NVML's id of no GPU or compute instance."""
NO_SUCH_VERSION: Final = frozenset({codes.FUNCTION_NOT_FOUND, codes.ARGUMENT_VERSION_MISMATCH})
"""How a library says that it has not the version of a function or struct that is asked of it."""
_LOWEST: Final = -(2**31)
_HIGHEST: Final = 2**31 - 1
"""What every parameter holds that is passed as a bare number: NVML has signed enums and small unsigned ids."""


def load_library(find: Callable[[], Path]) -> None:
    """Have the binding use the file that `find` names, from its first call in this process on. NvmlError: it cannot.

    The binding asks for the library by its bare name, and the dynamic linker answers with one of that SONAME that is
    loaded already (dlopen(3)). Once the binding has it there is no other: a second file would be loaded for nothing.
    """
    if pynvml.nvmlLib is not None:
        return
    path = find()
    try:
        CDLL(str(path))
    except OSError as error:
        raise NvmlError(codes.LIBRARY_NOT_FOUND, FUNCTIONS["init"], f"{path} cannot be loaded: {error}") from error


def instance_id(value: Any) -> int | None:
    """An instance id as the port has it: None where NVML, or the binding, names none."""
    return None if value is None or int(value) == NO_INSTANCE else int(value)


def checked(function: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call` returns. NvmlError: NVML's own code, in NVML's words; INVALID_ARGUMENT for a number NVML cannot have.

    `function` is what errors name: the port's name or NVML's.
    The binding declares no argument types, so that ctypes would cut a longer number down to one that means another
    instance.
    """
    name = FUNCTIONS.get(function, function)
    if any(isinstance(argument, int) and not _LOWEST <= argument <= _HIGHEST for argument in arguments):
        raise NvmlError(codes.INVALID_ARGUMENT, name, codes.TEXTS[codes.INVALID_ARGUMENT])
    try:
        return call(*arguments)
    except pynvml.NVMLLibraryMismatchError as error:
        # The binding's way to say that this driver lacks the function's version.
        raise NvmlError(codes.FUNCTION_NOT_FOUND, name, str(error)) from error
    except pynvml.NVMLError as error:
        # Not str(error): for codes the binding does not know it calls the library, which may be gone.
        code = int(error.value)
        raise NvmlError(code, name, codes.TEXTS.get(code, f"NVML code {code}")) from None


def with_version(query: Callable[[int], Any]) -> Any:
    """The v2 struct, or v1 where the library has no v2 call or does not know its version word."""
    try:
        return query(2)
    except NvmlError as error:
        if error.code not in NO_SUCH_VERSION:
            raise
        return query(1)
