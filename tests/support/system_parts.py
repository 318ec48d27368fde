"""Parts of the system that a test needs and a laptop may lack."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where everything ought to be there: in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def in_pid_namespace(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a pid namespace of its own, as in a container that shares our files."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        allowed = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    except OSError as error:
        missing(f"unshare: {error.strerror}")
    if allowed.returncode:
        missing("no pid namespace may be created here")
    return subprocess.run(
        [*unshare, sys.executable, *words], capture_output=True, text=True, check=False, timeout=120
    )
