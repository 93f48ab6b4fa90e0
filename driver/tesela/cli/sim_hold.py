"""`tesela sim busy` without a PID: the command itself is the process, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from tesela.core.errors import DocumentError
from tesela.edge.simulator.admin import SimulatorAdmin


def hold_gpu(admin: SimulatorAdmin, document: dict[str, Any]) -> None:
    """Holds the GPU that `document` names until SIGINT or SIGTERM, and frees it then.

    The process is a real one to the simulator, so that the GPU is freed even where this command is killed.
    DocumentError, NvmlError: as SimulatorAdmin.send.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    pid = os.getpid()
    admin.send({"name": "tesela-sim-busy"} | document | {"pid": pid, "real": True})
    print(f"process {pid} holds GPU {document['gpu']}; Ctrl-C frees it", flush=True)
    stop.wait()
    try:
        admin.send({"op": "idle", "gpu": document["gpu"], "pid": pid})
    except DocumentError:
        print(f"GPU {document['gpu']} was freed meanwhile")
