"""From a `[reward.scorers.NAME]` table, as written, to the checked configuration of its kind."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from services.reward.external.config import ExternalConfig
from services.reward.math_answer import Tags
from services.reward.neural.config import NeuralConfig
from services.reward.plugin.config import PluginConfig
from services.reward.protocol import ScorerConfig
from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES

KINDS: dict[str, type[ScorerConfig]] = {
    "neural": NeuralConfig,
    "external": ExternalConfig,
    "plugin": PluginConfig,
}
"""The tables of the kinds other than `rule`, whose table depends on the rule."""


def parse_scorer(name: str, written: Any, tags: Tags) -> ScorerConfig:
    """The configuration of scorer `name`: a number is its weight, a table has its kind's keys.

    tags: those of `[reward]`, for rules that look for tags and are not told of others.

    Raises:
    ValueError: one sentence per mistake, with a suggestion.
    """
    if isinstance(written, ScorerConfig):
        return written
    table = dict(written) if isinstance(written, Mapping) else {"weight": written}
    kind = table.setdefault("kind", "rule")
    if kind == "rule":
        model: type[ScorerConfig] = rule_table(table.setdefault("rule", name))
        if "tags" in model.model_fields:
            table.setdefault("tags", tags)
    elif kind in KINDS:
        model = KINDS[kind]
    else:
        raise ValueError(f"scorer {name!r}: unknown kind {kind!r}. {suggestion(str(kind), ['rule', *KINDS])}")
    try:
        return model.model_validate(table)
    except ValidationError as error:
        problems = [_explain(model, item) for item in error.errors()]
        raise ValueError("; ".join(f"scorer {name!r}: {problem}" for problem in problems)) from error


def rule_table(rule: str) -> type[RuleConfig]:
    """Raises:
    ValueError: no rule has this name; the message suggests one.
    """
    if rule in RULES:
        return RULES[rule].table
    raise ValueError(f"unknown scorer {rule!r}. {suggestion(rule, RULES)}")


def suggestion(word: str, known: Collection[str]) -> str:
    """What was probably meant by `word`, else all that is known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."


def _explain(model: type[ScorerConfig], item: Any) -> str:
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
        return f"unknown key {where!r}. {suggestion(where, model.model_fields)}"
    said = item["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
