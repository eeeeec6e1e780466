"""A weight update is applied whole or refused with its reason, and a refusal changes nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from shared.experience import Group
from shared.vocabulary import vocabulary_digest
from shared.weights import WeightManifest
from tests.rollout.asking import Asker, make_prompt, some_tokens
from tests.rollout.server import RolloutServer, make_update
from tests.rollout.tiny_model import tensors_of, varied

Json = dict[str, Any]


@pytest.fixture
def serving(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> Iterator[RolloutServer]:
    """The server with a confirmed version, which must be the same afterwards."""
    server.push_next(tensors_of(varied(tied_model[1], seed=300)))
    before, text = server.status, greedy(asker)
    yield server
    after = server.status
    assert (after.version, after.digest) == (before.version, before.digest)
    assert greedy(asker) == text


def greedy(asker: Asker) -> tuple[str, list[float]]:
    """What the server makes of one prompt without chance: text and logprobs."""
    group: Group
    (group,) = asker.answers([make_prompt(some_tokens(40, 11), temperature=0.0)])
    (completion,) = group.completions
    return completion.text, [round(logprob, 4) for logprob in completion.logprobs]


def next_update(server: RolloutServer, model: LlamaForCausalLM, **changes: Any) -> tuple[Json, list[bytes]]:
    """A valid update to the next version, as JSON to be spoilt."""
    tensors = tensors_of(varied(model, seed=301))
    manifest, payloads = make_update(tensors, server.next_version, server.epoch)
    return {**manifest.model_dump(), **changes}, payloads


def opened(server: RolloutServer, manifest: Json) -> tuple[int, str]:
    answer = server.client.post(f"/v1/weights/{manifest['version']}", json=manifest)
    return answer.status_code, answer.text


def drop_a_tensor(manifest: Json) -> None:
    manifest["tensors"] = [t for t in manifest["tensors"] if t["name"] != "model.norm.weight"]


def rename_a_tensor(manifest: Json) -> None:
    manifest["tensors"][0]["name"] = "model.surprise.weight"


def reshape_a_tensor(manifest: Json) -> None:
    manifest["tensors"][0]["shape"] = [*manifest["tensors"][0]["shape"], 1]


def list_a_tensor_twice(manifest: Json) -> None:
    manifest["tensors"].append(manifest["tensors"][0])


def misspell_a_key(manifest: Json) -> None:
    manifest["lerner_epoch"] = manifest.pop("learner_epoch")


def announce_a_huge_part(manifest: Json) -> None:
    manifest["parts"][0]["nbytes"] = 1 << 40


@pytest.mark.parametrize(
    ("spoil", "code", "reason"),
    [
        (drop_a_tensor, 422, "missing model.norm.weight"),
        (rename_a_tensor, 422, "unknown model.surprise.weight"),
        (reshape_a_tensor, 422, "the model's has"),
        (list_a_tensor_twice, 422, "listed twice"),
        (misspell_a_key, 422, "learner_epoch"),
        (lambda manifest: manifest.update(tokenizer="0" * 64), 422, "tokenizer has other tokens"),
        (announce_a_huge_part, 413, "at most"),
        (
            lambda manifest: manifest.update(learner_epoch=manifest["learner_epoch"] - 1),
            409,
            "has taken the run",
        ),
        (lambda manifest: manifest.update(version=manifest["version"] - 1), 409, "superseded"),
        (lambda manifest: manifest.update(base_version=10**6), 409, "is not served here"),
        (lambda manifest: manifest.update(base_version=manifest["version"] - 1), 422, "full updates only"),
    ],
)
def test_a_bad_manifest_is_refused_with_its_reason(
    serving: RolloutServer,
    tied_model: tuple[Path, LlamaForCausalLM],
    spoil: Callable[[Json], None],
    code: int,
    reason: str,
) -> None:
    manifest, _ = next_update(serving, tied_model[1])
    spoil(manifest)
    seen, text = opened(serving, manifest)
    assert seen == code and reason in text, text


def test_a_manifest_for_another_version_than_the_path_is_refused(
    serving: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    manifest, _ = next_update(serving, tied_model[1])
    answer = serving.client.post("/v1/weights/999999", json=manifest)
    assert answer.status_code == 422 and "999999" in answer.text


def test_parts_that_are_not_what_was_announced_are_refused(
    serving: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    manifest, payloads = next_update(serving, tied_model[1])
    assert opened(serving, manifest)[0] == 201
    base = f"/v1/weights/{manifest['version']}"

    def put(part: int, data: bytes) -> tuple[int, str]:
        answer = serving.client.put(f"{base}/parts/{part}", content=data)
        return answer.status_code, answer.text

    flipped = bytes([*payloads[0][:-1], payloads[0][-1] ^ 1])
    for part, data, code, reason in [
        (0, flipped, 422, "sha256"),
        (0, payloads[0][:-1], 422, "announced were"),
        (0, payloads[0] + b"x", 413, "more than the announced"),
        (7, payloads[0], 422, "no part 7"),
    ]:
        seen, text = put(part, data)
        assert seen == code and reason in text, text
    assert put(0, payloads[0])[0] == 204
    answer = serving.client.post(f"{base}/commit")
    assert answer.status_code == 422 and "lacks the parts [1]" in answer.text
    assert serving.status.receiving_version == manifest["version"]
    assert serving.client.delete(base).status_code == 200
    assert serving.status.receiving_version is None
    assert serving.client.post(f"{base}/commit").status_code == 409
    assert put(0, payloads[0])[0] == 409


def test_a_part_with_other_tensors_than_its_manifest_says_is_refused(
    serving: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    tensors = dict(tensors_of(tied_model[1]))
    # Same bytes and digest, but the file calls this square matrix transposed shape something else.
    truth, payloads = make_update({**tensors, "model.norm.weight": tensors["model.norm.weight"][:, None]}, 0)
    manifest, _ = next_update(serving, tied_model[1], parts=[part.model_dump() for part in truth.parts])
    assert opened(serving, manifest)[0] == 201
    codes = [
        serving.client.put(f"/v1/weights/{manifest['version']}/parts/{part}", content=payload).status_code
        for part, payload in enumerate(payloads)
    ]
    assert 422 in codes


def test_weights_that_the_engine_cannot_load_leave_the_old_ones_in_place(
    serving: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    """The files are spoilt on the server between arrival and commit, so that the engine fails half way."""
    manifest, payloads = next_update(serving, tied_model[1])
    assert opened(serving, manifest)[0] == 201
    base = f"/v1/weights/{manifest['version']}"
    for part, payload in enumerate(payloads):
        assert serving.client.put(f"{base}/parts/{part}", content=payload).status_code == 204
    (part_file,) = serving.weights_dir.glob(f"*/v{manifest['version']}-*/1.safetensors")
    spoilt = {
        tensor["name"]: torch.zeros([extent + 1 for extent in tensor["shape"]])
        for tensor in manifest["tensors"]
        if tensor["part"] == 1
    }
    save_file(spoilt, part_file)
    answer = serving.client.post(f"{base}/commit")
    assert answer.status_code == 500 and "the old weights are back" in answer.text
    assert serving.status.state == "serving"
    assert serving.client.get("/ready").status_code == 200


def test_a_later_learner_may_go_back_to_an_earlier_version(
    server: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    server.push_next(tensors_of(tied_model[1]))
    server.push(tensors_of(tied_model[1]), version=0, epoch=server.epoch + 1)
    assert server.status.version == 0


def test_an_update_of_a_learner_with_the_same_tokens_is_taken(
    server: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    manifest, _ = next_update(server, tied_model[1], tokenizer=vocabulary_digest(tied_model[0]))
    assert manifest["tokenizer"] and opened(server, manifest)[0] == 201
    assert server.client.delete(f"/v1/weights/{manifest['version']}").status_code == 200


def test_committing_twice_is_harmless(
    server: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    version = server.push_next(tensors_of(tied_model[1]))
    answer = server.client.post(f"/v1/weights/{version}/commit")
    assert answer.status_code == 200 and answer.json()["version"] == version


def test_a_newer_update_takes_the_place_of_an_unfinished_one(
    server: RolloutServer, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    version, epoch = server.next_version, server.epoch
    manifest: WeightManifest
    manifest, _ = make_update(tensors_of(tied_model[1]), version, epoch)
    assert server.client.post(f"/v1/weights/{version}", content=manifest.model_dump_json()).status_code == 201
    server.push(tensors_of(tied_model[1]), version + 1, epoch)
    assert len(list(server.weights_dir.glob("*/v*"))) == 1
