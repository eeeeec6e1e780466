"""Rules about how a response is framed, how long it is, and how often it repeats itself."""

from typing import Any

import pytest

from services.reward.protocol import Unscorable
from tests.reward.rules.asking import answer, ask, configure, tokens

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_each_tag_that_is_counted_right_is_a_quarter() -> None:
    assert ask("tag_count_reward_fn", answer("18")) == 1
    assert ask("tag_count_reward_fn", "<think>r</think> 18") == 0.5
    assert ask("tag_count_reward_fn", "<think><think>r</think>") == 0.25
    assert ask("tag_count_reward_fn", "") == 0


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ('{"name": "Ada", "age": 36}', 1),
        ('  {"name": "Ada"}\n', 1),
        ('```json\n{"name": "Ada"}\n```', 1),
        ('```\n{"name": "Ada"}\n```', 1),
        ('{"name": "Ada", "age": -1}', 0),
        ('{"name": "Ada", "age": NaN}', 0),
        ('{"name": "Ada", "name": "Eve"}', 0),
        ('{"name": "Ada"} and more', 0),
        ('{"age": 36}', 0),
        ("[" * 100_000, 0),
        ("9" * 5000, 0),
        ("", 0),
    ],
)
def test_json_must_satisfy_its_schema(response: str, reward: float) -> None:
    assert ask("json_schema", response, json_schema=PERSON) == reward
    assert ask("json_schema", response, metadata={"json_schema": PERSON}) == reward


def test_fences_and_place_of_the_json_may_be_fixed() -> None:
    fenced = '```json\n{"name": "Ada"}\n```'
    assert ask("json_schema", fenced, json_schema=PERSON, fences="refused") == 0
    assert ask("json_schema", '{"name": "Ada"}', json_schema=PERSON, fences="required") == 0
    assert ask("json_schema", fenced, json_schema=PERSON, fences="required") == 1
    assert ask("json_schema", answer('{"name": "Ada"}'), json_schema=PERSON, answer_in="tags") == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"json_schema": "no object"},
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": {"$schema": 5}},
        {"json_schema": {"$schema": []}},
        {"json_schema": {"$schema": "http://[bad"}},
    ],
)
def test_without_a_schema_nothing_can_be_judged(metadata: dict[str, Any]) -> None:
    with pytest.raises(Unscorable, match="json_schema"):
        ask("json_schema", "{}", metadata=metadata)


def test_a_wrong_schema_in_the_table_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="is not valid under any of the given schemas"):
        configure("json_schema", json_schema={"type": "nonsense"})


def test_no_reference_of_a_schema_is_fetched() -> None:
    with pytest.raises(Unscorable, match="Unresolvable"):
        ask("json_schema", "{}", json_schema={"$ref": "http://127.0.0.1:1/schema.json"})


@pytest.mark.parametrize(
    "schema", [{"$ref": "#/nowhere"}, {"$id": "http://[bad", "$ref": "x"}, {"$dynamicRef": "#x"}]
)
def test_a_schema_that_refers_to_nothing_cannot_judge(schema: dict[str, Any]) -> None:
    with pytest.raises(Unscorable, match="cannot be followed"):
        ask("json_schema", "{}", metadata={"json_schema": schema})


@pytest.mark.parametrize(
    ("length", "reward"), [(0, 0), (50, 0.5), (100, 1), (200, 1), (300, 0.5), (400, 0), (900, 0)]
)
def test_a_length_within_the_range_is_rewarded(length: int, reward: float) -> None:
    limits: dict[str, Any] = {"shortest": 100, "longest": 200}
    assert ask("length_reward_fn", "x" * length, unit="characters", **limits) == reward
    assert ask("length_reward_fn", "any text", metadata=tokens(length), **limits) == reward


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (101, -1), (10_000, -1)]
)
def test_the_overlong_penalty_is_that_of_dapo(length: int, penalty: float) -> None:
    found = ask("overlong_penalty_fn", "", metadata=tokens(length), max_length=100, buffer=20)
    assert found == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("length_reward_fn", {"shortest": 5, "longest": 4}, "must not be more"),
        ("length_reward_fn", {}, "longest: Field required"),
        ("overlong_penalty_fn", {"max_length": 5, "buffer": 6}, "must not be more"),
        ("overlong_penalty_fn", {"max_length": 5, "bufer": 6}, "unknown key 'bufer'. Did you mean 'buffer'?"),
        ("repetition_penalty_fn", {"max_penalty": 1.0}, "max_penalty"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        configure(name, **parameters)
    assert message in str(caught.value)


def test_repeated_ngrams_cost_their_share() -> None:
    assert ask("repetition_penalty_fn", "one two three four") == 0
    assert ask("repetition_penalty_fn", "one two") == 0
    assert ask("repetition_penalty_fn", "a b c A B C") == pytest.approx(-0.25), (
        "3 distinct of 4 after lower case"
    )
    assert ask("repetition_penalty_fn", "no " * 102) == pytest.approx(-0.99)
    assert ask("repetition_penalty_fn", "no " * 102, max_penalty=-2.0, ngram=2) == pytest.approx(-200 / 101)
