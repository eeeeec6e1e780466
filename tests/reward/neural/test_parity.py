"""Scores equal a plain, unbatched forward of transformers within 1e-5, whatever else is in the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    PretrainedConfig,
    RobertaConfig,
)

from services.reward.protocol import Outcome, Steps
from shared.scoring import ScoreItem
from tests.reward.neural.models import (
    MIXED,
    linear,
    llama,
    scorer,
    write_adapter,
    write_colossalchat,
    write_model,
)


def encoded(path: Path, item: ScoreItem) -> Tensor:
    ids = AutoTokenizer.from_pretrained(path).encode(item.prompt + item.response)
    return torch.tensor([ids])


def plain_classification(path: Path) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        return [model(input_ids=encoded(path, item)).logits.item() for item in MIXED]


def scored(path: Path, **settings: Any) -> list[Outcome]:
    """All items at once, and with a budget that cuts them into several batches: the same numbers."""
    results = []
    for budget in (16384, 512):
        rm = scorer(path, max_batch_tokens=budget, **settings)
        try:
            results.append(rm.score(MIXED, 60.0))
        finally:
            rm.close()
    assert numbers(results[0]) == pytest.approx(numbers(results[1]), abs=1e-5)
    return results[0]


def numbers(outcomes: list[Outcome]) -> list[float]:
    assert all(isinstance(outcome, float) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, float)]


SMALL: dict[str, Any] = {"vocab_size": 259, "num_labels": 1, "initializer_range": 0.2}
ENCODER: dict[str, Any] = {
    **SMALL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64
}  # fmt: skip

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": llama(),
    "llama, pad == eos": llama(pad_token_id=2),
    "llama, no pad": llama(pad_token_id=None),
    "gpt2": GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=512, pad_token_id=2),
    "bert": BertConfig(**ENCODER, max_position_embeddings=512, pad_token_id=0),
    "roberta": RobertaConfig(**ENCODER, max_position_embeddings=514, pad_token_id=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_sequence_classification_equals_the_unbatched_forward(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path, "sequence_classification", CONFIGS[name], pad="</s>")
    expected = plain_classification(path)
    assert numbers(scored(path)) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01, "the texts have different scores"


def last_states(path: Path) -> list[Tensor]:
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.no_grad():
        return [
            model(input_ids=encoded(path, item), output_hidden_states=True).hidden_states[-1][0, -1]
            for item in MIXED
        ]


def test_a_llamafactory_value_head_is_read_at_the_last_token(tmp_path: Path) -> None:
    path = write_model(tmp_path, "causal_lm", pad="</s>")
    head = linear("v_head.summary", 5)
    save_file(head, path / "value_head.safetensors")
    weight, bias = head["v_head.summary.weight"], head["v_head.summary.bias"]
    expected = [(weight @ state + bias).item() for state in last_states(path)]
    assert numbers(scored(path, architecture="llamafactory")) == pytest.approx(expected, abs=1e-5)


def test_a_colossalchat_value_head_is_read_at_the_last_token(tmp_path: Path) -> None:
    states = last_states(write_model(tmp_path / "same", "causal_lm"))
    path = write_colossalchat(tmp_path / "rm")
    tensors = load_file(path / "model.safetensors")
    expected = [(tensors["value_head.weight"] @ s + tensors["value_head.bias"]).item() for s in states]
    assert numbers(scored(path, architecture="colossalchat")) == pytest.approx(expected, abs=1e-5)


def test_bfloat16_scores_are_close_and_their_last_step_is_float32(tmp_path: Path) -> None:
    path = write_model(tmp_path, "sequence_classification")
    rm = scorer(path, dtype="bfloat16")
    try:
        got = numbers(rm.score(MIXED, 60.0))
    finally:
        rm.close()
    assert got == pytest.approx(plain_classification(path), abs=0.15)
    assert any(torch.tensor(score).bfloat16().float().item() != score for score in got)


RESPONSE = ScoreItem(prompt="Q: ", response="one step\n\nanother, longer step\n\n\n\nthe last")


def step_ids(path: Path) -> tuple[Tensor, list[int]]:
    """The tokens as TRL's PRMTrainer lays them out, and where its labels stand."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids, ends = [1, *tokenizer.encode("Q: ")], []
    for step in ("one step", "another, longer step", "the last"):
        ids += tokenizer.encode(step) + tokenizer.encode("\n")
        ends.append(len(ids) - 1)
    return torch.tensor([ids]), ends


def steps_of(path: Path, **settings: Any) -> Steps:
    rm = scorer(path, steps={"aggregation": "product", **settings.pop("steps", {})}, **settings)
    try:
        outcome = rm.score([*MIXED, RESPONSE], 60.0)[-1]
    finally:
        rm.close()
    assert isinstance(outcome, Steps)
    return outcome


def test_token_classification_gives_a_probability_per_step(tmp_path: Path) -> None:
    path = write_model(tmp_path, "token_classification", llama(num_labels=2))
    ids, ends = step_ids(path)
    with torch.no_grad():
        logits = AutoModelForTokenClassification.from_pretrained(path).eval()(input_ids=ids).logits[0]
    expected = logits.softmax(-1)[ends, 1].tolist()
    outcome = steps_of(path, architecture="token_classification")
    assert outcome.steps == pytest.approx(expected, abs=1e-5)
    assert [RESPONSE.response[:end][-4:] for end in outcome.ends] == ["step", "step", "last"]
    assert outcome.value == pytest.approx(expected[0] * expected[1] * expected[2], abs=1e-5)


def test_a_causal_model_is_asked_for_the_token_after_each_marker(tmp_path: Path) -> None:
    path = write_model(tmp_path, "causal_lm")
    ids, ends = step_ids(path)
    good, bad = AutoTokenizer.from_pretrained(path).encode("+-")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(path).eval()(input_ids=ids).logits[0]
    expected = logits[:, [bad, good]].softmax(-1)[ends, 1].tolist()
    assert steps_of(path, architecture="causal_lm_steps").steps == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("sequence_classification", "sequence_classification"), ("causal_lm", "llamafactory")],
)
def test_adapters_on_one_base_score_as_each_would_alone(kind: str, architecture: str, tmp_path: Path) -> None:
    from peft import PeftModel

    base = write_model(tmp_path / "base", "causal_lm")
    names = ["first", "second"]
    adapters = {name: write_adapter(tmp_path / name, base, kind, seed) for seed, name in enumerate(names)}
    expected = {}
    for name, adapter in adapters.items():
        with torch.no_grad():
            if kind == "causal_lm":
                model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
                head = load_file(adapter / "value_head.safetensors")
                weight, bias = head["v_head.summary.weight"], head["v_head.summary.bias"]
                outputs = [
                    model(input_ids=encoded(base, i), output_hidden_states=True).hidden_states[-1][0, -1]
                    for i in MIXED
                ]
                expected[name] = [(weight @ state + bias).item() for state in outputs]
            else:
                plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
                model = PeftModel.from_pretrained(plain, adapter).eval()
                expected[name] = [model(input_ids=encoded(base, i)).logits.item() for i in MIXED]
    scorers = {
        name: scorer(base, name, adapter=adapter, architecture=architecture)
        for name, adapter in adapters.items()
    }
    try:
        engines = {id(rm._engine.model) for rm in scorers.values()}
        assert len(engines) == 1, "the base is in memory once"
        for name in (*names, *names):
            assert numbers(scorers[name].score(MIXED, 60.0)) == pytest.approx(expected[name], abs=1e-5)
    finally:
        for rm in scorers.values():
            rm.close()
    assert expected["first"] != pytest.approx(expected["second"], abs=1e-3)
