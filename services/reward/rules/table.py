"""The rules by name. To add one: write a pure function in a file beside this one, and enter it in `RULES`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from services.reward.rules import gsm8k
from services.reward.rules.config import RuleConfig
from shared.scoring import ScoreItem

Rule = Callable[[ScoreItem, Any], float]
"""Item and the rule's own table to a number. Raises `Unscorable` for an item it can never score."""


class Row(NamedTuple):
    function: Rule
    table: type[RuleConfig] = RuleConfig
    pooled: bool = False
    """Whether it may hang or use up memory on some input, so that it must run in a killable process."""
    on_request: bool = True
    """Whether a request may name it when it is not configured; then it has its default parameters."""

    @property
    def description(self) -> str:
        return (self.function.__doc__ or "").partition("\n")[0]


RULES: dict[str, Row] = {
    "gsm8k_reward_fn": Row(gsm8k.gsm8k_reward_fn, gsm8k.TaggedConfig),
    "gsm8k_strict_reward_fn": Row(gsm8k.gsm8k_strict_reward_fn),
}
