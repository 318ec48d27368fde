"""A vendor's command line tool that behaves as badly as its files say; run as a program.

    vendor_stand_in.py DIRECTORY create NAME [CREATED] | list [OFFSET] | show ID | terminate ID

With an OFFSET, the list is an object of ``items`` (a page) and their ``total``. DIRECTORY holds
``pods.json`` and, per command, how it behaves (``create.mode`` and so on):
``ok``, ``fail`` (exit 1, nothing done), ``fail-but-did`` (exit 1, done all the same), ``hang``,
``garbage`` (done, but prints nonsense), ``ignore`` (accepts and does nothing), ``empty`` (prints
nothing), ``late:N`` (a new pod is listed, or an ended one unlisted, only N listings later),
``page:N`` (only the N oldest are listed, or N from the offset), ``stale`` (lists nothing, although
it runs), ``unlisted`` (what is created is never listed).
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


def row(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what is listed of a pod."""
    return {key: pod[key] for key in ("id", "name", "created_at") if key in pod}


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
        delay = 10**9 if mode == "unlisted" else delay
        result: object = {"success": True}
        if command == "create":
            latest = directory / "latest"  # An id is never used again.
            used = int(latest.read_text()) if latest.exists() else 0
            number = max(used, len(pods)) + 1
            latest.write_text(str(number))
            pod: dict[str, Any] = {
                "id": f"pod-{number}",
                "name": arguments[0],
                "hidden": delay,
                "dying": None,
            }
            pods.append(pod | ({"created_at": arguments[1]} if arguments[1:] else {}))
            result = {"id": pod["id"]}
        elif command == "show":
            shown = [row(pod) for pod in pods if pod["id"] == arguments[0] and pod["dying"] is None]
            if not shown:
                return 1, ""
            result = shown[0]
        elif command == "terminate" and mode != "ignore":
            for pod in pods:
                if pod["id"] == arguments[0] and pod["dying"] is None:
                    pod["dying"] = delay
        elif command == "list":
            pods = [pod for pod in pods if pod["dying"] != 0]
            rows = [row(pod) for pod in pods if pod["hidden"] <= 0 and mode != "stale"]
            size = int(mode.removeprefix("page:")) if mode.startswith("page:") else len(rows)
            offset = int(arguments[0]) if arguments else 0
            result = rows[offset : offset + size]
            if arguments:
                result = {"items": result, "total": len(rows)}
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
