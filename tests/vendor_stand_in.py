"""A vendor's command line tool that behaves as badly as its files say; run as a program.

    vendor_stand_in.py DIRECTORY create NAME | list | terminate ID

DIRECTORY holds ``pods.json`` and, per command, how it behaves (``create.mode`` and so on):
``ok``, ``fail`` (exit 1, nothing done), ``fail-but-did`` (exit 1, done all the same), ``hang``,
``garbage`` (done, but prints nonsense), ``ignore`` (accepts and does nothing), ``empty`` (prints
nothing), ``late:N`` (a new pod is listed, or an ended one unlisted, only N listings later).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HANG_S = 60  # not for ever: whoever waits for it may have been killed


class Hanging(Exception):
    """The command does not answer."""


def answer(directory: Path, command: str, *arguments: str) -> tuple[int, str]:
    """Do what a command does; return its exit code and what it prints."""
    pods_file, mode_file = directory / "pods.json", directory / f"{command}.mode"
    mode = mode_file.read_text().strip() if mode_file.exists() else "ok"
    with (directory / "calls").open("a") as calls:
        calls.write(" ".join([command, *arguments]) + "\n")
    if mode == "fail":
        return 1, ""
    if mode == "hang":
        raise Hanging
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a watcher lists while somebody creates
        pods: list[dict[str, Any]] = json.loads(pods_file.read_text()) if pods_file.exists() else []
        delay = int(mode.removeprefix("late:")) if mode.startswith("late:") else 0
        result: object = {"success": True}
        if command == "create":
            pod: dict[str, Any] = {
                "id": f"pod-{len(pods) + 1}",
                "name": arguments[0],
                "hidden": delay,
                "dying": None,
            }
            pods.append(pod)
            result = {"id": pod["id"]}
        elif command == "terminate" and mode != "ignore":
            for pod in pods:
                if pod["id"] == arguments[0] and pod["dying"] is None:
                    pod["dying"] = delay
        elif command == "list":
            pods = [pod for pod in pods if pod["dying"] != 0]
            result = [{"id": p["id"], "name": p["name"]} for p in pods if p["hidden"] <= 0]
            for pod in pods:
                pod["hidden"] -= 1
                pod["dying"] = None if pod["dying"] is None else pod["dying"] - 1
        draft = pods_file.with_suffix(f".{os.getpid()}")  # The test reads without the lock.
        draft.write_text(json.dumps(pods))
        draft.replace(pods_file)
    if mode == "fail-but-did":
        return 1, ""
    return 0, {"garbage": "<html>busy</html>", "empty": ""}.get(mode, json.dumps(result)) + "\n"


def main() -> int:
    try:
        code, output = answer(Path(sys.argv[1]), *sys.argv[2:])
    except Hanging:
        signal.alarm(HANG_S)
        signal.pause()
        raise
    sys.stdout.write(output)
    return code


if __name__ == "__main__":
    sys.exit(main())
