"""Two real gloo ranks under torchrun against one rank in this process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.arithmetic.tokenizer import build_tokenizer
from services.learner import distributed
from services.learner.distributed import join_world
from services.learner.models.critic import load_critic
from services.learner.models.policy import load_policy
from services.learner.models.snapshot import policy_weights
from tests.learner import two_ranks
from tests.learner.samples import ALONE, load_models, own_critic, save_tiny_llama

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what two ranks made of them."""
    folder = tmp_path_factory.mktemp("ranks")
    save_tiny_llama(folder / "tied", tied=True)
    save_tiny_llama(folder / "untied", tied=False)
    save_conversations(folder)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ranks = subprocess.Popen(
        [*torchrun, "-m", "tests.learner.two_ranks", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, errors = ranks.communicate(timeout=240)
    except subprocess.TimeoutExpired:  # ranks that disagree wait for one another
        ranks.terminate()  # so that torchrun ends them, which it could not if it were killed
        _, errors = ranks.communicate(timeout=60)
    assert ranks.returncode == 0, errors[-6000:]
    return folder


def save_conversations(folder: Path) -> None:
    """A model with a tokenizer, conversations with answers, and a template of ColossalChat's."""
    tokenizer = build_tokenizer(64)
    tokenizer.save_pretrained(save_tiny_llama(folder / "chat", vocabulary=len(tokenizer)))
    turns = (
        "{% for message in messages %}[{{ message.role[0] }}]{{ message.content }};{% endfor %}"
        "{% if add_generation_prompt %}[a]{% endif %}"
    )
    template = {"chat_template": turns, "system_message": "Add.", "end_of_assistant": ";"}
    (folder / "template.json").write_text(json.dumps(template))
    asked = [("2+2?", "4"), ("1+1+1+1+1?", "that makes 5 in all"), ("0?", "0"), ("3+4?", "7, I think")]
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in asked
    ]
    (folder / "ptx.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(params=["tied", "untied"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def one_rank(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    actor_critic = load_models(folder / name, ALONE)
    metrics = two_ranks.updates(actor_critic, 0, 1)
    critic = distributed.full_state(own_critic(actor_critic))
    return distributed.full_state(actor_critic.policy), critic, metrics


def test_one_rank_and_two_end_an_update_with_equal_parameters(folder: Path, name: str) -> None:
    """Two epochs of three optimizer steps each, on rows that do not divide evenly."""
    start = distributed.full_state(load_policy(folder / name))
    policy, critic, _ = one_rank(folder, name)
    for ours, file in ((policy, f"{name}-policy.safetensors"), (critic, f"{name}-critic.safetensors")):
        theirs = load_file(folder / file)
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], atol=1e-5, rtol=0)
    assert max(float((policy[key] - start[key]).abs().max()) for key in start) > 1e-3, "nothing was trained"


def test_one_rank_and_two_report_the_same_numbers(folder: Path, name: str) -> None:
    theirs = json.loads((folder / f"{name}-metrics.json").read_text())
    ours = one_rank(folder, name)[2]
    assert ours.keys() == theirs.keys()
    for key in ours.keys() - {"time/evaluate", "time/optimize", "time/update"}:
        assert theirs[key] == pytest.approx(ours[key], rel=1e-3, abs=1e-4), key


def test_what_two_ranks_saved_loads_as_a_plain_model_and_critic(folder: Path, name: str) -> None:
    saved = folder / f"{name}-saved"
    policy = distributed.full_state(load_policy(saved / "policy"))
    critic = distributed.full_state(load_critic(saved / "critic"))
    assert policy.keys() == load_file(folder / f"{name}-policy.safetensors").keys()
    for loaded, file in ((policy, f"{name}-policy.safetensors"), (critic, f"{name}-critic.safetensors")):
        for key, value in load_file(folder / file).items():
            assert torch.equal(value, loaded[key]), key


