"""Any text to any rule: a finite number or `Unscorable`, never anything else, and never slowly."""

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.external import sandbox
from services.reward.protocol import Unscorable
from services.reward.rules import code
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem
from tests.reward.rules.asking import ask

LONG = 2**20
PARAMETERS: dict[str, dict[str, Any]] = {
    "regex": {"pattern": r"(a+)+$"},
    "length_reward_fn": {"longest": 100},
    "overlong_penalty_fn": {"max_length": 100, "buffer": 20},
    "json_schema": {"json_schema": {"type": "object", "additionalProperties": {"pattern": "^a+$"}}},
}
IN_PLACE = [name for name, row in RULES.items() if not row.pooled]
POOLED = [name for name, row in RULES.items() if row.pooled and not row.configured_only]
TOKENS = {"rollstream": {"completion_tokens": 90}}
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "#### ", "Answer: ", "```json"]
SIGNS = [r"\boxed{", "{", "}", '{"a":', "[", "$", r"\frac", "**", "-", "B", "1,", "9" * 50, "\n", " "]
ODD = ["\0", "\u202e", "\u0661", "\ud800", "é"]
PIECES = [*TAGS, *SIGNS, *ODD]
SHORT_TEXT = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
)


@pytest.mark.parametrize("name", IN_PLACE)
def test_no_text_makes_a_rule_raise_or_give_what_is_no_number(name: str) -> None:
    @settings(max_examples=100, deadline=None, database=None)
    @given(ANY_TEXT, st.one_of(st.none(), ANY_TEXT, st.just("B")))
    def check(response: str, truth: str | None) -> None:
        try:
            value = ask(name, response, truth, TOKENS, **PARAMETERS.get(name, {}))
        except Unscorable:
            return
        assert math.isfinite(value)

    check()


@pytest.mark.parametrize(
    "piece", [*PIECES, "a", "1", "A ", "word ", "<answer>1</answer>", r"\boxed{1}", "#### 1,"]
)
def test_no_megabyte_of_anything_takes_a_rule_long(piece: str) -> None:
    response = (piece * (LONG // len(piece) + 1))[:LONG]
    for name in IN_PLACE:
        start = time.process_time()
        assert math.isfinite(ask(name, response, "B", TOKENS, **PARAMETERS.get(name, {})))
        took = time.process_time() - start
        assert took < 4, f"{name} took {took:.1f} s; a quadratic search takes minutes"


@pytest.fixture(scope="module")
def core() -> Iterator[ScoringCore]:
    scorers = {name: {"deadline_seconds": 1.0, **PARAMETERS.get(name, {})} for name in POOLED}
    core = ScoringCore(RewardConfig.model_validate({"scorers": scorers, "max_response_characters": LONG}))
    yield core
    core.close()


HANGING = [
    r"\boxed{9^{9^{9^{9}}}}",
    "<think>r</think><answer>10**10**10**10</answer>",
    r"\boxed{" + "1+" * 20_000 + "1}",
    r"\boxed{" + r"\sqrt{" * 500 + "2" + "}" * 501,
    r"\boxed{" + "9" * 100_000 + "!}",
    r"\boxed{\int_0^{9999} x^{x^{x}} dx}",
    "$" + r"\frac{1}{" * 300 + "x" + "}" * 300 + "$",
    '{"a": "' + "a" * 200_000 + '!"}',
    "[" * 200_000,
    "9" * LONG,
]


@pytest.mark.parametrize("response", HANGING, ids=range(len(HANGING)))
def test_what_hangs_or_blows_up_costs_its_own_deadline_only(core: ScoringCore, response: str) -> None:
    items = [
        ScoreItem(response=text, ground_truth="2") for text in (r"\boxed{2}", response, "<answer>2</answer>")
    ]
    core.score(items[:1])  # the processes are warm
    start = time.monotonic()
    first, hanging, last = core.score(items)
    assert time.monotonic() - start < 2.0 * len(POOLED) + 3
    assert (first.status, last.status) == ("ok", "ok")
    assert first.components["math_verify"] == last.components["math_verify"] == 1
    assert hanging.status in {"ok", "timeout", "error"}
    assert all(math.isfinite(value) for value in hanging.components.values())


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.tuples(SHORT_TEXT, st.one_of(st.none(), st.just("2"), SHORT_TEXT)), max_size=8))
def test_any_text_leaves_the_pool_in_order(core: ScoringCore, texts: list[tuple[str, str | None]]) -> None:
    items = [ScoreItem(response=text, ground_truth=truth) for text, truth in texts]
    probe = ScoreItem(response=r"\boxed{2}", ground_truth="2")
    *results, last = core.score([*items, probe])
    assert last.components["math_verify"] == 1
    for result in results:
        assert result.status in {"ok", "timeout", "error", "invalid"}
        assert (result.reward is None) == (result.status != "ok")


CODE = st.lists(st.sampled_from(["```", "```python", "```py\n", "\n", "    ", "print(1)", *ODD]), max_size=30)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.sampled_from(["inputs", "outputs"]), some),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, database=None)
@given(CODE.map("".join), st.booleans())
def test_any_text_has_a_program_or_none(response: str, fence_required: bool) -> None:
    inside = code.last_program(response, fence_required)
    assert (inside is None) == (fence_required and "```python" not in response)
    assert inside is None or inside in response
    outside = sandbox.last_program(response)
    assert outside is None or (outside.strip() and outside in response)


@settings(max_examples=200, deadline=None, database=None)
@given(st.dictionaries(st.sampled_from(["tests", "test_cases"]), JSON))
def test_any_tests_are_cases_or_unscorable(metadata: dict[str, Any]) -> None:
    try:
        cases = code.read_cases(metadata, 3)
    except Unscorable:
        return
    assert 1 <= len(cases) <= 3
    for case in cases:
        assert (case.addition is None) == ("tests" not in metadata or not metadata["tests"])
        assert isinstance(case.stdin, str) and isinstance(case.stdout, str)


@pytest.mark.parametrize(
    "piece", [*PIECES, "```", "```python\n", "   ```", " ", "Answer :", "Score:", "\\text{"]
)
def test_no_megabyte_of_anything_takes_the_search_for_a_program_long(piece: str) -> None:
    response = (piece * (LONG // len(piece) + 1))[:LONG]
    start = time.process_time()
    code.last_program(response, True)
    sandbox.last_program(response)
    assert time.process_time() - start < 4, "a quadratic search takes minutes"
