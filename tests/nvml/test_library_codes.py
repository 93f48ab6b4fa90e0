"""Functions that nobody simulates, and the texts of return codes."""

import ctypes
import logging
from ctypes import c_void_p

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()


# Functions that nobody simulates


def test_stubs_are_not_found(nvml):
    nulls = [c_void_p()] * 6
    answers = {name: getattr(nvml, name)(*nulls) for name in lib.list_stubs()}
    assert {name: code for name, code in answers.items() if code != codes.FUNCTION_NOT_FOUND} == {}


def test_the_simulator_names_an_unknown_function_once(nvml, gpu, caplog):
    with caplog.at_level(logging.WARNING, logger="tesela"):
        seen = [lib.code_of(pynvml.nvmlDeviceGetRetiredPages, gpu, 0) for _ in range(2)]
    named = [record for record in caplog.messages if "called nvmlDeviceGetRetiredPages," in record]
    assert (set(seen), len(named)) == ({codes.FUNCTION_NOT_FOUND}, 1)


# Texts of the codes


def error_string(library: ctypes.CDLL, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library.nvmlErrorString(code).decode()


@pytest.mark.parametrize("code", sorted(codes.TEXTS))
def test_error_strings_of_the_port(code, library):
    assert error_string(library, code) == codes.TEXTS[code]


@pytest.mark.parametrize("code", range(codes.HIGHEST_RETURN_CODE + 1))
def test_every_code_has_a_text(code, library):
    assert error_string(library, code) not in {"", "Unknown Error"}


@pytest.mark.parametrize("code", [31, 998, 999, 1000, -1])
def test_other_codes_are_unknown(code, library):
    assert error_string(library, code) == "Unknown Error"
