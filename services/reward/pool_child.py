"""The processes of the pool: `python -m services.reward.pool_child FD MEMORY_MB`.

The first one is a nursery: it imports what takes long, once, and forks the processes that do the work, so
that a killed one is replaced in milliseconds. It runs no code of rules or users itself, and so cannot hang.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.reward.frames import Answer, Closed, End, Fork, Prepare, Work, receive, send
from services.reward.pool_family import Family, own_folder
from services.reward.protocol import OutOfTime, Steps, Unscorable
from shared.scoring import ScoreItem

CAUSE_LENGTH = 1000
FILE_BYTES = 2**30
"""Size of a file that an item may write. There is no limit to processor time beside its deadline, since a
process serves many items."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

Function = Callable[[ScoreItem], float | Steps]


def nursery(control: socket.socket, memory_bytes: int) -> None:
    """Say whether the processes have a network of their own (0 or 1), then serve `Fork` and `End` until the
    service is gone, which ends all the processes with this one.
    """
    send(control, int(leave_network()))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what workers started falls to us, and not to init
    nursery_pid = os.getpid()
    family = Family()
    with own_folder() as folder:
        try:
            while True:
                family.wait(control)
                request = receive_with_socket(control)
                match request:
                    case (Fork(modules), channel) if channel is not None:
                        for module in modules:
                            importlib.import_module(module)
                        gc.freeze()  # else a collection in a worker copies all pages of what was imported
                        with channel:
                            try:
                                pid = os.fork()
                            except OSError as error:  # too little memory, or too many processes
                                send(control, -(error.errno or 1))
                                continue
                            if pid == 0:
                                control.close()
                                become_worker(channel, nursery_pid, folder, memory_bytes)
                        family.workers[pid] = folder / str(pid)
                        send(control, pid)
                    case (End(pid, wait), None) if pid in family.workers:
                        send(control, family.end(pid, wait))
                    case _:
                        raise Closed("it asks for what cannot be")
        except Closed:
            family.end_all()


def receive_with_socket(control: socket.socket) -> tuple[Fork | End, socket.socket | None]:
    """A request, and the socket that was sent with its announcing byte."""
    mark, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not mark:
        raise Closed
    channel = socket.socket(fileno=descriptors[0]) if descriptors else None
    request: Fork | End = receive(control, Fork | End)  # type: ignore[arg-type]
    return request, channel


def leave_network() -> bool:
    """Move into a network of our own without any interface, where the system lets an ordinary user do so;
    whether it did.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def become_worker(channel: socket.socket, nursery_pid: int, folder: Path, memory_bytes: int) -> None:
    """Never returns: serve `channel` in a process that dies with its parent and has limited memory."""
    code = 1
    try:
        os.setsid()  # so that what it starts can be killed with it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery_pid:
            raise Closed  # it died before it could take us with it
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder / str(os.getpid()))
        Path(tempfile.tempdir).mkdir()
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))  # past it: OSError, "too large"
        work(channel)
    except Closed:
        code = 0
    finally:
        os._exit(code)  # not through the nursery's own frames


def work(channel: socket.socket) -> None:
    """Answer requests, one at a time.

    Raises:
    Closed: the service is gone.
    """
    functions: dict[int, Function] = {}
    while True:
        request: Prepare | Work = receive(channel, Prepare | Work)  # type: ignore[arg-type]
        if isinstance(request, Prepare):
            try:
                functions[request.key] = prepare(request.factory, request.parameters)
                send(channel, Answer("ok"))
            except (Exception, SystemExit) as error:
                send(channel, _error(error))
        else:
            send(channel, answer(functions[request.key], request))


def prepare(factory: str, parameters: Mapping[str, Any]) -> Function:
    module, _, name = factory.partition(":")
    function: Function = getattr(importlib.import_module(module), name)(parameters)
    return function


def answer(function: Function, work: Work) -> Answer:
    try:
        outcome = function(work.item)
        if isinstance(outcome, Steps):
            steps = [float(step) for step in outcome.steps]
            return Answer("ok", float(outcome.value), steps, [int(end) for end in outcome.ends])
        return Answer("ok", float(outcome))
    except Unscorable as error:
        return Answer("invalid", cause=_printable(str(error)))
    except OutOfTime as error:
        return Answer("timeout", cause=_printable(str(error)))
    except (Exception, SystemExit) as error:  # whatever it raises becomes this item's status
        return _error(error)


def _error(error: BaseException) -> Answer:
    return Answer("error", cause=_printable(f"raised {type(error).__name__}: {error}"))


def _printable(text: str) -> str:
    return text[:CAUSE_LENGTH].encode(errors="replace").decode()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the whole group; the service ends us
    nursery(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]) * 2**20)
