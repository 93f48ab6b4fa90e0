"""What the C library's sources declare and send, read from them as the preprocessor leaves them.

Every exported function is declared with EXPORT before it is defined, and what it sends by name stands as a text in its
call; `unknown.c`, whose functions have no shape, is left out.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache

from nvml.library import ROOT
from nvml.needs import COMPILER

FOLDER = ROOT / "nvml-sim"
_EXPORTED = re.compile(r'__attribute__\(\(visibility\("default"\)\)\) ([^;]*);')
_NAMED_CALL = re.compile(r'\b(\w+)\((?:&call, )?"(nvml\w+)"([^;]*);')
_ARGUMENTS = re.compile(r"\(\(struct arguments\)\{(?:0|\.count = \((\d+)\).*?|(\.text = .*?))\}\)")
_SENT = re.compile(r"named_send\(&call, ")
_RESULTS = re.compile(r", (\d+)\)*\s*$")


@dataclass(frozen=True, slots=True)
class Sent:
    """A call by name: how many numbers go out, whether a text does, and what comes back.

    `results`: how many numbers; "text"; None where the function makes it out of the answer itself.
    """

    function: str
    numbers: int
    takes_text: bool
    results: int | str | None


@cache
def preprocessed() -> str:
    files = sorted(str(file) for file in FOLDER.glob("*.c") if file.name != "unknown.c")
    command = [COMPILER, "-E", "-P", "-std=c11", "-D_GNU_SOURCE", *files]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def list_prototypes() -> dict[str, str]:
    """Each exported function's declaration, without the semicolon."""
    declared = [" ".join(found.split()) for found in _EXPORTED.findall(preprocessed())]
    return {name_of(declaration): declaration for declaration in declared}


def name_of(declaration: str) -> str:
    return re.search(r"(\w+)\(", declaration)[1]


@cache
def list_sent() -> tuple[Sent, ...]:
    return tuple(_read_call(found) for found in _NAMED_CALL.finditer(preprocessed()))


def _read_call(call: re.Match[str]) -> Sent:
    caller, function, rest = call.groups()
    arguments = _ARGUMENTS.search(rest)
    if arguments is None:
        # They stand where it is sent: further down in the same function, or in the one that the name is passed to.
        begin = call.end() if caller == "named_begin" else _definition_of(caller)
        arguments = _ARGUMENTS.match(preprocessed(), _SENT.search(preprocessed(), begin).end())
    takes_text = arguments[2] is not None
    if not caller.startswith("named_"):
        body = preprocessed()[_definition_of(caller) :]
        takes_text |= "arguments.text = " in body[: body.index("\n}")]
    return Sent(function, int(arguments[1] or 0), takes_text, _results_of(caller, rest))


def _definition_of(function: str) -> int:
    return re.search(rf"static nvmlReturn_t {function}\(", preprocessed()).start()


def _results_of(caller: str, rest: str) -> int | str | None:
    match caller:
        case "named_text":
            return "text"
        case "named_nothing":
            return 0
        case "named_pair":
            return 2
        case "named_u32" | "named_i32" | "named_u64":
            return int(_RESULTS.search(rest)[1])
        case _:
            return None
