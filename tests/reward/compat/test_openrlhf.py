"""OpenRLHF's `/get_reward`, asked and checked as `openrlhf/utils/agent.py` (commit 04655bc) does it."""

from typing import Any

import pytest

from tests.reward.compat.wire import AIOHTTP, Answer, post
from tests.reward.groups import RIGHT, WRONG

PROMPT = "<|im_start|>user\nWhat is 9+9? As in #### 5<|im_end|>\n<|im_start|>assistant\n"


def ask(url: str, queries: list[str], prompts: list[str], labels: list[Any]) -> Answer:
    return post(AIOHTTP, f"{url}/get_reward", {"query": queries, "prompts": prompts, "labels": labels})


def fetch(url: str, query: str, prompt: str, label: Any, servers: int = 1) -> dict[str, Any]:
    """`SingleTurnAgentExecutor._fetch_rewards_via_http` without its five tries, and what is read of it."""
    queries, prompts, labels = [query], [prompt], [label]
    size = (len(queries) + servers - 1) // servers
    answers = []
    for server in range(servers):
        start, end = server * size, min((server + 1) * size, len(queries))
        answer = ask(url, queries[start:end], prompts[start:end], labels[start:end])
        answer.raise_for_status()
        answers.append(answer.json())
    info = answers[0]
    read = {
        "reward": info.get("rewards"),
        "scores": info.get("scores") or info.get("rewards"),
        "extra_logs": info.get("extra_logs") or {},
    }
    # What follows puts each into torch.tensor, which takes numbers only and no ragged lists.
    for values in (read["reward"], read["scores"], *read["extra_logs"].values()):
        assert len(values) == 1 and isinstance(values[0], (int, float)), values
    return read


@pytest.mark.parametrize(("response", "reward"), [(RIGHT, 10.0), (WRONG, 1.0), ("no", 0.0)])
def test_one_sample_as_it_sends_it(gsm8k: str, response: str, reward: float) -> None:
    read = fetch(gsm8k, f"{PROMPT}{response}<|im_end|>", PROMPT, "18")
    assert read == {"reward": [reward], "scores": [reward], "extra_logs": {"gsm8k_reward_fn": [reward]}}


def test_the_empty_lists_for_further_servers_are_answered(gsm8k: str) -> None:
    assert fetch(gsm8k, PROMPT + RIGHT, PROMPT, "18", servers=3)["reward"] == [10.0]
    answer = ask(gsm8k, [], [], [])
    empty = {"rewards": [], "scores": [], "extra_logs": {"gsm8k_reward_fn": []}}
    assert (answer.status, answer.json()) == (200, empty)


def test_a_whole_batch_comes_back_in_order(gsm8k: str) -> None:
    responses = [RIGHT, WRONG, "no", RIGHT]
    answer = ask(gsm8k, [PROMPT + r for r in responses], [PROMPT] * 4, ["18"] * 4)
    assert answer.json()["rewards"] == [10.0, 1.0, 0.0, 10.0]
    assert answer.json()["extra_logs"] == {"gsm8k_reward_fn": [10.0, 1.0, 0.0, 10.0]}


def test_the_response_is_what_follows_the_prompt(textual: str) -> None:
    long = "a long prompt that was cut at its left"
    for query, prompt in ((f"<s>{long}abc", long), (f"{long[10:]}abc", long), ("abc", "")):
        answer = ask(textual, [query], [prompt], [None])
        assert answer.json()["rewards"] == [3.0], query


def test_a_client_of_2024_sends_queries_alone(textual: str) -> None:
    assert post(AIOHTTP, f"{textual}/get_reward", {"query": ["abcd"]}).json()["rewards"] == [4.0]


def test_forks_may_send_more_fields(textual: str) -> None:
    payload = {"query": ["abcd"], "prompts": ["a"], "labels": [None], "references": [""], "images": None}
    assert post(AIOHTTP, f"{textual}/get_reward", payload).json()["rewards"] == [3.0]


def test_a_label_that_is_a_number_is_its_text(gsm8k: str) -> None:
    assert fetch(gsm8k, PROMPT + RIGHT, PROMPT, 18)["reward"] == [10.0]


@pytest.mark.parametrize(
    ("query", "prompts", "labels", "item", "field"),
    [
        (["abc"], ["not in it"], ["18"], 0, "query"),
        (["abc", "abd"], ["a"], ["18", "18"], None, "prompts"),
        (["abc"], ["a"], [], None, "labels"),
        (["abc", 5], ["a", "a"], ["18", "18"], 1, "query"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_by_item_and_field(
    gsm8k: str, query: list[Any], prompts: list[str], labels: list[str], item: int | None, field: str
) -> None:
    answer = ask(gsm8k, query, prompts, labels)
    (problem,) = answer.json()["detail"]
    assert (answer.status, problem["item"], problem["field"]) == (422, item, field)


def test_a_failed_item_makes_the_whole_answer_an_error_that_is_tried_again(textual: str) -> None:
    answer = ask(textual, ["good", "fail", "good"], ["", "", ""], [None] * 3)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    (problem,) = answer.json()["detail"]
    assert problem["item"] == 1
    assert "judge is away" in problem["message"]
    assert answer.json().keys() == {"detail"}, "nothing that could be taken for rewards"
    with pytest.raises(ConnectionError):
        fetch(textual, "fail", "", None)


def test_an_item_that_can_never_be_scored_is_422(gsm8k: str) -> None:
    answer = ask(gsm8k, [PROMPT + RIGHT], [PROMPT], [None])
    assert answer.status == 422
    assert "needs a ground_truth" in answer.json()["detail"][0]["message"]
