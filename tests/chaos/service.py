"""`python -m tests.chaos.service NAME ARGUMENTS`: a service as it is, with its clock and engine changed.

A dead worker is noticed after 2 s instead of 10, so that a test can wait for it; the rollout service has
`SmallEngine` in place of vLLM. Everything else is the service's own code and command line.
"""

import runpy
import sys
from types import ModuleType

EXPIRY_SECONDS = 2


def quicken() -> None:
    """Let heartbeats beat, and dead workers be noticed, five times as fast."""
    from shared import workers

    workers.EXPIRY_SECONDS = EXPIRY_SECONDS
    workers.BEAT_SECONDS = 0.4


def put_small_engine_in_place() -> None:
    """Before anything of the rollout service imports vLLM."""
    from tests.chaos.engine import SmallEngine

    engine = ModuleType("services.rollout.vllm_engine")
    engine.VllmEngine = SmallEngine  # type: ignore[attr-defined]
    routes = ModuleType("services.rollout.openai_routes")
    routes.add_openai_routes = lambda app: None  # type: ignore[attr-defined]
    routes.attach_engine = _attach_nothing  # type: ignore[attr-defined]
    sys.modules |= {engine.__name__: engine, routes.__name__: routes}


async def _attach_nothing(app: object, engine: object) -> None:
    """vLLM's own routes need vLLM."""


def main() -> None:
    name = sys.argv[1]
    sys.argv = [f"services.{name}", *sys.argv[2:]]
    quicken()
    if name == "rollout":
        from services.rollout import worker

        worker._CLAIM_SECONDS = 0.5
        put_small_engine_in_place()
    if name == "reward":
        import services.reward.worker

        services.reward.worker.CLAIM_SECONDS = 0.5
    runpy.run_module(f"services.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
