"""`tesela sim busy` without a PID: the command itself is the process, until Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

from tesela.cli.sim_stop import stop_on_signals
from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.simulator.admin import SimulatorAdmin

LOOK_S: Final = 0.5


def hold_gpu(admin: SimulatorAdmin, document: dict[str, Any], *, as_json: bool = False) -> None:
    """Holds the GPU that `document` names until SIGINT or SIGTERM, and frees it then; ends too if it is held no longer.

    The process is a real one to the simulator, so that the GPU is freed even where this command is killed.
    DocumentError: the simulator refuses. NvmlError: it does not answer, or does no longer.
    """
    stop = stop_on_signals()
    pid, gpu = os.getpid(), document["gpu"]
    admin.send({"name": "tesela-sim-busy"} | document | {"pid": pid, "real": True})
    sentence = f"process {pid} holds GPU {gpu}; Ctrl-C frees it"
    print(json.dumps({"ok": True, "gpu": gpu, "pid": pid}) if as_json else sentence, flush=True)
    try:
        while _is_held(admin, pid):
            if stop.wait(LOOK_S):
                admin.send({"op": "idle", "gpu": gpu, "pid": pid})
                return
    except NvmlError as error:
        raise NvmlError(error.code, error.function, f"GPU {gpu} is held no longer: {error.text}") from error
    except DocumentError:
        pass  # freed between the last look and the signal
    print(f"process {pid} holds GPU {gpu} no longer: somebody has freed it", file=sys.stderr)


def _is_held(admin: SimulatorAdmin, pid: int) -> bool:
    return any(process["pid"] == pid for gpu in admin.send({"op": "status"})["gpus"] for process in gpu["processes"])
