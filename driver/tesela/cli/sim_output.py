"""What `tesela sim` writes: an answer whole or not at all, and one line where something is wrong."""

from __future__ import annotations

import os
import sys
from typing import Final

EXIT_REFUSED: Final = 1


def show(text: str) -> int:
    """Writes `text` and returns 0, or the exit code if that cannot be done."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as error:
        # What is left in the buffer would fail again at the interpreter's end, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_REFUSED  # its reader went away, as `head` does
        return say(f"cannot write the answer: {error.strerror}", EXIT_REFUSED)
    return 0


def say(text: str, code: int) -> int:
    """Says what is wrong, and returns `code`."""
    print(f"tesela sim: {text}", file=sys.stderr)
    return code
