"""Shut a Python program in and run it: `python -I sandbox_child.py '{"isolated": true, ...}'`.

Only the standard library, so that it starts in an environment without any other package. Needs no privilege:
all it uses an ordinary process may do in a user namespace of its own, where the system permits those. Exit
status 120 says that it did not; else the status is the program's.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

CANNOT_ISOLATE = 120
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 4096, 16384, 1 << 18, 2
SYS_MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
USER = 1000
"""The program's user and group, which are nobody's outside."""

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace")]


def call(function: str, *arguments: Any) -> None:
    """A system call, by its C function.

    Raises:
    OSError: it failed.
    """
    if getattr(libc, function)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def isolate(order: dict[str, Any]) -> None:
    """Leave network, other processes and file system behind; return in a process that is the first
    of its own.

    Raises:
    OSError: the system does not permit it.
    """
    user, group = os.getuid(), os.getgid()
    call("unshare", NEWUSER | NEWNS | NEWNET | NEWPID | NEWIPC | NEWUTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {group} 1")
    with contextlib.suppress(
        OSError
    ):  # where it is not permitted, those of the program are as closed as this one
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    if pid := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    die_with_parent()
    change_root(Path(order["folder"]) / "root", order["python_home"], order["disk_mb"])


def change_root(root: Path, python_home: str, disk_mb: int) -> None:
    """Make `root`, an empty folder, the whole file system: libraries and Python to read, `/work` to write."""
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    options = f"size={disk_mb}m,nr_inodes=10000,mode=755".encode()
    call("mount", b"tmpfs", bytes(root), b"tmpfs", MS_NOSUID | MS_NODEV, options)
    for place in (*SYSTEM, *DEVICES, python_home):
        outside, inside = Path(place), root / place.lstrip("/")
        if inside.exists() or not outside.exists():
            continue
        inside.parent.mkdir(parents=True, exist_ok=True)
        if outside.is_symlink():
            inside.symlink_to(outside.readlink())
            continue
        inside.mkdir() if outside.is_dir() else inside.touch()
        call("mount", bytes(outside), bytes(inside), None, MS_BIND | MS_REC, None)
        if place not in DEVICES:
            attributes = MountAttributes(READ_ONLY | NO_SETUID | NO_DEVICES)
            size = ctypes.sizeof(attributes)
            pointer = ctypes.byref(attributes)
            call("syscall", SYS_MOUNT_SETATTR, -1, bytes(inside), AT_RECURSIVE, pointer, size)
    (root / "work").mkdir()
    os.chdir(root)
    call("syscall", _pivot_root_number(), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/work")


def _pivot_root_number() -> int:
    numbers = {"x86_64": 155, "aarch64": 41}
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(f"pivot_root has no known number on {machine}")
    return numbers[machine]


def die_with_parent() -> None:
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)


def limit(order: dict[str, Any]) -> None:
    """Memory, processor time, sizes and numbers that the program cannot exceed."""
    memory, disk, seconds = order["memory_mb"] * 2**20, order["disk_mb"] * 2**20, int(order["seconds"]) + 1
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (value, value))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main() -> None:
    order = json.loads(sys.argv[1])
    die_with_parent()
    program = (Path(order["folder"]) / "program").read_bytes()
    try:
        if order["isolated"]:
            isolate(order)
        else:
            os.chdir(Path(order["folder"]) / "root")
        Path("main.py").write_bytes(program)
        limit(order)
    except OSError as error:
        print(error, file=sys.stderr)
        os._exit(CANNOT_ISOLATE)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.cwd()), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    os.execve(order["python"], [order["python"], "-I", "-B", "main.py"], environment)


if __name__ == "__main__":
    main()
