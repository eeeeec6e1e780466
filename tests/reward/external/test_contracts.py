"""Every contract over real sockets: the request as its server wants it, the numbers where it puts them."""

import math
from typing import Any

import pytest

from services.reward.external.config import ExternalConfig
from services.reward.protocol import Failure, Outcome, Steps
from shared.scoring import ScoreItem
from tests.reward.external.servers import Reply, ask, items, scorer_of, serving

VLLM_ROW = {"label": "LABEL_0", "num_classes": 1}

TEXTS = {"input": ["ask: a", "ask: b"], "add_special_tokens": True}

# contract settings, the request for two items, the reply to it
SPOKEN: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "vllm_classify": (
        {"model": "rm"},
        {"model": "rm", "use_activation": False, **TEXTS},
        {"data": [{"index": 0, "probs": [1.5], **VLLM_ROW}, {"index": 1, "probs": [-2.0], **VLLM_ROW}]},
    ),
    "vllm_pooling": (
        {"model": "rm"},
        {"model": "rm", "use_activation": False, **TEXTS, "task": "classify"},
        {"data": [{"index": 0, "data": [1.5]}, {"index": 1, "data": [-2.0]}]},
    ),
    "sglang_classify": (
        {"model": "rm"},
        {"model": "rm", "text": ["ask: a", "ask: b"]},
        [{"embedding": [1.5], "meta_info": {}}, {"embedding": [-2.0], "meta_info": {}}],
    ),
    "tei_predict": (
        {},
        {"inputs": [["ask: a"], ["ask: b"]], "raw_scores": True, "truncate": False},
        [[{"score": 1.5, "label": "LABEL_0"}], [{"score": -2.0, "label": "LABEL_0"}]],
    ),
    "openrlhf": (
        {},
        {"query": ["ask: a", "ask: b"], "prompts": ["ask: ", "ask: "], "labels": ["18", "18"]},
        {"rewards": [1.5, -2.0], "scores": [0.5, 0.0], "extra_logs": {"x": [1, 2]}},
    ),
    "llamafactory": (
        {},
        {"model": "model", "messages": ["ask: a", "ask: b"]},
        {"id": "scoreval-1", "object": "score.evaluation", "model": "model", "scores": [1.5, -2.0]},
    ),
}


@pytest.mark.parametrize("contract", SPOKEN)
def test_a_contract_sends_its_request_and_reads_its_reply(contract: str) -> None:
    settings, request, reply = SPOKEN[contract]
    with serving(lambda _: Reply(reply)) as server:
        with scorer_of(server.url + "/score", contract=contract, **settings) as scorer:
            assert scorer.score(items("a", "b", ground_truth="18"), 5.0) == [1.5, -2.0]
        (seen,) = server.seen
        assert (seen.path, seen.body) == ("/score", request)


def spoil(reply: Any, change: Any) -> Any:
    """`reply` with its number 1.5 replaced."""
    if isinstance(reply, dict):
        return {key: spoil(value, change) for key, value in reply.items()}
    if isinstance(reply, list):
        return [spoil(value, change) for value in reply]
    return change if reply == 1.5 else reply


def shorten(reply: Any) -> Any:
    if isinstance(reply, dict):
        return {key: value[:-1] if isinstance(value, list) else value for key, value in reply.items()}
    return reply[:-1]


def failed(outcomes: list[Outcome], cause: str = "") -> bool:
    return all(isinstance(o, Failure) and o.status == "error" and cause in o.cause for o in outcomes)


@pytest.mark.parametrize("contract", SPOKEN)
@pytest.mark.parametrize("wrong", [None, math.nan, math.inf, True, "1.5", [], [1.0, 2.0], {}, 10**400])
def test_what_is_no_number_costs_its_own_item_and_no_other(contract: str, wrong: Any) -> None:
    settings, _, reply = SPOKEN[contract]
    first, second = ask(lambda _: Reply(spoil(reply, wrong)), items("a", "b"), contract=contract, **settings)
    assert failed([first], "got no score") and second == -2.0


