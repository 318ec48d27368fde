"""A command that leaves a process behind, in one of the ways to escape supervision.

Usage: escape.py MODE LOCK READY [stay]

Everything that it starts shares one lock on a file, which is free once the last of them is dead.
Nothing of it outlives a minute or two, whether or not somebody ends it.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path

_LIFE_S = 120

mode, lock, ready = sys.argv[1:4]
held = os.open(lock, os.O_RDWR | os.O_CREAT)
os.set_inheritable(held, True)
fcntl.flock(held, fcntl.LOCK_EX)


def linger() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path(ready).write_text(str(os.getpid()))
    signal.alarm(_LIFE_S)
    while True:
        signal.pause()


def daemonise() -> bool:
    """Leave the session and the parent behind; True in the process that did."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


if mode == "empty-environment":
    if not os.fork():
        os.setsid()
        program = f"import signal; open({ready!r}, 'w').write('up'); signal.alarm({_LIFE_S})"
        program += "; signal.pause()"
        os.execve(sys.executable, [sys.executable, "-S", "-c", program], {})
elif mode == "renamed":
    if not os.fork():
        os.setsid()
        script = f"echo up > '{ready}'; exec -a '[kworker/0:1]' sleep {_LIFE_S}"
        os.execve("/bin/bash", ["[kworker/0:1]", "-c", script], {})
elif mode == "named-like-a-watcher":
    if not os.fork():
        os.setsid()
        for output in (1, 2):  # Whoever reads ours does not wait for it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        program = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); "
        words = [
            "-S",
            "-c",
            program + f"signal.alarm({_LIFE_S}); signal.pause()",
            ready,
            "outlay.guard.rental.watch",
        ]
        os.execv(sys.executable, [sys.executable, *words])
elif mode == "registered":
    if not os.fork():
        os.setsid()
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        from outlay.proc.identity import register_outliving
        from outlay.store.home import outliving_dir

        assert register_outliving(outliving_dir("watchers"), os.getpid())
        child = os.fork()
        if child:
            Path(ready).write_text(f"{os.getpid()} {child}")
        signal.alarm(_LIFE_S)
        signal.pause()
elif mode == "double-fork":
    if daemonise():
        linger()
elif mode == "chain":
    if daemonise():
        Path(ready).write_text("up")
        until = time.monotonic() + _LIFE_S
        while time.monotonic() < until and not os.fork():
            os.setsid()  # The child goes on and forks again; its parent is gone.
            pause(0.002)
        os._exit(0)
elif mode == "plain":
    linger()

while not Path(ready).exists() or not Path(ready).read_text():
    pause(0.01)
while sys.argv[4:] == ["stay"]:
    pause(1)
