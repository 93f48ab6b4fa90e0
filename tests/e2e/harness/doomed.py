"""Runs a Python program that dies by SIGKILL just before an act on a file: `doomed.py ACT NUMBER PATTERN PROGRAM ...`.

ACT is the audit event by which Python announces the act before it happens: `os.rename`, `os.remove` or `open`. PATTERN
is a regular expression that the path must end with (of a rename: the new one), NUMBER counts from 1. The program itself
is untouched, so what dies is the driver as it ships.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys

_PATH = {"os.rename": 1, "os.remove": 0, "open": 0}


def doom(act: str, number: int, pattern: str) -> None:
    """From now on this process ends before its `number`-th such act."""
    wanted = re.compile(pattern + r"\Z")
    position, left = _PATH[act], number

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event == act and wanted.search(str(arguments[position])):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)


if __name__ == "__main__":
    _, act, number, pattern, *command = sys.argv
    doom(act, int(number), pattern)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
