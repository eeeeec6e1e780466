"""The names of held-out metrics: a contract between the learner that logs them and those who show them."""

import math
import re
from collections.abc import Iterator, Mapping

_SOLVED = re.compile(r"eval/(?P<dataset>[^/]+)/(?P<mode>[^/]+)/(?P<figure>accuracy|pass@\d+)")
_PROMPTS = re.compile(r"eval/(?P<dataset>[^/]+)/prompts")


def solved_shares(metrics: Mapping[str, float]) -> dict[str, float]:
    """Shares of held-out prompts or completions that were solved, under names for people.

    `eval/heldout/greedy/accuracy` is `greedy`, `eval/heldout/sampled/pass@4` is `sampled pass@4`; the name of
    any other dataset comes first, as in `gsm8k greedy`.
    """
    return {name: share for name, _, share in _solved(metrics)}


def standard_errors(metrics: Mapping[str, float]) -> dict[str, float]:
    """Standard deviation of each of `solved_shares`, were other prompts of the same kind evaluated: that of a
    share of as many independent prompts; 0 where their number is not known."""
    prompts = evaluated_prompts(metrics)
    return {
        name: math.sqrt(share * (1 - share) / prompts[dataset]) if prompts.get(dataset) else 0.0
        for name, dataset, share in _solved(metrics)
    }


def evaluated_prompts(metrics: Mapping[str, float]) -> dict[str, int]:
    """Number of prompts that were evaluated, by dataset."""
    found = ((_PROMPTS.fullmatch(name), value) for name, value in metrics.items())
    return {match["dataset"]: int(value) for match, value in found if match}


def _solved(metrics: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Name for people, dataset and share."""
    for name, share in metrics.items():
        found = _SOLVED.fullmatch(name)
        if found:
            dataset, mode, figure = found.groups()
            words = [dataset if dataset != "heldout" else "", mode, figure if figure != "accuracy" else ""]
            yield " ".join(word for word in words if word), dataset, share