@pytest.mark.parametrize("contract", SPOKEN)
def test_a_reply_with_a_score_too_few_gives_no_scores(contract: str) -> None:
    settings, _, reply = SPOKEN[contract]
    outcomes = ask(lambda _: Reply(shorten(reply)), items("a", "b"), contract=contract, **settings)
    assert failed(outcomes, "1 scores for 2 items")


@pytest.mark.parametrize("contract", SPOKEN)
@pytest.mark.parametrize("reply", [None, 3, "text", [], {}, [[]], {"data": 1}, {"scores": None}])
def test_a_reply_of_another_shape_gives_no_scores(contract: str, reply: Any) -> None:
    settings = SPOKEN[contract][0]
    assert failed(ask(lambda _: Reply(reply), items("a", "b"), contract=contract, **settings))


def test_rows_in_another_order_are_refused() -> None:
    rows = [{"index": 1, "probs": [1.0]}, {"index": 0, "probs": [2.0]}]
    outcomes = ask(lambda _: Reply({"data": rows}), items("a", "b"), contract="vllm_classify")
    assert failed(outcomes, "not in the order")


def test_one_reward_may_stand_without_its_list() -> None:
    assert ask(lambda _: Reply({"rewards": 0.5}), items("a"), contract="openrlhf") == [0.5]


def test_the_scores_of_steps_are_told_and_aggregated() -> None:
    reply = {"data": [{"index": 0, "data": [[0.1, 0.9], [0.5, 0.5]]}]}
    outcomes = ask(
        lambda _: Reply(reply),
        items("a"),
        contract="vllm_pooling",
        task="token_classify",
        aggregation="product",
    )
    assert outcomes == [Steps(0.45, (0.9, 0.5))]


@pytest.mark.parametrize("contract", ["vllm_classify", "vllm_pooling"])
def test_vllm_adds_no_special_tokens_to_a_text_that_has_them(contract: str) -> None:
    with serving(lambda _: Reply(SPOKEN[contract][2])) as server:
        with scorer_of(server.url, contract=contract, add_special_tokens=False) as scorer:
            scorer.score(items("a", "b"), 5.0)
        assert server.seen[0].body["add_special_tokens"] is False


@pytest.mark.parametrize(
    "settings", [{"contract": "openrlhf"}, {"contract": "vllm_pooling", "send": "messages"}]
)
def test_special_tokens_are_not_left_out_where_the_contract_has_no_word_for_it(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="add_special_tokens is for"):
        ExternalConfig(url="http://rm/", add_special_tokens=False, **settings)


def test_a_step_without_a_number_costs_its_own_item() -> None:
    reply = {"data": [{"index": 0, "data": [[0.1, 0.9], [0.5, None]]}, {"index": 1, "data": [[0.5, 0.5]]}]}
    settings = {"contract": "vllm_pooling", "task": "token_classify"}
    first, second = ask(lambda _: Reply(reply), items("a", "b"), **settings)
    assert failed([first]) and second == Steps(0.5, (0.5,))


def test_messages_are_sent_one_conversation_a_request() -> None:
    messages = [{"role": "user", "content": "hello"}]
    given = [ScoreItem(prompt="rendered", response=r, metadata={"messages": messages}) for r in "ab"]
    with serving(lambda _: Reply({"data": [{"index": 0, "probs": [1.0]}]})) as server:
        with scorer_of(server.url, contract="vllm_classify", send="messages") as scorer:
            assert scorer.score(given, 5.0) == [1.0, 1.0]
        sent = sorted((seen.body["messages"] for seen in server.seen), key=str)
    assert sent == [[*messages, {"role": "assistant", "content": response}] for response in "ab"]


def test_a_template_does_not_read_the_texts_it_is_filled_with() -> None:
    with serving(lambda _: Reply({"scores": [1.0]})) as server:
        with scorer_of(server.url, contract="llamafactory", template="Q {prompt}|A {response}") as scorer:
            scorer.score([ScoreItem(prompt="{response}", response="{prompt}\ud800")], 5.0)
        assert server.seen[0].body["messages"] == ["Q {response}|A {prompt}\ud800"]
