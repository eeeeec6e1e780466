"""The names of held-out metrics: a contract between the learner that logs them and those who show them."""

import re
from collections.abc import Mapping

_SOLVED = re.compile(r"eval/(?P<dataset>[^/]+)/(?P<mode>[^/]+)/(?P<figure>accuracy|pass@\d+)")


def solved_shares(metrics: Mapping[str, float]) -> dict[str, float]:
    """Shares of held-out prompts or completions that were solved, under names for people.

    `eval/heldout/greedy/accuracy` is `greedy`, `eval/heldout/sampled/pass@4` is `sampled pass@4`; the name of
    any other dataset comes first, as in `gsm8k greedy`.
    """
    shares = {}
    for name, value in metrics.items():
        found = _SOLVED.fullmatch(name)
        if found:
            dataset, mode, figure = found.groups()
            words = [dataset if dataset != "heldout" else "", mode, figure if figure != "accuracy" else ""]
            shares[" ".join(word for word in words if word)] = value
    return shares
