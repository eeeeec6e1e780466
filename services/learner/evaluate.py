"""Held-out evaluation through the same services that training uses, pinned to one policy version."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from services.learner.config.evaluation import EvaluationConfig
from services.learner.data.prompts import Row
from services.learner.feed import Feed
from shared.experience import Group, Prompt, Sampling, prompt_id

Mode = Literal["greedy", "sampled"]


class Evaluator:
    """Asks held-out prompts, once greedily and `evaluate_samples` times at `evaluate_temperature`."""

    def __init__(
        self,
        run: str,
        feed: Feed,
        datasets: Sequence[tuple[str, Sequence[Row]]],
        sampling: Sampling,
        config: EvaluationConfig,
    ) -> None:
        """
        Args:
            datasets: name and rows of each.
            sampling: how training completions are drawn; all but the temperature holds here too.
        """
        self._run = run
        self._feed = feed
        self._datasets = datasets
        self._config = config
        self._sampling: dict[Mode, Sampling] = {
            "greedy": msgspec.structs.replace(sampling, temperature=0.0),
            "sampled": msgspec.structs.replace(sampling, temperature=config.evaluate_temperature),
        }

    def run(self, version: int, count: int) -> tuple[dict[str, float], list[Group]]:
        """Evaluate the first `count` rows of each dataset under the published `version`.

        Returns:
            Metrics, and the groups for those who want to read them.
        """
        prompts = [
            self._prompt(name, row, mode, index, version)
            for name, rows in self._datasets
            for mode in self._sampling
            for index, row in enumerate(rows[:count])
        ]
        groups = self._feed.evaluate(prompts, version)
        metrics: dict[str, float] = {}
        for name, _ in self._datasets:
            for mode in self._sampling:
                metrics |= self._summary(f"eval/{name}/{mode}", _those_of(name, mode, groups))
            asked = sum(prompt.metadata["dataset"] == name for prompt in prompts)
            answered = [group.prompt for group in groups if group.prompt.metadata["dataset"] == name]
            metrics[f"eval/{name}/missing"] = asked - len(answered)
            metrics[f"eval/{name}/prompts"] = len({prompt.index for prompt in answered})
        return metrics, groups

    def _prompt(self, name: str, row: Row, mode: Mode, index: int, version: int) -> Prompt:
        purpose = f"eval/{name}/{mode}"
        return Prompt(
            id=prompt_id(self._run, purpose, version, index),
            purpose="eval",
            epoch=version,
            index=index,
            n=1 if mode == "greedy" else self._config.evaluate_samples,
            issued_version=version,
            text=row.text,
            token_ids=row.token_ids,
            # The same random numbers for every version: what changes is the policy.
            sampling=self._sampling[mode].of_prompt(purpose, 0, index),
            ground_truth=row.ground_truth,
            metadata={**row.metadata, "dataset": name, "evaluation": mode},
        )

    def _summary(self, name: str, groups: Sequence[Group]) -> dict[str, float]:
        if not groups:
            return {}
        completions = [completion for group in groups for completion in group.completions]
        rewards = [completion.reward for completion in completions if completion.reward is not None]
        assert len(rewards) == len(completions), "the feed accepts only scored groups"
        solved = [sum(self._is_solved(c.reward) for c in group.completions) for group in groups]
        accuracy = sum(solved) / len(completions)
        metrics = {
            f"{name}/accuracy": accuracy,
            f"{name}/reward": statistics.fmean(rewards),
            f"{name}/length": statistics.fmean(len(c.token_ids) for c in completions),
        }
        samples = len(groups[0].completions)
        if samples > 1:
            metrics[f"{name}/mean@{samples}"] = accuracy
        for k in _tries(samples):
            metrics[f"{name}/pass@{k}"] = statistics.fmean(pass_at(k, samples, count) for count in solved)
        return metrics

    def _is_solved(self, reward: float | None) -> bool:
        return reward is not None and reward >= self._config.success_reward


def pass_at(k: int, samples: int, solved: int) -> float:
    """Chance that of `k` completions at least one is right, estimated without bias from `samples` of which
    `solved` are.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.
    """
    assert 1 <= k <= samples and 0 <= solved <= samples
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def _tries(samples: int) -> list[int]:
    """The powers of two from 2 that are below `samples`, and `samples`; none of a single one."""
    below = [2**power for power in range(1, samples.bit_length()) if 2**power < samples]
    return [*below, samples] if samples > 1 else []


def _those_of(name: str, mode: Mode, groups: Sequence[Group]) -> list[Group]:
    wanted = (name, mode)
    facts = [(group.prompt.metadata["dataset"], group.prompt.metadata["evaluation"]) for group in groups]
    return [group for group, fact in zip(groups, facts, strict=True) if fact == wanted]
