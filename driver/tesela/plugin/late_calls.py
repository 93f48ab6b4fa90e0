"""A call into NVML that hangs may still make or destroy something after its locks were freed, in whichever process.

So nothing is concluded of what lives on its GPU, and nothing is changed there, before it has returned: a record that
covers what it may yet make stays as it is, and the kubelet and the sweep come again.
"""

from __future__ import annotations

from tesela.core.errors import NvmlTimeout
from tesela.plugin.node import Node


def check_no_call(node: Node, gpu_uuid: str, subject: str) -> None:
    """NvmlTimeout where a call is still inside the GPU. The caller holds the GPU's lock; `subject` begins the sentence.

    It costs one look at a file and waits for nothing.
    """
    call = node.locks.call_marks.find(gpu_uuid)
    if call is not None:
        raise NvmlTimeout(
            f"{subject}: {call} has not returned from GPU {gpu_uuid}, and what it does there is not known before; the "
            "kubelet tries again by itself; if it lasts, look for Xid errors in the node's kernel log"
        )
