"""What a neural scorer refuses, and how it treats an item that it cannot score."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.reward.neural import engine
from services.reward.neural.config import NeuralConfig
from services.reward.neural.scorer import NeuralScorer
from services.reward.protocol import Failure, Outcome
from shared.scoring import ScoreItem
from tests.reward.neural.models import (
    TEMPLATE,
    edit_json,
    llama,
    scorer,
    texts,
    write_adapter,
    write_model,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("rm"), "sequence_classification")


@pytest.fixture
def build(folder: Path) -> Iterator[Any]:
    built: list[NeuralScorer] = []

    def make(path: Path = folder, **settings: Any) -> NeuralScorer:
        built.append(scorer(path, f"rm{len(built)}", **settings))
        return built[-1]

    yield make
    for rm in built:
        rm.close()
    assert not engine._ENGINES, "the last scorer frees the model"


def invalid(outcome: Outcome) -> str:
    assert isinstance(outcome, Failure) and outcome.status == "invalid", outcome
    return outcome.cause


def test_a_text_too_long_is_invalid_and_never_cut(build: Any) -> None:
    outcomes = build(max_tokens=20).score(texts("short", "x" * 30), 60.0)
    assert isinstance(outcomes[0], float)
    assert "takes 20 tokens at most, and the item has 33" in invalid(outcomes[1])


def test_the_limit_of_the_model_holds_where_none_is_set(build: Any) -> None:
    assert "takes 512 tokens" in invalid(build().score(texts("x" * 600), 60.0)[0])


def test_a_text_too_long_loses_its_beginning_where_that_is_configured(build: Any) -> None:
    long, tail = ScoreItem(response="y" * 50 + "x" * 20), ScoreItem(response="x" * 20)
    first, second = build(max_tokens=20, too_long="truncate_left").score([long, tail], 60.0)
    assert first == pytest.approx(second, abs=1e-5)


def test_the_conversation_is_put_into_the_reward_models_own_template(build: Any) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    given = ScoreItem(prompt="rendered by the policy", response="R", metadata={"messages": messages})
    plain = ScoreItem(response="<system>S</s><user>U</s><assistant>R</s>")
    (from_messages,) = build(prompt_as="messages").score([given], 60.0)
    (from_text,) = build(prompt_as="text").score([plain], 60.0)
    assert from_messages == pytest.approx(from_text, abs=1e-5)


def test_without_messages_the_prompt_is_a_users_turn_only_where_configured(build: Any) -> None:
    item = ScoreItem(prompt="U", response="R")
    assert 'needs metadata "messages"' in invalid(build(prompt_as="messages").score([item], 60.0)[0])
    (one,) = build(prompt_as="user_message").score([item], 60.0)
    (two,) = build(prompt_as="text").score([ScoreItem(response="<user>U</s><assistant>R</s>")], 60.0)
    assert one == pytest.approx(two, abs=1e-5)


@pytest.mark.parametrize("messages", ["hello", [], [{"role": "user"}], [{"role": "user", "content": 1}], [3]])
def test_malformed_messages_are_invalid_and_harm_no_other_item(build: Any, messages: Any) -> None:
    bad = ScoreItem(response="R", metadata={"messages": messages})
    good = ScoreItem(response="R", metadata={"messages": [{"role": "user", "content": "U"}]})
    first, second = build(prompt_as="messages").score([bad, good], 60.0)
    assert "to be a list" in invalid(first) and isinstance(second, float)


def test_messages_that_the_template_refuses_are_invalid(build: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path, "sequence_classification")
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    write_tokenizer(path, template=refusing)
    item = ScoreItem(response="R", metadata={"messages": [{"role": "system", "content": "S"}]})
    assert "no system" in invalid(build(path, prompt_as="messages").score([item], 60.0)[0])


def test_an_empty_text_is_invalid_and_an_empty_response_is_scored(build: Any) -> None:
    rm = build()
    assert "no token" in invalid(rm.score([ScoreItem(response="")], 60.0)[0])
    assert isinstance(rm.score(texts(""), 60.0)[0], float)


def test_a_model_that_hangs_costs_its_items_one_deadline_together(build: Any) -> None:
    rm = build()
    release = threading.Event()
    hook = rm._engine.model.base_model.register_forward_pre_hook(lambda *_: release.wait(20) and None)
    try:
        for ask in (rm.score, lambda *asked: asyncio.run(rm.score_soon(*asked))):
            started = time.monotonic()
            outcomes = ask(texts(*"abcdefgh"), 0.5)
            assert time.monotonic() - started < 3.0, "not eight deadlines"
            assert [o.status for o in outcomes if isinstance(o, Failure)] == ["timeout"] * 8
    finally:
        hook.remove()
        release.set()


def test_a_score_that_is_not_finite_is_left_for_the_core_to_refuse(build: Any) -> None:
    rm = build()
    with torch.no_grad():
        rm._engine.model.score.weight.fill_(float("nan"))
    (outcome,) = rm.score(texts("a"), 60.0)
    assert outcome != outcome


def test_requests_of_many_threads_get_the_scores_they_would_get_alone(build: Any) -> None:
    rm = build(max_wait_ms=20)
    items = texts(*("x" * n for n in range(1, 41)))
    alone = [rm.score([item], 60.0)[0] for item in items]
    together: dict[int, Outcome] = {}

    def ask(number: int) -> None:
        (together[number],) = rm.score([items[number]], 60.0)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in range(40)] == pytest.approx(alone, abs=1e-5)


def test_pickled_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write_model(tmp_path, "sequence_classification")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin.*run code.*save_pretrained"):
        scorer(path)


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path, "causal_lm")
    with pytest.raises(ValueError, match=r"lack score.weight: this is no trained reward model"):
        scorer(path)
    with pytest.raises(ValueError, match=r"v_head\.summary\.weight is missing"):
        scorer(path, architecture="llamafactory")
    with pytest.raises(ValueError, match=r"value_head\.weight is missing"):
        scorer(path, architecture="colossalchat")
    assert not engine._ENGINES


def test_several_labels_are_refused_for_a_reward(tmp_path: Path) -> None:
    path = write_model(tmp_path, "sequence_classification", llama(num_labels=3))
    with pytest.raises(ValueError, match="has 3 labels"):
        scorer(path)


def test_a_folder_that_is_none_and_a_template_that_is_missing_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model folder"):
        scorer(tmp_path / "nothing")
    path = write_model(tmp_path, "sequence_classification")
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template; set prompt_as"):
        scorer(path, prompt_as="messages")


def test_an_adapter_without_a_head_or_not_in_safetensors_is_refused(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "causal_lm")
    adapter = write_adapter(tmp_path / "adapter", base, "causal_lm", 1)
    with pytest.raises(ValueError, match=r"and its adapter .* lack score.weight"):
        scorer(base, adapter=adapter)
    edit_json(adapter / "adapter_config.json", peft_type="PREFIX_TUNING")
    with pytest.raises(ValueError, match="only LORA"):
        scorer(base, adapter=adapter)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ValueError, match="run code"):
        scorer(base, adapter=adapter)
    assert not engine._ENGINES


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"max_tokens": 100, "max_batch_tokens": 50}, "does not fit"),
        ({"architecture": "token_classification", "too_long": "truncate_left"}, "steps"),
        ({"architecture": "colossalchat", "adapter": "x"}, "no adapters"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        NeuralConfig.model_validate({"path": "rm", **settings})
