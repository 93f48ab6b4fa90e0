"""The C programs of the fuzzing: how they are built and run, with and without sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / "nvml-sim" / "build"
LIBRARIES = {"plain": BUILD, "sanitized": BUILD / "sanitized", "threads": BUILD / "threads"}
CORPUS = HERE / "corpus" / "answers"
ANSWERS = HERE / "answers.bin"

SANITIZERS = {
    # abort_on_error: a report is a signal, which nobody can take for an exit status of the program itself.
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:second_deadlock_stack=1",
}


def find_clang() -> str | None:
    """A clang with libFuzzer, if there is one: nothing but `make fuzz` asks, and it goes on without."""
    names = [os.environ.get("CLANG", "clang"), *(f"clang-{version}" for version in range(21, 13, -1))]
    return next((name for name in names if shutil.which(name)), None)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended; `report` is all that it printed."""

    status: int
    report: str


def build(program: str, variant: str) -> Path:
    """The program, built now if it is not."""
    target = BUILD / "fuzz" / variant / program if variant != "libfuzzer" else BUILD / "fuzz" / "libfuzzer"
    command = ["make", "-s", "-C", str(HERE), f"VARIANT={variant}", f"CLANG={find_clang()}", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return target


def run(command: Sequence[str | Path], *, socket: Path | None = None, names: str = "", timeout_s: float = 300) -> Ended:
    """Runs one program with the sanitizers' settings; `names` is its standard input."""
    environment = {"PATH": "/usr/bin:/bin", "TESELA_FUZZ_ANSWERS": str(ANSWERS), **SANITIZERS}
    if socket is not None:
        environment["TESELA_SIM_SOCKET"] = str(socket)
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        input=names.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"))


def preloaded(*, reports: Path) -> dict[str, str]:
    """The environment in which a program that is not sanitized itself loads the sanitized library.

    Leaks are not looked for there: Python and Go keep memory until their end. Reports are written to `reports`.PID.
    """
    runtimes = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_LIBRARY_PATH": str(LIBRARIES["sanitized"]),
        "TESELA_NVML_LIBRARY": str(LIBRARIES["sanitized"] / "libnvidia-ml.so.1"),
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={reports}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:log_path={reports}",
    }


def exported(variant: str = "plain") -> list[str]:
    """The functions that the library exports."""
    library = LIBRARIES[variant] / "libnvidia-ml.so.1"
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if " T " in line]
