"""vLLM's engine with a prefix cache salted by weights: a request finds what was computed from its own."""

from collections.abc import AsyncGenerator
from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM


class SaltedLLM(AsyncLLM):
    """Puts `salt` before the cache salt of every request, also of those that come over vLLM's own routes."""

    salt = ""

    def generate(self, prompt: Any, *arguments: Any, **named: Any) -> AsyncGenerator[RequestOutput, None]:
        """As `AsyncLLM.generate`."""
        if isinstance(prompt, dict):
            prompt = {**prompt, "cache_salt": f"{self.salt}/{prompt.get('cache_salt') or ''}"}
        return super().generate(prompt, *arguments, **named)