@pytest.mark.parametrize("kind", two_ranks.BUILT)
def test_one_rank_and_two_publish_the_same_policy_whatever_they_train(folder: Path, kind: str) -> None:
    """Adapters, a value head on the trunk, recomputed activations; losses by sequence, stale completions, and
    thresholds at which the ranks must agree."""
    theirs = load_file(folder / f"{kind}-published.safetensors")
    models, metrics = two_ranks.train_built(folder, kind, ALONE, None, 0)
    if kind == "sequences":
        assert (metrics["steps/optimizer"], metrics["steps/held"]) == (3, 1), "no threshold was crossed"
    ours = policy_weights(models)
    start = distributed.full_state(load_policy(folder / "tied"))
    assert ours.keys() == theirs.keys() == start.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-5, rtol=0)
    assert max(float((ours[name] - start[name]).abs().max()) for name in start) > 1e-3, "nothing was trained"


def test_one_rank_and_two_are_taught_the_same_by_rows_that_a_chat_template_renders(folder: Path) -> None:
    theirs = load_file(folder / "taught-published.safetensors")
    told = json.loads((folder / "taught-metrics.json").read_text())
    models, metrics = two_ranks.train_taught(folder, ALONE)
    ours, untaught = policy_weights(models), policy_weights(two_ranks.train_taught(folder, ALONE, False)[0])
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-5, rtol=0)
    assert told["loss/ptx_avg"] == pytest.approx(metrics["loss/ptx_avg"], rel=1e-4)
    assert max(float((ours[name] - untaught[name]).abs().max()) for name in ours) > 1e-3, "nothing was taught"


def test_tied_weights_are_gathered_once(folder: Path) -> None:
    tied, untied = (distributed.full_state(load_policy(folder / n)) for n in ("tied", "untied"))
    assert untied.keys() - tied.keys() == {"lm_head.weight"}


def test_a_state_that_does_not_fit_is_refused(folder: Path) -> None:
    model = load_policy(folder / "tied")
    state = distributed.full_state(model)
    with pytest.raises(ValueError, match=r"differs in \['lm_head.weight'\]"):
        distributed.load_full_state(model, state | {"lm_head.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="has shape"):
        distributed.load_full_state(model, {key: value[:1] for key, value in state.items()})
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="'nowhere', which the model does not have"):
        distributed.load_full_optimizer_state(model, optimizer, {"nowhere/step": torch.zeros(())})


def test_alone_a_rank_resumes_as_if_it_had_not_stopped(folder: Path) -> None:
    straight, first, second = (load_models(folder / "tied", ALONE) for _ in range(3))
    two_ranks.updates(straight, 0, 2)
    two_ranks.updates(first, 0, 1)
    for (_, old, source), (_, new, target) in zip(first.optimizers(), second.optimizers(), strict=True):
        distributed.load_full_state(new, distributed.full_state(old))
        distributed.load_full_optimizer_state(new, target, distributed.full_optimizer_state(old, source))
    two_ranks.updates(second, 1, 2)
    for key, value in distributed.full_state(straight.policy).items():
        assert torch.equal(value, distributed.full_state(second.policy)[key]), key


def test_alone_a_rank_says_and_hears_its_own_words() -> None:
    world = join_world()
    assert world.is_main and world.size == 1 and world.mesh is None
    assert world.broadcast_bytes(b"abc") == b"abc"
    assert world.all_reduce_sum(torch.ones(2)).tolist() == [1, 1]
    world.barrier()
    world.leave()


def test_the_gathered_state_is_a_copy(folder: Path) -> None:
    """Training goes on while the state is being sent."""
    actor_critic = load_models(folder / "tied", ALONE)
    state = distributed.full_state(actor_critic.policy)
    copies = {key: value.clone() for key, value in state.items()}
    two_ranks.updates(actor_critic, 0, 1)
    assert all(torch.equal(state[key], copies[key]) for key in state)
