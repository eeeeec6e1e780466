"""Small models, groups and settings that the learner's tests share."""

import random
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from services.learner import distributed, ppo
from services.learner.algorithm.state import AlgorithmState
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.config.learner import LearnerConfig, LearnerSettings
from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import World
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.critic import Critic, load_critic
from services.learner.models.policy import load_policy, load_reference
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan

VOCABULARY = 23
ALONE = World(rank=0, size=1, device=torch.device("cpu"), mesh=None)
"""One rank on the CPU, also on a machine with a GPU."""
SETTINGS = AlgorithmConfig(
    clip_low=0.2,
    clip_high=0.2,
    value_clip=0.2,
    vf_coef=0.5,
    kl_coef=0.05,
    kl_estimator="k1",
    entropy_coef=0.0,
    gamma=1.0,
    gae_lambda=0.95,
    whiten_advantages=True,
    reward_scale=1.0,
    epochs=1,
    minibatches=1,
    micro_batch_tokens=4096,
    max_grad_norm=1.0,
    temperature=1.0,
    precision="float32",
)


def rows_of(lengths: list[int], low: float, high: float) -> st.SearchStrategy[list[list[float]]]:
    """Rows of floats of these lengths."""
    return st.tuples(*(st.lists(st.floats(low, high), min_size=n, max_size=n) for n in lengths)).map(list)


def padded(rows: list[list[float]], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Rows as one float64 tensor with ones as padding, and its mask; at least one column."""
    width = max([1, *map(len, rows)]) + extra
    values = torch.tensor([[*row, *[1.0] * (width - len(row))] for row in rows], dtype=torch.float64)
    return values, torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]


def unpadded(values: Tensor, mask: Tensor) -> list[list[float]]:
    return [row[keep].tolist() for row, keep in zip(values, mask, strict=True)]


def save_tiny_llama(path: Path, *, tied: bool = True, seed: int = 0, vocabulary: int = VOCABULARY) -> Path:
    """A random Llama whose next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def make_groups(count: int, n: int, *, seed: int = 0, version: int = 0) -> list[Group]:
    """Groups with prompts and completions of many lengths, random logprobs and rewards."""
    chance = random.Random(seed)

    def tokens(low: int, high: int) -> Int32Array:
        return Int32Array(chance.choices(range(VOCABULARY), k=chance.randint(low, high)))

    def completion() -> Completion:
        ids = tokens(1, 9)
        return Completion(
            token_ids=ids,
            logprobs=Float32Array(chance.uniform(-4, -0.1) for _ in ids),
            text="",
            finish_reason=chance.choice(["stop", "length"]),
            version_spans=[VersionSpan(version, len(ids))],
            reward=chance.choice([0.0, 1.0, 10.0]),
        )

    return [
        Group(
            prompt=make_prompt(f"p{index}", tokens(1, 12), n),
            completions=[completion() for _ in range(n)],
            worker="w",
            weights_digest="",
        )
        for index in range(count)
    ]


def make_prompt(name: str, token_ids: Int32Array, n: int) -> Prompt:
    return Prompt(
        id=name,
        epoch=0,
        index=0,
        n=n,
        issued_version=0,
        text="",
        token_ids=token_ids,
        sampling=Sampling(max_tokens=9),
    )


def load_models(path: Path, world: World, smallest_block: int = 0) -> ActorCritic:
    """Policy, reference and critic from one folder, the critic's head not at zero, sharded over the world."""
    learning_rate = 1e-3
    policy, reference, critic = load_policy(path), load_reference(path), load_critic(path)
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight, std=0.1)
    for model in (policy, reference, critic):
        distributed.shard(model, world, smallest_block)
    return ActorCritic(
        policy=policy,
        reference=reference,
        critic=critic,
        policy_optimizer=build_optimizer(policy, learning_rate, weight_decay=0.0),
        critic_optimizer=build_optimizer(critic, learning_rate, weight_decay=0.0),
        world=world,
    )


def own_critic(models: ActorCritic) -> Critic:
    """The critic of models that have one with a backbone of its own."""
    assert isinstance(models.critic, Critic)
    return models.critic


def own_reference(models: ActorCritic) -> PreTrainedModel:
    """The reference of models that have one in weights of its own."""
    assert isinstance(models.reference, PreTrainedModel)
    return models.reference


def changed(**changes: object) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(SETTINGS.model_dump() | changes)


def run_update(
    models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig, policy_version: int, seed: int
) -> dict[str, float]:
    """The metrics of an update that is the first of its run."""
    return ppo.update(models, batch, config, AlgorithmState(config.kl_coef), policy_version, seed)[0]


def settings_for(path: Path, **learner: object) -> LearnerSettings:
    """A run that starts from a model folder, with high learning rates, so that little training shows."""
    table = {"prompts": "prompts.jsonl", "policy_lr": 1e-2, "critic_lr": 1e-2, **learner}
    return LearnerSettings.model_validate({"model": {"path": path}, "learner": table})


def train_for(
    models: ActorCritic, config: LearnerConfig, first: int, last: int, age: int = 0
) -> dict[str, float]:
    """Updates `first` to `last` of a run, on batches of their own, `age` versions old."""
    metrics: dict[str, float] = {}
    for step in range(first, last):
        batch = collate(make_groups(4, 2, seed=step, version=step))
        metrics = run_update(models, batch, config, step + age, seed=step)
    return metrics


def randomise_adapters(models: ActorCritic) -> None:
    """Adapters that change something: a new one has a zero B."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in models.policy.named_parameters():
            if ".lora_B.default." in name:
                parameter.normal_(std=0.1)


def moved(models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig, version: int = 0) -> Tensor:
    """How far an update moves each parameter of the policy, as one vector."""
    before = distributed.full_state(models.policy)
    run_update(models, batch, config, version, seed=0)
    return torch.cat(
        [(v - before[name]).flatten() for name, v in distributed.full_state(models.policy).items()]
    )
