"""Held-out evaluation over a real Redis; a thread plays the other services."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from services.learner.config.evaluation import EvaluationConfig
from services.learner.data.prompts import Row
from services.learner.evaluate import Evaluator, pass_at
from shared.entry import Entry
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan
from shared.stream import Streams
from tests.learner.both_hops import both_hops
from tests.learner.test_feed import make_feed

Rewards = Callable[[Prompt], list[float] | None]
"""Reward of each completion of a prompt; None if the prompt cannot be answered."""


@contextmanager
def services(streams: Streams, rewards: Rewards) -> Iterator[list[Prompt]]:
    """Answer every prompt in the background; yields the prompts that came."""
    came = list[Prompt]()

    def answer(entry: Entry, prompt: Prompt) -> Group | None:
        came.append(prompt)
        given = rewards(prompt)
        if given is None:
            streams.dead_letter(entry, "prompts", "rollout", "failed", "no answer", attempts=1)
            return None
        return scored(prompt, given)

    with both_hops(streams, answer):
        yield came


def scored(prompt: Prompt, rewards: list[float]) -> Group:
    assert len(rewards) == prompt.n
    completions = [
        Completion(
            token_ids=Int32Array([5, 6]),
            logprobs=Float32Array([-0.5, -0.25]),
            text="ok",
            finish_reason="stop",
            version_spans=[VersionSpan(prompt.issued_version, 2)],
            reward=reward,
        )
        for reward in rewards
    ]
    return Group(prompt=prompt, completions=completions, worker="w", weights_digest="d")


def rows(count: int) -> list[Row]:
    return [
        Row(f"prompt {number}", Int32Array([1, number]), str(number), {"from": "x"})
        for number in range(count)
    ]


def evaluator(streams: Streams, datasets: dict[str, int], sampling: Sampling, **config: object) -> Evaluator:
    asked = [(name, rows(count)) for name, count in datasets.items()]
    return Evaluator("run", make_feed(streams), asked, sampling, EvaluationConfig.model_validate(config))


def test_each_dataset_is_asked_greedily_and_sampled_and_has_metrics_of_its_own(streams: Streams) -> None:
    training = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, max_tokens=8, stop=("x",))
    evaluate = evaluator(streams, {"heldout": 4, "gsm8k": 2}, training, success_reward=10.0,
                         evaluate_temperature=0.5)  # fmt: skip

    def rewards(prompt: Prompt) -> list[float]:
        greedy = prompt.metadata["evaluation"] == "greedy"
        return [10.0] if prompt.metadata["dataset"] == "heldout" and (greedy or prompt.index == 0) else [1.0]

    with services(streams, rewards) as prompts:
        metrics, groups = evaluate.run(version=3, count=3)
    assert metrics == {
        "eval/heldout/greedy/accuracy": 1.0,
        "eval/heldout/greedy/reward": 10.0,
        "eval/heldout/greedy/length": 2.0,
        "eval/heldout/sampled/accuracy": pytest.approx(1 / 3),
        "eval/heldout/sampled/reward": 4.0,
        "eval/heldout/sampled/length": 2.0,
        "eval/heldout/missing": 0,
        "eval/heldout/prompts": 3,
        "eval/gsm8k/greedy/accuracy": 0.0,
        "eval/gsm8k/greedy/reward": 1.0,
        "eval/gsm8k/greedy/length": 2.0,
        "eval/gsm8k/sampled/accuracy": 0.0,
        "eval/gsm8k/sampled/reward": 1.0,
        "eval/gsm8k/sampled/length": 2.0,
        "eval/gsm8k/missing": 0,
        "eval/gsm8k/prompts": 2,
    }
    assert len(groups) == len(prompts) == 2 * (3 + 2)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert all(prompt.purpose == "eval" and prompt.issued_version == 3 for prompt in prompts)
    assert {prompt.sampling.temperature for prompt in prompts} == {0.0, 0.5}
    assert {(p.sampling.top_p, p.sampling.repetition_penalty, p.sampling.stop) for p in prompts} == {
        (0.9, 1.1, ("x",))
    }, "all but the temperature is as in training"
    assert all(prompt.metadata["from"] == "x" for prompt in prompts)


def test_several_samples_travel_as_one_group_and_give_mean_and_pass(streams: Streams) -> None:
    evaluate = evaluator(streams, {"heldout": 2}, Sampling(max_tokens=8), evaluate_samples=6)

    def rewards(prompt: Prompt) -> list[float]:
        return [1.0] * prompt.index + [0.0] * (prompt.n - prompt.index)

    with services(streams, rewards) as prompts:
        metrics, _ = evaluate.run(version=0, count=9)
    assert sorted(prompt.n for prompt in prompts) == [1, 1, 6, 6]
    assert metrics["eval/heldout/sampled/accuracy"] == pytest.approx(1 / 12)
    assert metrics["eval/heldout/sampled/mean@6"] == pytest.approx(1 / 12)
    assert metrics["eval/heldout/sampled/pass@2"] == pytest.approx((1 / 3) / 2)
    assert metrics["eval/heldout/sampled/pass@4"] == pytest.approx((2 / 3) / 2)
    assert metrics["eval/heldout/sampled/pass@6"] == pytest.approx(1 / 2)
    assert not [name for name in metrics if "greedy" in name and "@" in name]


def test_what_was_dead_lettered_is_counted_and_not_in_the_means(streams: Streams) -> None:
    evaluate = evaluator(streams, {"heldout": 3, "other": 1}, Sampling(max_tokens=8))

    def rewards(prompt: Prompt) -> list[float] | None:
        if prompt.metadata["dataset"] == "other":
            return None
        return None if prompt.index == 0 else [1.0]

    with services(streams, rewards):
        metrics, _ = evaluate.run(version=0, count=9)
    assert metrics["eval/heldout/missing"] == 2 and metrics["eval/heldout/greedy/accuracy"] == 1.0
    assert metrics["eval/other/missing"] == 2 and "eval/other/greedy/accuracy" not in metrics


def test_a_seed_gives_a_prompt_the_same_random_numbers_at_every_version(streams: Streams) -> None:
    evaluate = evaluator(streams, {"heldout": 2, "other": 2}, Sampling(max_tokens=8, seed=5))
    seeds = []
    for version in (1, 2):
        with services(streams, lambda prompt: [1.0]) as prompts:
            evaluate.run(version, count=9)
        seeds.append({(*p.metadata.values(), p.index): p.sampling.seed for p in prompts})
    assert seeds[0] == seeds[1] and len(set(seeds[0].values())) == 8


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(samples: int) -> None:
    for solved in range(samples + 1):
        outcomes = [True] * solved + [False] * (samples - solved)
        for k in range(1, samples + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at(k, samples, solved) == pytest.approx(sum(map(any, subsets)) / len(subsets))
