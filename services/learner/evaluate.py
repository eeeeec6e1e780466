"""Held-out evaluation through the same services that training uses, pinned to one policy version."""

import statistics
from collections.abc import Sequence
from typing import Any

from services.learner.data.prompts import Row
from services.learner.feed import Feed
from shared.experience import Group, Prompt, Sampling, prompt_id

MODES = {"greedy": 0.0, "sampled": 1.0}
"""Temperature of each way of answering."""


class Evaluator:
    """Asks held-out prompts and reports accuracy: the share of completions with at least `success_reward`."""

    def __init__(
        self, run: str, feed: Feed, rows: Sequence[Row], max_tokens: int, success_reward: float
    ) -> None:
        self._run = run
        self._feed = feed
        self._rows = rows
        self._max_tokens = max_tokens
        self._success_reward = success_reward

    def run(self, version: int, count: int) -> tuple[dict[str, float], list[Group]]:
        """Evaluate the first `count` rows, greedily and sampled, under the published `version`.

        Returns:
            Metrics, and the groups for those who want to read them.
        """
        prompts = [
            self._prompt(mode, temperature, index, version)
            for mode, temperature in MODES.items()
            for index in range(min(count, len(self._rows)))
        ]
        groups = self._feed.evaluate(prompts, version)
        metrics: dict[str, float] = {}
        for mode in MODES:
            of_mode = [group for group in groups if group.prompt.metadata["evaluation"] == mode]
            metrics |= self._summary(mode, of_mode)
        metrics["eval/heldout/missing"] = len(prompts) - len(groups)
        return metrics, groups

    def _prompt(self, mode: str, temperature: float, index: int, version: int) -> Prompt:
        row = self._rows[index]
        metadata: dict[str, Any] = {**row.metadata, "evaluation": mode}
        return Prompt(
            id=prompt_id(self._run, f"eval/{mode}", version, index),
            purpose="eval",
            epoch=version,
            index=index,
            n=1,
            issued_version=version,
            text=row.text,
            token_ids=row.token_ids,
            sampling=Sampling(temperature=temperature, max_tokens=self._max_tokens),
            ground_truth=row.ground_truth,
            metadata=metadata,
        )

    def _summary(self, mode: str, groups: Sequence[Group]) -> dict[str, float]:
        if not groups:
            return {}
        completions = [group.completions[0] for group in groups]
        rewards = [completion.reward for completion in completions if completion.reward is not None]
        assert len(rewards) == len(groups), "the feed accepts only scored groups"
        return {
            f"eval/heldout/{mode}/accuracy": statistics.fmean(r >= self._success_reward for r in rewards),
            f"eval/heldout/{mode}/reward": statistics.fmean(rewards),
            f"eval/heldout/{mode}/length": statistics.fmean(len(c.token_ids) for c in completions),
        }
