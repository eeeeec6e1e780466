"""A folder in shared memory that is removed with its owner, also when that was killed."""

import fcntl
import shutil
import tempfile
from pathlib import Path

_PREFIX = "rollstream-weights-"
_LOCK = "owner.lock"


class WeightFolder:
    """Holds a lock on its folder for as long as the process lives; folders without one are left-overs."""

    def __init__(self, parent: Path | None) -> None:
        parent = parent or _shared_memory()
        parent.mkdir(parents=True, exist_ok=True)
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_left_over(folder)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def free(self) -> int:
        """Bytes that still fit."""
        return shutil.disk_usage(self.path).free

    def make(self, name: str) -> Path:
        """A new folder inside."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _shared_memory() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


def _remove_left_over(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # its owner lives, or another process is removing it, or it belongs to another user
