"""The mathematics of PPO, as slow, literal Python loops in float64: what the tensor code is held against.

Lists of lists of floats, one inner list per completion and no padding at all.
"""

import math

Rows = list[list[float]]


def kl(logprobs: Rows, ref_logprobs: Rows, estimator: str) -> Rows:
    def one(logprob: float, ref: float) -> float:
        d = logprob - ref
        return {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]

    return [
        [one(p, q) for p, q in zip(*pair, strict=True)] for pair in zip(logprobs, ref_logprobs, strict=True)
    ]


def shaped_rewards(scores: list[float], kl_rows: Rows, kl_coef: float) -> Rows:
    rewards = [[-kl_coef * k for k in row] for row in kl_rows]
    for row, score in zip(rewards, scores, strict=True):
        if row:
            row[-1] += score
    return rewards


def advantages(rewards: Rows, values: Rows, gamma: float, gae_lambda: float) -> Rows:
    """The sum that defines GAE, term by term: A_t = sum over k of (gamma lambda)^k delta_{t+k}."""
    result = []
    for r, v in zip(rewards, values, strict=True):
        following = [*v[1:], 0.0]
        deltas = [r[t] + gamma * following[t] - v[t] for t in range(len(r))]
        result.append(
            [
                sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, len(r)))
                for t in range(len(r))
            ]
        )
    return result


def whitened(rows: Rows, shift_mean: bool = True) -> Rows:
    numbers = [x for row in rows for x in row]
    if len(numbers) < 2:
        return rows
    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)
    scale = 1 / math.sqrt(variance + 1e-8)
    return [[(x - mean) * scale + (0.0 if shift_mean else mean) for x in row] for row in rows]


def policy_loss(
    logprobs: Rows, old_logprobs: Rows, advantage_rows: Rows, clip_low: float, clip_high: float
) -> tuple[float, int, float, float]:
    """Sum of losses, number of clipped tokens, sum of k2 distances, sum of ratios."""
    loss, clipped, distance, ratios = 0.0, 0, 0.0, 0.0
    for new, old, adv in zip(logprobs, old_logprobs, advantage_rows, strict=True):
        for lp, olp, a in zip(new, old, adv, strict=True):
            ratio = math.exp(lp - olp)
            free = -a * ratio
            bounded = -a * min(max(ratio, 1 - clip_low), 1 + clip_high)
            loss += max(free, bounded)
            clipped += bounded > free
            distance += (lp - olp) ** 2 / 2
            ratios += ratio
    return loss, clipped, distance, ratios


def value_loss(values: Rows, old_values: Rows, returns: Rows, value_clip: float) -> tuple[float, int]:
    """Sum of losses, number of clipped tokens."""
    loss, clipped = 0.0, 0
    for new, old, ret in zip(values, old_values, returns, strict=True):
        for v, v_old, target in zip(new, old, ret, strict=True):
            near = v_old + min(max(v - v_old, -value_clip), value_clip)
            free, bounded = (v - target) ** 2, (near - target) ** 2
            loss += max(free, bounded) / 2
            clipped += bounded > free
    return loss, clipped
