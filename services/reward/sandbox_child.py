"""Shut a Python program in and run it: `python -I sandbox_child.py '{"isolated": true, ...}'`.

Only the standard library, so that it starts in an environment without any other package. Needs no privilege:
all it uses an ordinary process may do in a user namespace of its own, where the system permits those. Exit
status 120 says that it did not, 121 that the program used up its processor time; else the status is the
program's.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

CANNOT_ISOLATE, OUT_OF_CPU = 120, 121
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 4096, 16384, 1 << 18, 2
SYS_MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 1, 22, 38, 2
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the kernel's classic BPF."""
ALLOW, ERROR = 0x7FFF0000, 0x00050000
CLONE3, CLONE_THREAD = 435, 0x10000
REFUSED = {
    "x86_64": (0xC000003E, 56, (57, 58, 272, 308, 29, 64, 68, 319, 447, 425)),
    "aarch64": (0xC00000B7, 220, (97, 268, 194, 190, 186, 279, 447, 425)),
}
"""By machine: the number of its calling convention, that of clone, and what no program may call: fork, vfork
(x86 only), unshare, setns, shmget, semget, msgget, memfd_create, memfd_secret, io_uring_setup."""
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
USER = 1000
"""The program's user and group, which are nobody's outside."""

libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.c_char_p)]


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


def isolate() -> None:
    """Leave network, other processes and file system behind, for this process or its next child.

    Raises:
    OSError: the system does not permit it.
    """
    user, group = os.getuid(), os.getgid()
    call("unshare", NEWUSER | NEWNS | NEWNET | NEWPID | NEWIPC | NEWUTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {group} 1")


def watch(pid: int, cpu_seconds: int) -> int:
    """Wait for the program; its exit status as a shell gives it, or `OUT_OF_CPU`."""
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and used.ru_utime + used.ru_stime >= cpu_seconds - 0.1:
        return OUT_OF_CPU
    return code if code >= 0 else 128 - code


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
    """Memory, processor time and sizes that the program cannot exceed. The limits of the system hold for each
    process, so a program is one process: then its address space bounds all the memory it can have.
    """
    memory, disk, seconds = order["memory_mb"] * 2**20, order["disk_mb"] * 2**20, order["cpu_seconds"]
    for what, most, last in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # the first can be caught
        (resource.RLIMIT_FSIZE, disk, disk),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY:
            most, last = min(most, hard), min(last, hard)
        resource.setrlimit(what, (most, last))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    refuse_processes()


def refuse_processes() -> None:
    """Refuse from now on every call that makes a process, or memory outside the address space.

    Threads are allowed. RLIMIT_NPROC would not do: it counts nothing for a service that runs as root.

    Raises:
    OSError: the system knows no such filters, or the machine is another one.
    """
    machine = os.uname().machine
    if machine not in REFUSED:
        raise OSError(f"system calls have no known numbers on {machine}")
    convention, clone, refused = REFUSED[machine]
    forbidden, unknown = ERROR | errno.EPERM, ERROR | errno.ENOSYS
    # Of each: code, instructions to skip if true and if false, operand. A load takes an offset in what the
    # kernel shows of a call: its number, its convention, and at 16 its first argument.
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, convention), (RETURN, 0, 0, forbidden), (LOAD, 0, 0, 0)]
    steps += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, forbidden)]  # x86's third convention
    for number in refused:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, forbidden)]
    steps += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, unknown)]  # its flags cannot be seen; libc takes clone
    steps += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY_BIT, 1, 0, CLONE_THREAD)]
    steps += [(RETURN, 0, 0, forbidden), (RETURN, 0, 0, ALLOW)]
    program = Filter(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    call("prctl", PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0)


def main() -> None:
    order = json.loads(sys.argv[1])
    die_with_parent()
    program = (Path(order["folder"]) / "program").read_bytes()
    try:
        if order["isolated"]:
            isolate()
        if pid := os.fork():
            os._exit(watch(pid, order["cpu_seconds"]))
        die_with_parent()
        if order["isolated"]:
            change_root(Path(order["folder"]) / "root", order["python_home"], order["disk_mb"])
        else:
            os.chdir(Path(order["folder"]) / "root")
        Path("main.py").write_bytes(program)
        limit(order)
    except OSError as error:
        print(error, file=sys.stderr)
        os._exit(CANNOT_ISOLATE)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.cwd()), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    os.execve(order["python"], [order["python"], "-I", "-B", *order["arguments"]], environment)


if __name__ == "__main__":
    main()
