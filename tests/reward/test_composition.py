"""From outcomes to a reward: choice per dataset, gates, thresholds and clips."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec import UNSET

from services.reward.composition import Composition, CompositionConfig
from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.protocol import Failure, Outcome, ScorerConfig, Steps
from shared.scoring import ScoreItem, ScoreResult, StepReward

ITEM = ScoreItem(response="r")


def compose(scorers: Mapping[str, Any], **composition: Any) -> Composition:
    tables = {
        name: ScorerConfig.model_validate(table if isinstance(table, dict) else {"weight": table})
        for name, table in scorers.items()
    }
    return Composition(tables, CompositionConfig.model_validate(composition))


def run(composition: Composition, outcomes: Mapping[str, Outcome], item: ScoreItem = ITEM) -> ScoreResult:
    """The result when each scorer gives what `outcomes` says, asked as the core asks."""
    known: dict[str, Outcome] = {}
    while wanted := composition.scorers_for(item, known):
        assert not known.keys() & set(wanted), "nobody is asked twice"
        known |= {name: outcomes[name] for name in wanted}
    return composition.result("0", item, known)


def of(dataset: str) -> ScoreItem:
    return ScoreItem(response="r", metadata={"dataset": dataset})


def test_the_reward_is_the_weighted_sum_and_components_are_as_the_scorers_gave_them() -> None:
    result = run(compose({"a": 2.0, "b": -1.0, "c": 0.0}), {"a": 1.5, "b": 1.0, "c": 9.0})
    assert (result.reward, result.components) == (2.0, {"a": 1.5, "b": 1.0, "c": 9.0})


def test_steps_enter_by_their_value_and_are_told() -> None:
    result = run(compose({"prm": 2.0}), {"prm": Steps(0.25, (0.5, 0.5))})
    assert (result.reward, result.components, result.steps) == (0.5, {"prm": 0.25}, {"prm": [0.5, 0.5]})


def test_placed_steps_enter_one_by_one_where_they_end() -> None:
    composition = compose({"prm": {"weight": 2.0, "clip": [0, 1], "place_steps": True}, "rule": 1.0})
    given: dict[str, Outcome] = {"prm": Steps(0.25, (0.5, 3.0, -1.0), (4, 9, 20)), "rule": 10.0}
    result = run(composition, given, ScoreItem(response="x" * 20))
    assert result.step_rewards == [StepReward(4, 1.0), StepReward(9, 2.0), StepReward(20, 0.0)]
    assert result.reward == 13.0, "the steps' sum and the rule, which is earned at the end"
    assert result.components == {"prm": 0.25, "rule": 10.0}


@pytest.mark.parametrize(
    "given",
    [0.5, Steps(0.5, (0.5, 0.5)), Steps(0.5, (0.5, math.nan), (0, 1)), Steps(0.5, (0.5, 0.5), (1, 2))],
)
def test_steps_that_cannot_be_placed_are_an_error(given: Outcome) -> None:
    result = run(compose({"prm": {"place_steps": True}}), {"prm": given})
    assert (result.reward, result.status, result.step_rewards) == (None, "error", UNSET)


def test_a_closed_gate_places_nothing() -> None:
    gate = {"scorer": "form", "at_least": 1, "otherwise": -1}
    composition = compose({"form": 0.0, "prm": {"place_steps": True}}, gates=[gate])
    result = run(composition, {"form": 0.0, "prm": Steps(1.0, (1.0,), (1,))})
    assert (result.reward, result.step_rewards) == (-1.0, UNSET)


@pytest.mark.parametrize(
    ("table", "given", "reward"),
    [
        ({"clip": [-1, 1]}, 7.0, 1.0),
        ({"clip": [-1, 1], "weight": 3}, -7.0, -3.0),
        ({"threshold": 0.5}, 0.5, 1.0),
        ({"threshold": 0.5, "weight": 2}, 0.4999, 0.0),
    ],
)
def test_clip_and_threshold_shape_the_sum_and_not_the_component(
    table: dict[str, Any], given: float, reward: float
) -> None:
    result = run(compose({"a": table}), {"a": given})
    assert (result.reward, result.components) == (reward, {"a": given})


def test_the_reward_is_clipped_as_a_whole() -> None:
    assert run(compose({"a": 1.0, "b": 1.0}, clip=[0, 1.5]), {"a": 1.0, "b": 1.0}).reward == 1.5
    assert run(compose({"a": 1e308, "b": 1e308}, clip=[0, 1]), {"a": 10.0, "b": 1.0}).reward is None, (
        "an overflow is an error, not the highest reward"
    )


GATE = {"scorer": "format", "at_least": 1.0, "otherwise": -1.0}


def test_a_closed_gate_sets_the_reward_and_nothing_else_is_asked() -> None:
    composition = compose({"answer": 1.0, "format": 0.5}, gates=[GATE])
    assert composition.scorers_for(ITEM, {}) == ["format"]
    assert run(composition, {"format": 1.0, "answer": 4.0}).reward == 4.5
    closed = run(composition, {"format": 0.9})
    assert (closed.reward, closed.status, closed.components) == (-1.0, "ok", {"format": 0.9})


def test_gates_are_tried_in_their_order_and_the_first_closed_one_counts() -> None:
    second = {"scorer": "safe", "at_least": 0.0, "otherwise": -9.0}
    composition = compose({"answer": 1.0, "safe": 0.0, "format": 0.0}, gates=[GATE, second])
    assert run(composition, {"format": 0.0}).reward == -1.0
    assert run(composition, {"format": 1.0, "safe": -0.1}).reward == -9.0
    assert run(composition, {"format": 1.0, "safe": 0.0, "answer": 2.0}).reward == 2.0


@pytest.mark.parametrize("outcome", [Failure("timeout", "was slow"), math.nan, math.inf, -math.inf])
def test_a_gate_that_fails_neither_opens_nor_closes(outcome: Outcome) -> None:
    result = run(compose({"answer": 1.0, "format": 1.0}, gates=[GATE]), {"format": outcome})
    assert result.reward is None and result.status in ("timeout", "error")
    assert str(result.error).startswith("format ")


def test_items_are_given_to_the_scorers_of_their_dataset() -> None:
    composition = compose(
        {"math": 1.0, "chat": 1.0, "format": 0.0},
        gates=[GATE],
        datasets={"gsm8k": {"math": 2.0, "format": 0.1}, "talk": {"chat": 1.0}},
    )
    outcomes = {"math": 3.0, "chat": 5.0, "format": 1.0}
    assert run(composition, outcomes, of("gsm8k")).reward == pytest.approx(6.1)
    talk = run(composition, outcomes, of("talk"))
    assert (talk.reward, talk.components) == (5.0, {"chat": 5.0}), "its gate does not score this dataset"
    for other in (ITEM, of("unknown"), ScoreItem(response="r", metadata={"dataset": ["gsm8k"]})):
        assert run(composition, outcomes, other).reward == 8.0


def test_the_key_of_the_dataset_can_be_chosen() -> None:
    composition = compose({"a": 1.0}, dataset_key="data_source", datasets={"x": {"a": 3.0}})
    assert run(composition, {"a": 1.0}, ScoreItem(response="r", metadata={"data_source": "x"})).reward == 3.0


@pytest.mark.parametrize(
    "failure", [Failure("error", "broke"), Failure("timeout", "slept"), Failure("invalid", "lacks it")]
)
def test_one_failure_leaves_no_reward_and_keeps_what_was_scored(failure: Failure) -> None:
    result = run(compose({"a": 1.0, "b": 0.0}), {"a": 2.0, "b": failure})
    assert (result.reward, result.status, result.components) == (None, failure.status, {"a": 2.0})
    assert result.error == f"b {failure.cause}"


@pytest.mark.parametrize(
    ("composition", "cause"),
    [
        ({"gates": [{"scorer": "gsm8k_reward", "at_least": 1}]}, "Did you mean 'gsm8k_reward_fn'"),
        ({"datasets": {"x": {"nope": 1.0}}}, "no scorer 'nope' is configured"),
        ({"clip": [1, 1]}, "must be below"),
        ({"clip": [0, math.nan]}, "finite"),
    ],
)
def test_a_composition_of_what_is_not_there_is_refused(composition: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        RewardConfig.model_validate({"composition": composition})


@pytest.fixture
def core() -> Iterator[ScoringCore]:
    config = {
        "scorers": {
            "gsm8k_strict_reward_fn": 1.0,
            "short": {"rule": "regex", "pattern": "x", "weight": 0.0},
        },
        "composition": {"gates": [{"scorer": "short", "at_least": 1.0, "otherwise": -1.0}]},
    }
    core = ScoringCore(RewardConfig.model_validate(config))
    yield core
    core.close()


def rewards(results: Sequence[ScoreResult]) -> list[float | None]:
    return [result.reward for result in results]


def test_the_core_asks_gates_first_and_the_rest_only_for_items_that_pass(core: ScoringCore) -> None:
    items = [ScoreItem(response=r, ground_truth="18") for r in ("x #### 18", "#### 18", "x #### 17")]
    results = core.score([*items, ScoreItem(response="no truth needed here")])
    assert rewards(results) == [1.0, -1.0, 0.0, -1.0]
    assert [list(result.components) for result in results] == [
        ["short", "gsm8k_strict_reward_fn"],
        ["short"],
        ["short", "gsm8k_strict_reward_fn"],
        ["short"],
    ]
    assert rewards(core.score(items, ["gsm8k_strict_reward_fn"])) == [1.0, 1.0, 0.0], "requests choose freely"


def test_a_dataset_without_any_scorer_is_refused_since_it_would_be_worth_0() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        CompositionConfig.model_validate({"datasets": {"gsm8k": {}}})
