"""Where a completion ends when it may be ended by a sequence of several tokens.

vLLM stops on single tokens and on texts, not on sequences of tokens: those are looked for here, while a
completion grows and in what it returns.
"""

from collections.abc import Sequence

from shared.experience import StopSequence, VersionSpan


def end_of_first_stop(tokens: Sequence[int], stops: Sequence[StopSequence], start: int = 0) -> int | None:
    """How many of `tokens` there are through the end of the stop sequence that is completed first.

    A sequence counts wherever it ends at or after position `start`, so that growing tokens are read once.

    Returns:
        None if no stop sequence is in `tokens`.

    Source: ColossalChat, `generate` (a sequence is finished when its tail equals a stop sequence) and
    `NaiveExperienceMaker` (the tokens through the end of the stop sequence are kept).
    """
    for last in range(start, len(tokens)):
        for stop in stops:
            first = last + 1 - len(stop)
            if first >= 0 and tokens[last] == stop[-1] and tuple(tokens[first : last + 1]) == stop:
                return last + 1
    return None


def cut_spans(spans: Sequence[VersionSpan], tokens: int) -> list[VersionSpan]:
    """The spans of the first `tokens` tokens."""
    kept, left = [], tokens
    for span in spans:
        if left > 0:
            kept.append(VersionSpan(span.version, min(span.tokens, left)))
            left -= span.tokens
    return kept
