"""What travels on the streams: a prompt going out, and the group of completions that comes back.

One stream entry holds one `Prompt` (on the prompts stream) or one `Group` (on the rollouts and experiences
streams): a prompt with its `n` completions. A group whose completions carry rewards is an experience.
"""

import hashlib
from array import array
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

import msgspec

from shared.scoring import StepReward

SCHEMA = 2
"""Version of these structures on the wire. A reader dead-letters any other number with its cause."""


class Int32Array(array):  # type: ignore[type-arg]
    """Token ids: an array of 32-bit integers that travels as raw little-endian bytes."""

    def __new__(cls, values: Iterable[int] | bytes = ()) -> Self:
        return super().__new__(cls, "i", values)  # type: ignore[return-value]


class Float32Array(array):  # type: ignore[type-arg]
    """Log-probabilities: an array of 32-bit floats that travels as raw little-endian bytes."""

    def __new__(cls, values: Iterable[float] | bytes = ()) -> Self:
        return super().__new__(cls, "f", values)  # type: ignore[return-value]


StopText = Annotated[str, msgspec.Meta(min_length=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0)]
StopSequence = Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1)]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one prompt's completions are drawn, and what ends them. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    """Tokens less probable than this share of the most probable one are left out."""
    repetition_penalty: float = 1.0
    """Logits of tokens already in prompt or completion are divided by it, negative ones multiplied."""
    max_tokens: int
    stop: tuple[StopText, ...] = ()
    """Texts that end a completion. The tokens through the end of the text stay in it."""
    stop_token_ids: tuple[StopSequence, ...] = ()
    """Token sequences that end a completion, and stay in it. The end-of-sequence token always ends one."""
    seed: int | None = None

    def of_prompt(self, purpose: str, epoch: int, index: int) -> Self:
        """The same with a seed for this prompt alone, if there is a seed.

        One seed for all prompts would draw the same random numbers for each of them, and again at each step.
        """
        if self.seed is None:
            return self
        key = f"{self.seed}/{purpose}/{epoch}/{index}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
        return msgspec.structs.replace(self, seed=seed)


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt as the learner issues it.

    `token_ids` is what the engine continues; the learner rendered and tokenised it, so text is never
    encoded a second time. `text` is the same prompt for scorers and people.
    """

    id: str
    purpose: Literal["train", "eval"] = "train"
    epoch: int
    """Pass over the dataset."""
    index: int
    """Row in the dataset."""
    n: int
    """Completions wanted."""
    issued_version: int
    """The learner's `policy_version` when it issued the prompt; no older policy may answer it."""
    text: str
    token_ids: Int32Array
    sampling: Sampling
    ground_truth: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    schema: int = SCHEMA

    def fields(self) -> dict[str, str | int]:
        """What a person sees of the entry in `redis-cli XRANGE`, before the payload."""
        return {
            "id": self.id,
            "schema": self.schema,
            "purpose": self.purpose,
            "n": self.n,
            "issued_version": self.issued_version,
            "prompt": self.text[:200],
        }


class VersionSpan(msgspec.Struct, frozen=True):
    """`tokens` consecutive tokens of a completion that were sampled under policy `version`."""

    version: int
    tokens: Annotated[int, msgspec.Meta(ge=1)]


class Completion(msgspec.Struct, kw_only=True):
    """One sampled continuation, with its reward once it is scored."""

    token_ids: Int32Array
    """Sampled tokens, the stop token included. [T]"""
    logprobs: Float32Array
    """`rollout_logprobs`: log-probability of each token under the distribution it was sampled from. [T]"""
    text: str
    """The completion decoded without special tokens."""
    finish_reason: Literal["stop", "length"]
    version_spans: list[VersionSpan]
    reward: float | None = None
    """None until scored."""
    components: dict[str, float] = msgspec.field(default_factory=dict)
    """What each scorer gave, before weighting."""
    step_rewards: list[StepReward] = msgspec.field(default_factory=list)
    """Parts of `reward` that are earned at places in `text`; the rest is earned at its end."""


class Group(msgspec.Struct, kw_only=True):
    """A prompt with its completions: a rollout, and with rewards an experience."""

    prompt: Prompt
    completions: list[Completion]
    worker: str
    """Id of the rollout worker that generated it."""
    weights_digest: str
    """Digest of the weights that the last token was sampled under."""
    failed: list[str] = msgspec.field(default_factory=list)
    """Why completions are missing: the cause of each that could not be generated or scored. The others are
    trained on."""
    schema: int = SCHEMA

    def fields(self) -> dict[str, str | int | float]:
        """What a person sees of the entry in `redis-cli XRANGE`, before the payload."""
        fields: dict[str, str | int | float] = {
            "id": self.prompt.id,
            "schema": self.schema,
            "purpose": self.prompt.purpose,
            "n": self.prompt.n,
            "tokens": self.tokens,
            "min_version": self.min_version,
            "max_version": self.max_version,
            "worker": self.worker,
        }
        rewards = [completion.reward for completion in self.completions if completion.reward is not None]
        if len(rewards) == len(self.completions):
            fields["status"] = "ok"
            fields["reward_mean"] = round(sum(rewards) / len(rewards), 4)
            fields["reward_max"] = round(max(rewards), 4)
            fields["scorers"] = ",".join(self.completions[0].components)
        if self.failed:
            fields["failed"] = len(self.failed)
        return fields

    @property
    def tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def min_version(self) -> int:
        return min(span.version for completion in self.completions for span in completion.version_spans)

    @property
    def max_version(self) -> int:
        return max(span.version for completion in self.completions for span in completion.version_spans)


def prompt_id(run: str, purpose: str, epoch: int, index: int) -> str:
    """Stable id of a prompt in a run: the same after a crash, a retry or on another machine."""
    return hashlib.blake2b(f"{run}/{purpose}/{epoch}/{index}".encode(), digest_size=10).hexdigest()
