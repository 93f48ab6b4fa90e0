"""For every tier: hypothesis judges rules, not this machine's speed, so an example may take as long as it takes.

And what `tesela plugin` sets for its whole process ends with the test that ran it here.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("tesela", deadline=None)
settings.load_profile("tesela")


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """The log's handlers and the hooks for errors that nobody caught.

    Without it pytest would hear of no error in a thread from the first `tesela plugin` on, and lines would go to the
    stderr of a test that is over.
    """
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks
