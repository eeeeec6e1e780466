"""What every rule's `[reward.scorers.NAME]` table may hold."""

from typing import Literal

from services.reward.protocol import Context, Scorer, ScorerConfig


class RuleConfig(ScorerConfig):
    """A rule's own table adds its parameters to these keys."""

    kind: Literal["rule"] = "rule"
    rule: str
    """Name of the rule; without it, the name of the table. So one rule may serve under several names."""

    def build(self, name: str, context: Context) -> Scorer:
        from services.reward.rules.scorer import RuleScorer  # which knows the rules, which know this class

        return RuleScorer(name, self, context.pool)
