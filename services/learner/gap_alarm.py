"""An alarm when engine and learner disagree on the logprobs of the same weights."""

import logging
from collections.abc import Mapping

from shared.experience import Sampling
from shared.stream import Streams

BOUND = 0.1
"""Mean distance per token. Rounding to bfloat16 makes some 0.01; a server that computes from other weights
than it names, or from keys and values that others left, makes several times the bound."""

log = logging.getLogger("rollstream.learner")


class GapAlarm:
    """Tells people once, and again after it was well in between.

    Looks only at fresh data, drawn from the whole distribution: else the policy's movement, or what the
    sampling leaves out, is part of the distance.
    """

    def __init__(self, streams: Streams, sampling: Sampling) -> None:
        whole = Sampling(max_tokens=sampling.max_tokens)
        names = ("top_p", "top_k", "min_p", "repetition_penalty")
        self._streams = streams
        self._applies = all(getattr(sampling, name) == getattr(whole, name) for name in names)
        self._told = False

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._applies or metrics["staleness/max"] > 0:
            return
        gap = metrics["logprob_gap/mean"]
        if gap > BOUND and not self._told:
            text = (
                f"step {step}: engine and learner are {gap:.3f} apart per token on the same weights "
                f"({metrics['logprob_gap/max']:.3f} at most); see logprob_gap in docs/operations.md"
            )
            log.warning(text)
            self._streams.event("logprob_gap", "learner", text)
        self._told = gap > BOUND
