"""The host's `nvidia-smi`, for the one thing that NVML has no call for: the time slice of a GPU.

The program is the host's own, so that it matches the kernel module; it is run as it lies, with the host's NVML
library in front of any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tesela.core.config import TimeSliceInterval
from tesela.core.errors import TryAgain
from tesela.edge.host.driver_root import NVML_LIBRARY, PROGRAM_FOLDERS, find_library, find_program
from tesela.edge.host.program import LARGEST_BYTES, TooMuchOutput, run_program

_TIMEOUT_S: Final = 10.0
_INTERVAL: Final = re.compile(rf"\b({'|'.join(TimeSliceInterval)})\b", re.IGNORECASE)


class NvidiaSmi:
    """Runs the program found below `driver_root_mount`, or the one at `path`; no call takes longer than `timeout_s`."""

    def __init__(
        self, *, driver_root_mount: Path = Path("/"), path: Path | None = None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._root = driver_root_mount
        self._path = path
        self._timeout_s = timeout_s

    def set_time_slice(self, gpu_uuid: str, interval: str) -> None:
        """Sets the interval (a name of `TimeSliceInterval`) on a whole GPU, after its compute mode is set to DEFAULT.

        Time slices have no effect while a GPU is in an exclusive compute mode. TryAgain carries what the program said.
        """
        number = TimeSliceInterval(interval).number
        what = f"set the time slice of GPU {gpu_uuid} to {interval}"
        self._run(("-i", gpu_uuid, "-c", "DEFAULT"), what)
        self._run(("compute-policy", "-i", gpu_uuid, "--set-timeslice", str(number)), what)

    def get_time_slice(self, gpu_uuid: str) -> str | None:
        """The interval in force on a whole GPU (a name of `TimeSliceInterval`), None where the program does not tell.

        Its table of compute policies is meant for people and documented nowhere, so the answer counts where exactly one
        of the four words stands in it. TryAgain as above.
        """
        said = self._run(("compute-policy", "-i", gpu_uuid, "-l"), f"read the time slice of GPU {gpu_uuid}")
        words = {word.capitalize() for word in _INTERVAL.findall(said)}
        return words.pop() if len(words) == 1 else None

    def _run(self, arguments: Sequence[str], what: str) -> str:
        """What the program said."""
        program = self._find_program(what)
        command = f"{program.name} {' '.join(arguments)}"
        environment = os.environ | self._render_environment()
        try:
            ended = run_program([str(program.absolute()), *arguments], environment, timeout_s=self._timeout_s)
        except TimeoutError as error:
            raise TryAgain(
                f"cannot {what}: `{command}` took over {self._timeout_s:g} s; look at the GPU with nvidia-smi on the "
                "host, the kubelet tries again by itself"
            ) from error
        except TooMuchOutput as error:
            raise TryAgain(
                f"cannot {what}: `{command}` prints more than {LARGEST_BYTES >> 20} MiB; try it on the host"
            ) from error
        except OSError as error:
            raise TryAgain(f"cannot {what}: {program}: {error.strerror}: check --driver-root-mount") from error
        output = ended.output + ended.complaint
        if ended.code != 0:
            said = " ".join(output.split())[:300] or "nothing"
            raise TryAgain(
                f"cannot {what}: `{command}` ended with {ended.code} and said: {said}; try it on the host, the "
                "kubelet tries again by itself"
            )
        return output

    def _find_program(self, what: str) -> Path:
        if self._path is not None:
            return self._path
        program = find_program(self._root, "nvidia-smi")
        if program is not None:
            return program
        raise TryAgain(
            f"cannot {what}: there is no nvidia-smi in {', '.join(PROGRAM_FOLDERS)} below {self._root}: point "
            "--driver-root-mount at the host's driver, or take timeSlicingConfig out of the claim's config"
        )

    def _render_environment(self) -> dict[str, str]:
        if self._root == Path("/"):
            return {}
        library = find_library(self._root, NVML_LIBRARY)
        return {"LD_PRELOAD": str(library)} if library is not None else {}
