import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from examples.arithmetic import warm_start
from examples.arithmetic.problems import first_problems
from examples.arithmetic.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(warm_start.MAX_LENGTH)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_labels_cover_the_solution_and_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = first_problems("train", 4)
    token_ids, labels = warm_start.supervised_batch(tokenizer, rows)
    for row, ids, label in zip(rows, token_ids, labels, strict=True):
        assert tokenizer.decode(ids[label != warm_start.IGNORED]) == row.solution + tokenizer.eos_token
        assert tokenizer.decode(ids, skip_special_tokens=True) == row.question + row.solution


def test_expected_accuracy_does_not_depend_on_padding(tokenizer: PreTrainedTokenizerFast) -> None:
    model = warm_start.build_model(tokenizer, seed=0)
    row = first_problems("train", 1)
    token_ids, labels = warm_start.supervised_batch(tokenizer, row)
    padded = torch.nn.functional.pad(token_ids, (0, 7), value=tokenizer.pad_token_id)
    longer = torch.nn.functional.pad(labels, (0, 7), value=warm_start.IGNORED)
    with torch.no_grad():
        alone = warm_start.token_logprobs(model, token_ids, labels).sum()
        beside_padding = warm_start.token_logprobs(model, padded, longer).sum()
    assert beside_padding.item() == pytest.approx(alone.item(), rel=1e-2)


def test_twenty_steps_lower_the_loss(tokenizer: PreTrainedTokenizerFast) -> None:
    model = warm_start.build_model(tokenizer, seed=0)
    training = warm_start.train(model, tokenizer, seed=0, batch_size=8)
    progress = {step: loss for step, loss, _ in itertools.islice(training, 2)}
    assert progress[1] > 5
    assert progress[20] < 4


def test_a_finished_warm_start_is_complete_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "PROBE_ROWS", 4)
    monkeypatch.setattr(warm_start, "PROBE_BELOW_LOSS", 10.0)
    monkeypatch.setattr(warm_start, "TARGET_ACCURACY", 0.0)
    lines: list[str] = []
    path = warm_start.ensure(tmp_path, seed=3, echo=lines.append)
    assert path == tmp_path / "model"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heldout.jsonl", "model", "train.jsonl"]
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 4096
    assert len((tmp_path / "heldout.jsonl").read_text().splitlines()) >= 1024
    assert json.loads((path / "warm_start.json").read_text())["seed"] == 3

    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert 1_000_000 < model.num_parameters() < 4_000_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.chat_template

    written = (path / "model.safetensors").stat().st_mtime_ns
    assert warm_start.ensure(tmp_path, seed=3, echo=lines.append) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match="seed 3, not 4"):
        warm_start.ensure(tmp_path, seed=4)


def test_help_answers_without_loading_torch() -> None:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "examples.arithmetic", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--seed" in done.stdout
    assert "torch" not in done.stderr
    assert time.perf_counter() - started < 30
