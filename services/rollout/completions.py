"""From what an engine returns to completions, of which some may be of no use."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from services.rollout.engine import SomeFailed
from services.rollout.stops import cut_spans, end_of_first_stop
from shared.experience import Completion, Float32Array, Int32Array, StopSequence, VersionSpan

T = TypeVar("T")


class Unusable(RuntimeError):
    """A completion that must not be trained on."""


def make_completion(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    spans: Sequence[VersionSpan],
    finish_reason: str | None,
    stops: Sequence[StopSequence],
    decode: Callable[[list[int]], str],
) -> Completion:
    """A completion through its first stop sequence.

    Raises:
    Unusable: the engine gave up on it, or its numbers are none.
    """
    end = end_of_first_stop(tokens, stops) if stops else None
    reason = "stop" if end else finish_reason
    if reason not in ("stop", "length"):
        raise Unusable(f"the engine ended it with {reason!r} after {len(tokens)} tokens")
    kept, known = list(tokens)[:end], Float32Array(logprobs[:end])
    if not math.isfinite(sum(known)):
        raise Unusable("a logprob of it is not finite")
    return Completion(
        token_ids=Int32Array(kept),
        logprobs=known,
        text=decode(kept),
        finish_reason="stop" if reason == "stop" else "length",
        version_spans=cut_spans(spans, len(kept)),
    )


def all_completions(outputs: Sequence[T | Exception], make: Callable[[T], Completion]) -> list[Completion]:
    """A completion of each output.

    Raises:
    SomeFailed: some outputs are failures, or cannot be used.
    """
    made: list[Completion] = []
    causes: list[str] = []
    for number, output in enumerate(outputs):
        try:
            if isinstance(output, Exception):
                raise Unusable(f"{type(output).__name__}: {output}") from output
            made.append(make(output))
        except Unusable as error:
            causes.append(f"completion {number} was not generated: {error}")
    if causes:
        raise SomeFailed(causes, made)
    return made
