"""Rewards for how a response is framed: tags, and JSON of a given shape."""

import json
from typing import Any, Literal

from pydantic import field_validator

from services.reward.math_answer import has_structure
from services.reward.protocol import Unscorable
from services.reward.rules.colossalchat import TaggedConfig
from services.reward.rules.match import AnswerConfig, find_answer
from shared.scoring import ScoreItem


class JsonSchemaConfig(AnswerConfig):
    json_schema: dict[str, Any] | None = None
    """The JSON Schema to satisfy; without it, each item has its own as `metadata.json_schema`."""
    fences: Literal["allowed", "required", "refused"] = "allowed"
    """Whether the JSON stands between Markdown's fences."""

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None and (problem := schema_problem(schema)):
            raise ValueError(problem)
        return schema


def format_reward_fn(item: ScoreItem, config: TaggedConfig) -> float:
    """1 if every tag occurs as often as it must, the first ones in order, and the last ends the text, else 0.

    Source: ColossalChat, `validate_response_structure`; the format half of its rewards, by itself.
    """
    return float(has_structure(item.response, config.tags))


def tag_count_reward_fn(item: ScoreItem, config: TaggedConfig) -> float:
    """A quarter for each of the four tags that occurs as often as it must, in any order.

    Source: open-r1, `tag_count_reward`, but with the configured tags instead of tags with line breaks.
    """
    return sum(item.response.count(tag.text) == tag.num_occur for tag in config.tags.in_order) / 4


def json_schema(item: ScoreItem, config: JsonSchemaConfig) -> float:
    """1 if the answer is JSON that satisfies the schema, else 0.

    NaN, infinities and repeated keys are no JSON here. References to other documents are not followed.

    Raises:
    Unscorable: no schema in the configuration and none, or a wrong one, in `metadata.json_schema`; a schema
        that refers to what is not in it.
    Source: JSON Schema, by the draft that `$schema` names (2020-12 without), as jsonschema checks it.
    """
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = config.json_schema
    if schema is None:
        schema = item.metadata.get("json_schema")
        if not isinstance(schema, dict):
            raise Unscorable(
                "needs a json_schema in its table, or an object metadata.json_schema in the item"
            )
        if problem := schema_problem(schema):
            raise Unscorable(f"has a metadata.json_schema that is none: {problem}")
    answer = find_answer(item.response, config)
    text = None if answer is None else _without_fences(answer.strip(), config.fences)
    if text is None:
        return 0.0
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):  # no JSON, or nested past any use
        return 0.0
    try:
        validator = validator_for(schema)(schema, registry=Registry())  # an empty one: nothing is fetched
        return float(validator.is_valid(value))
    except RecursionError:
        return 0.0
    except (Unresolvable, ValueError) as error:  # the schema's fault, and not the response's
        raise Unscorable(f"has a json_schema that cannot be followed: {error}") from error


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why `schema` is no JSON Schema; None if it is one."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    draft = schema.get("$schema", "")
    if not isinstance(draft, str):
        return f"at $['$schema']: {draft!r} is no text"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"at {error.json_path}: {error.message}"
    except ValueError as error:  # of a $schema that is no address
        return f"at $['$schema']: {error}"
    return None


def _without_fences(text: str, fences: str) -> str | None:
    fenced = len(text) > 6 and text.startswith("```") and text.endswith("```")
    if fences == "refused" or not fenced:
        return None if fences == "required" else text
    return text[3:-3].removeprefix("json")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
