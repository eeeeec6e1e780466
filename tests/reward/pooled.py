"""Functions for the pool's processes to run: well-behaved, hanging, dying, greedy."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.reward.protocol import Steps, Unscorable
from shared.scoring import ScoreItem


def obedient(parameters: Mapping[str, Any]) -> Callable[[ScoreItem], float | Steps]:
    """Does what the response says."""

    def function(item: ScoreItem) -> float | Steps:
        command, _, argument = item.response.partition(" ")
        match command:
            case "spin":
                while True:
                    pass
            case "sleep":
                time.sleep(float(argument))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "start":  # a process in a session of its own, or in that of this one; then hang
                child = subprocess.Popen(["sleep", "37"], start_new_session=argument == "session")
                Path(item.metadata["file"]).write_text(str(child.pid))
                Path(tempfile.mkdtemp(), "left").write_text("behind")
                time.sleep(60)
            case "leave":
                raise SystemExit(3)
            case "eat":
                return float(len(bytearray(int(argument))))
            case "grow":  # a file without content, which takes no room
                with tempfile.TemporaryFile() as file:
                    file.truncate(int(argument))
            case "raise":
                raise RuntimeError(argument)
            case "refuse":
                raise Unscorable(f"wants something else than {argument}")
            case "print":
                print(argument)
            case "steps":
                return Steps(1.0, (0.25, 0.75))
            case "pid":
                return float(os.getpid())
            case "secret":
                return float(argument in os.environ)
            case "connect":
                socket.create_connection(("127.0.0.1", int(argument)), timeout=2).close()
            case "tell":
                return float(item.metadata["value"])
        return float(parameters.get("factor", 1.0))

    return function


def broken(parameters: Mapping[str, Any]) -> Callable[[ScoreItem], float]:
    raise LookupError("nothing to prepare")
