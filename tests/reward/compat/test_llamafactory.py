"""LLaMA-Factory's reward API, asked as `get_rewards_from_server` (commit 0b1f4a3) does it."""

import json

import pytest

from tests.reward.compat.wire import REQUESTS, Answer, post
from tests.reward.groups import RIGHT


def ask(url: str, messages: list[str]) -> Answer:
    return post(REQUESTS, f"{url}/v1/score/evaluation", {"model": "model", "messages": messages})


def get_rewards_from_server(url: str, messages: list[str]) -> list[float]:
    """Neither the status nor the length is looked at; `torch.Tensor` takes a list of numbers."""
    rewards = json.loads(ask(url, messages).text)["scores"]
    assert all(isinstance(reward, (int, float)) for reward in rewards)
    return list(rewards)


def test_scores_come_by_position(textual: str) -> None:
    assert get_rewards_from_server(textual, ["abc", "a", "abcde</s>", ""]) == [3.0, 1.0, 9.0, 0.0]


def test_the_answer_is_that_of_its_own_server(textual: str) -> None:
    answer = ask(textual, ["abc"]).json()
    assert answer.pop("id").startswith("scoreval-")
    assert answer == {"object": "score.evaluation", "model": "model", "scores": [3.0]}


def test_no_messages_are_400_as_on_its_own_server(textual: str) -> None:
    answer = ask(textual, [])
    assert (answer.status, answer.json()["detail"][0]["field"]) == (400, "messages")


def test_scorers_that_need_a_ground_truth_stop_the_run_at_the_first_batch(gsm8k: str) -> None:
    answer = ask(gsm8k, [RIGHT, RIGHT])
    assert answer.status == 422
    assert "gsm8k_reward_fn needs a ground_truth" in answer.json()["detail"][0]["message"]
    with pytest.raises(KeyError, match="scores"):
        get_rewards_from_server(gsm8k, [RIGHT])


@pytest.mark.parametrize("messages", [["ok", "fail"], [], [5], "text", None])
def test_no_error_can_be_trained_on(textual: str, messages: list[str]) -> None:
    answer = ask(textual, messages)
    assert answer.status >= 400
    assert "scores" not in answer.json()
