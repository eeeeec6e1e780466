"""A rollout service whose engine is not vLLM: for benchmarks and tests of everything around the engine."""

import sys
from types import ModuleType


def replace_vllm(engine: type) -> None:
    """Put `engine` in the place of the service's engine, and leave vLLM's own routes out.

    Before anything of the rollout service is imported, so that vLLM is never loaded.
    """
    module = ModuleType("services.rollout.vllm_engine")
    module.VllmEngine = engine  # type: ignore[attr-defined]
    routes = ModuleType("services.rollout.openai_routes")
    routes.add_openai_routes = lambda app: None  # type: ignore[attr-defined]
    routes.attach_engine = _attach_nothing  # type: ignore[attr-defined]
    sys.modules |= {module.__name__: module, routes.__name__: routes}


async def _attach_nothing(app: object, engine: object) -> None:
    """vLLM's own routes need vLLM."""
