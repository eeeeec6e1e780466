"""`python -m tests.chaos.service NAME ARGUMENTS`: a service as it is, with its clock and engine changed.

A dead worker is noticed after 2 s instead of 10, and a lost delivery after 1 s instead of 5, so that a test
can wait for it; the rollout service has
`SmallEngine` in place of vLLM; a strike may be set. Everything else is the service's own code and command
line.
"""

import ctypes
import os
import runpy
import signal
import sys
import time

from benchmarks.stand_in import replace_vllm
from tests.chaos import strikes

EXPIRY_SECONDS = 2
CLOCK = "CHAOS_CLOCK"
"""Environment variable: seconds by which a service's clock is wrong, if it is."""

_PR_SET_PDEATHSIG = 1


def run(name: str, arguments: list[str]) -> None:
    """The service's own entry point, in this process."""
    _die_with_parent()
    sys.argv = [f"services.{name}", *arguments]
    _quicken(name)
    _set_clock(float(os.environ.get(CLOCK, 0)))
    if name == "rollout":
        _put_small_engine_in_place()
    strikes.install()
    runpy.run_module(f"services.{name}", run_name="__main__", alter_sys=True)


def _die_with_parent() -> None:
    """Of a test that was killed, nothing stays. Linux only; elsewhere a killed test leaves its processes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _quicken(name: str) -> None:
    """Let heartbeats beat, dead workers be noticed and lost deliveries be found five times as fast."""
    from shared import reader, workers

    reader.Reader.__init__.__defaults__ = (1.0,)  # type: ignore[attr-defined]
    workers.EXPIRY_SECONDS = EXPIRY_SECONDS
    workers.BEAT_SECONDS = 0.4
    if name == "rollout":
        import services.rollout.worker

        services.rollout.worker._CLAIM_SECONDS = 0.5
    if name == "reward":
        import services.reward.worker

        services.reward.worker.CLAIM_SECONDS = 0.5


def _set_clock(seconds: float) -> None:
    """Let `time.time` be wrong; what measures durations goes on."""
    right = time.time
    if seconds:
        time.time = lambda: right() + seconds


def _put_small_engine_in_place() -> None:
    """Before anything of the rollout service imports vLLM."""
    from tests.chaos.engine import SmallEngine

    replace_vllm(SmallEngine)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
