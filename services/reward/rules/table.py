"""The rules by name. To add one: write a pure function in a file beside this one, and enter it in `RULES`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from services.reward.protocol import Steps
from services.reward.rules import choice, code, colossalchat, form, gsm8k, length, match, math_equal
from services.reward.rules.config import RuleConfig
from shared.scoring import ScoreItem

Rule = Callable[[ScoreItem, Any], float | Steps]
"""Item and the rule's own table to a number, or to several for its steps.

Raises `Unscorable` for an item it can never score.
"""


class Row(NamedTuple):
    function: Rule
    table: type[RuleConfig] = RuleConfig
    pooled: bool = False
    """Whether it may hang or use up memory on some input, so that it must run in a killable process."""
    configured_only: bool = False
    """Whether it is off unless the configuration names it."""
    gives_way: bool = True
    """Whether a slow item runs on at low priority; not where the rule itself measures time."""
    modules: tuple[str, ...] = ()
    """What it imports when it runs, because that takes long: found at the start, imported in the pool. A
    `warm_up` in one of them is called in each process."""

    @property
    def description(self) -> str:
        return (self.function.__doc__ or "").partition("\n")[0]

    @property
    def on_request(self) -> bool:
        """Whether a request may name it when it is not configured: it must do without any parameter."""
        return not self.configured_only and not any(
            field.is_required() for key, field in self.table.model_fields.items() if key != "rule"
        )


MATH_VERIFY = ("math_verify", "services.reward.rules.math_warm")
JSONSCHEMA = ("jsonschema", "referencing")

RULES: dict[str, Row] = {
    "gsm8k_reward_fn": Row(colossalchat.gsm8k_reward_fn, colossalchat.TaggedConfig),
    "math_competition_reward_fn": Row(colossalchat.math_competition_reward_fn, colossalchat.TaggedConfig),
    "math_reward_fn": Row(
        colossalchat.math_reward_fn, colossalchat.AccuracyConfig, True, modules=MATH_VERIFY
    ),
    "boxed_math_reward_fn": Row(
        colossalchat.boxed_math_reward_fn, colossalchat.BoxedConfig, True, modules=MATH_VERIFY
    ),
    "gsm8k_strict_reward_fn": Row(gsm8k.gsm8k_strict_reward_fn),
    "gsm8k_last_number_reward_fn": Row(gsm8k.gsm8k_last_number_reward_fn),
    "gsm8k_tag_reward_fn": Row(gsm8k.gsm8k_tag_reward_fn, colossalchat.TaggedConfig),
    "math_verify": Row(math_equal.math_verify, math_equal.MathVerifyConfig, True, modules=MATH_VERIFY),
    "multiple_choice": Row(choice.multiple_choice, choice.ChoiceConfig),
    "exact_match": Row(match.exact_match, match.MatchConfig),
    "fuzzy_match": Row(match.fuzzy_match, match.MatchConfig, True),
    "regex": Row(match.regex, match.PatternConfig),
    "format_reward_fn": Row(form.format_reward_fn, colossalchat.TaggedConfig),
    "tag_count_reward_fn": Row(form.tag_count_reward_fn, colossalchat.TaggedConfig),
    "json_schema": Row(form.json_schema, form.JsonSchemaConfig, True, modules=JSONSCHEMA),
    "length_reward_fn": Row(length.length_reward_fn, length.LengthConfig),
    "overlong_penalty_fn": Row(length.overlong_penalty_fn, length.OverlongConfig),
    "repetition_penalty_fn": Row(length.repetition_penalty_fn, length.RepetitionConfig),
    "code_tests": Row(code.code_tests, code.CodeConfig, True, configured_only=True, gives_way=False),
}
