"""Stand-ins for the files of a GPU driver on the host: shared objects with the names and SONAMEs of NVIDIA's.

Each says of which release it is and who it is, so that a container can tell what it has loaded. libcuda opens the just
in time compiler by its SONAME at run time, as NVIDIA's does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.harness.build import build_toolkit
from e2e.harness.tesela_command import find_nvml_library

LIBRARIES = {
    "libcuda": "libcuda.so.1",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-opencl": "libnvidia-opencl.so.1",
    "libnvidia-encode": "libnvidia-encode.so.1",
    "libnvcuvid": "libnvcuvid.so.1",
    "libGLX_nvidia": "libGLX_nvidia.so.0",
    "libnvidia-glcore": "libnvidia-glcore.so.{version}",
    "libnvidia-gpucomp": "libnvidia-gpucomp.so.{version}",
}
"""Name and SONAME, as NVIDIA's driver has them."""

_OPERATORS_FOLDER = "usr/local/nvidia/toolkit"
_SOURCE = """
#include <dlfcn.h>
const char *stand_in_release(void) { return RELEASE; }
const char *stand_in_soname(void) { return SONAME; }
int stand_in_compiles(void) { return dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW) != 0; }
"""


class DriverInstallation:
    """The driver's files below `root`, which a test installs, replaces and removes as an administrator does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.libraries = root / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"

    def install(self, version: str, *, release: str = "") -> None:
        """The driver of this version; `release` is what its libraries say, which is the version where it is ""."""
        self.remove()
        self.libraries.mkdir(parents=True, exist_ok=True)
        for name, soname in LIBRARIES.items():
            said = soname.format(version=version)
            _compile(self.libraries / f"{name}.so.{version}", soname=said, release=release or version)
            if said != f"{name}.so.{version}":
                (self.libraries / said).symlink_to(f"{name}.so.{version}")
        shutil.copy(find_nvml_library(), self.libraries / f"libnvidia-ml.so.{version}")
        (self.libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")

    def remove(self) -> None:
        """No library of the driver is left, but the one that the driver of the node has loaded from elsewhere."""
        shutil.rmtree(self.libraries, ignore_errors=True)

    def install_toolkit(self) -> None:
        """NVIDIA's container toolkit."""
        programs = self.root / "usr" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for program in build_toolkit().iterdir():
            shutil.copy(program, programs / program.name)

    @property
    def wrapped_hook(self) -> Path:
        """The hook's program after `wrap_toolkit`."""
        return self.root / _OPERATORS_FOLDER / "nvidia-cdi-hook"

    def wrap_toolkit(self, nvml_socket: Path) -> None:
        """The toolkit as the GPU operator lays it out, in a root that a program can have for its own.

        That takes the C library and a shell, and the simulator's socket where the program looks for it.
        """
        self.remove_toolkit()
        folder = self.root / _OPERATORS_FOLDER
        folder.mkdir(parents=True)
        for program in build_toolkit().iterdir():
            shutil.copy(program, folder / (program.name + (".real" if program.name == "nvidia-ctk" else "")))
        script = folder / "nvidia-ctk"
        script.write_text(f'#!/bin/sh\nexec /{_OPERATORS_FOLDER}/nvidia-ctk.real "$@"\n')
        script.chmod(0o755)
        needed = subprocess.run(["ldd", folder / "nvidia-ctk.real"], check=True, capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", needed):
            self._copy(Path(library), Path(library))
        self._copy(Path("/bin/busybox"), Path("/bin/sh"))
        seen = self.root / nvml_socket.relative_to("/")
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.unlink(missing_ok=True)
        seen.hardlink_to(nvml_socket)

    def remove_toolkit(self) -> None:
        """Without NVIDIA's container toolkit."""
        for name in ("nvidia-ctk", "nvidia-cdi-hook"):
            (self.root / "usr" / "bin" / name).unlink(missing_ok=True)
        shutil.rmtree(self.root / _OPERATORS_FOLDER, ignore_errors=True)

    def _copy(self, file: Path, place: Path) -> None:
        target = self.root / place.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def _compile(library: Path, *, soname: str, release: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "library.c"
        source.write_text(_SOURCE)
        names = [f'-DRELEASE="{release}"', f'-DSONAME="{soname}"', f"-Wl,-soname,{soname}"]
        subprocess.run(["cc", "-shared", "-fPIC", "-O0", *names, "-o", library, source], check=True)
