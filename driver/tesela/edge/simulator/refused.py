"""`Refused`: a rule of the simulated GPU says no. A file of its own, so that rules in several files can raise it."""

from __future__ import annotations

from tesela.edge.nvml import codes


class Refused(Exception):
    """NVML would answer `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(codes.TEXTS.get(code, str(code)))
        self.code = code
