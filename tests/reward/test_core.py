"""The scoring core: weights, components, and a status wherever there is no number."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.protocol import NEVER, Kind, Outcome
from services.reward.rules.table import RULES, Row
from shared.scoring import ScoreItem
from tests.reward.groups import RIGHT, UNFINISHED, WRONG


def make_core(scorers: dict[str, Any], limit: int = 65536) -> ScoringCore:
    return ScoringCore(RewardConfig.model_validate({"scorers": scorers, "max_response_characters": limit}))


def item(response: str, ground_truth: str | None = "18") -> ScoreItem:
    return ScoreItem(response=response, ground_truth=ground_truth)


def test_results_come_in_order_with_ids_or_positions() -> None:
    items = [item(RIGHT), ScoreItem(id="b", response=WRONG, ground_truth="18"), item(UNFINISHED)]
    results = make_core({"gsm8k_reward_fn": 1.0}).score(items)
    assert [(r.id, r.reward, r.status) for r in results] == [
        ("0", 10.0, "ok"),
        ("b", 1.0, "ok"),
        ("2", 0.0, "ok"),
    ]


def test_the_reward_is_the_weighted_sum_and_components_stay_unweighted() -> None:
    core = make_core({"gsm8k_reward_fn": 0.5, "gsm8k_strict_reward_fn": 0.0})
    (result,) = core.score([item(RIGHT)])
    assert result.reward == 5.0
    assert result.components == {"gsm8k_reward_fn": 10.0, "gsm8k_strict_reward_fn": 0.0}


def test_scorers_named_in_the_request_replace_the_configured_ones() -> None:
    core = make_core({"gsm8k_reward_fn": 0.5})
    (result,) = core.score([item("#### 18")], ["gsm8k_strict_reward_fn"])
    assert (result.reward, result.components) == (1.0, {"gsm8k_strict_reward_fn": 1.0})
    with pytest.raises(ValueError, match="unknown scorer 'nope'"):
        core.score([item(RIGHT)], ["nope"])
    with pytest.raises(ValueError, match="empty"):
        core.score([item(RIGHT)], [])


def test_a_scorer_that_raises_spoils_only_its_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "inverse", Row(lambda item, config: 1 / int(item.response)))
    results = make_core({"inverse": 1.0}).score([item("2"), item("0"), item("4")])
    assert [(r.reward, r.status) for r in results] == [(0.5, "ok"), (None, "error"), (0.25, "ok")]
    assert results[1].error == "inverse raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_an_error_not_a_reward(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setitem(RULES, "odd", Row(lambda item, config: value))
    (result,) = make_core({"odd": 1.0, "gsm8k_reward_fn": 1.0}).score([item(RIGHT)])
    assert (result.reward, result.status, result.error) == (None, "error", f"odd gave {value}")
    assert result.components == {"gsm8k_reward_fn": 10.0}, "what was scored is still told"


def test_a_sum_that_overflows_is_an_error() -> None:
    (result,) = make_core({"gsm8k_reward_fn": 1e308}).score([item(RIGHT)])
    assert (result.reward, result.status) == (None, "error")


def test_an_item_that_can_never_be_scored_is_invalid() -> None:
    core = make_core({"gsm8k_reward_fn": 1.0}, limit=100)
    missing, long, fine = core.score([item(RIGHT, None), item("x" * 101), item("x" * 100)])
    assert (missing.reward, missing.status) == (None, "invalid")
    assert missing.error == "gsm8k_reward_fn needs a ground_truth, and the item has none"
    assert (long.reward, long.status) == (None, "invalid")
    assert "101 characters" in str(long.error)
    assert (fine.reward, fine.status) == (0.0, "ok")


@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "<think>", "#### ", "#### 1,", "9", "<answer>1</answer>"]
)
def test_the_longest_response_of_any_kind_is_scored_at_once(piece: str) -> None:
    response = (piece * 65536)[:65536]
    core = make_core({"gsm8k_reward_fn": 1.0, "gsm8k_strict_reward_fn": 1.0})
    start = time.perf_counter()
    (result,) = core.score([item(response)])
    assert result.status == "ok"
    assert time.perf_counter() - start < 15, "a quadratic search takes minutes"


def test_a_rule_that_hangs_is_a_timeout_and_the_other_scorers_are_still_told() -> None:
    core = make_core({"math_verify": {"deadline_seconds": 0.5}, "gsm8k_reward_fn": 1.0})
    try:
        core.score([item(RIGHT)])
        hanging = item(r"<think>r</think>\boxed{9^{9^{9^{9}}}}", "2")
        fine, late = core.score([item(RIGHT), hanging])
    finally:
        core.close()
    assert (fine.reward, fine.components) == (11.0, {"math_verify": 1.0, "gsm8k_reward_fn": 10.0})
    assert (late.reward, late.status, late.error) == (None, "timeout", "math_verify took longer than 0.5 s")
    assert late.components == {"gsm8k_reward_fn": 0.0}


class Meeting:
    """A scorer that works only while the other one does."""

    kind: Kind = "plugin"
    description = ""
    waits = True

    def __init__(self, name: str, other: threading.Barrier) -> None:
        self.name, self._other = name, other
        self.parameters: dict[str, Any] = {}

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        self._other.wait(30)
        return [1.0] * len(items)

    def close(self) -> None:
        pass


def test_scorers_that_are_waited_for_work_at_the_same_time() -> None:
    core = make_core({"gsm8k_reward_fn": 1.0, "format_reward_fn": 2.0, "gsm8k_tag_reward_fn": 1.0})
    both = threading.Barrier(2)
    for name in ("gsm8k_reward_fn", "format_reward_fn"):
        core._scorers[name] = Meeting(name, both)
    (result,) = core.score([item(RIGHT)])
    core.close()
    assert result.components == {"gsm8k_reward_fn": 1.0, "format_reward_fn": 1.0, "gsm8k_tag_reward_fn": 1.0}
    assert list(result.components) == ["gsm8k_reward_fn", "format_reward_fn", "gsm8k_tag_reward_fn"]
    assert result.reward == 4.0


def test_rules_that_run_programs_cannot_be_switched_on_by_a_request() -> None:
    core = make_core({"gsm8k_reward_fn": 1.0})
    with pytest.raises(ValueError, match="unknown scorer 'code_tests'"):
        core.score([item(RIGHT)], ["code_tests"])
    assert "code_tests" not in core.describe()["available"]


def test_the_description_tells_whether_the_pool_is_cut_off_from_the_network() -> None:
    core = make_core({"math_verify": {"deadline_seconds": 20}})
    try:
        assert core.describe()["pool"] == {"own_network": None}
        core.score([item("18")])
        assert isinstance(core.describe()["pool"]["own_network"], bool)
    finally:
        core.close()
