"""How completions are drawn and what ends them.

`rollout_logprobs` are those of the distribution that was sampled from: after temperature, repetition penalty,
min-p, top-k and top-p. The learner's logprobs know of the temperature alone. With the other dials at work the
two differ also for the same weights: see docs/ppo.md.
"""

from typing import Self

from pydantic import Field, field_validator, model_validator

from shared.config import Table
from shared.experience import Sampling


class GenerationConfig(Table):
    completions_per_prompt: int = Field(default=4, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    top_k: int = Field(default=0, ge=0)
    """Draw from so many of the most probable tokens; 0 means from all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Leave out tokens less probable than this share of the most probable one."""
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Above 1, tokens that are already in prompt or completion become less likely."""
    stop: str | tuple[str, ...] = ()
    """Texts that end a completion, such as "</answer>". They stay in it, and special tokens count as text."""
    stop_token_ids: int | tuple[int, ...] | tuple[tuple[int, ...], ...] = ()
    """Token ids that end a completion and stay in it, in ColossalChat's forms: one id; a list, which is ONE
    sequence of several tokens; a list of lists, which are alternatives. The model's own always count."""
    sampling_seed: int | None = Field(default=None, ge=0)
    """Draw each prompt's completions from a seed made of this, the dataset pass and the row, so that a run
    can be repeated; slower. By default the engine's random numbers go on from `run.seed`."""

    @field_validator("stop")
    @classmethod
    def _no_empty_text(cls, stop: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if stop == "" or "" in tuple(stop):
            raise ValueError("an empty text would end every completion at once; leave it out")
        return stop

    @model_validator(mode="after")
    def _stop_sequences(self) -> Self:
        sequences = self.stop_sequences
        if any(not sequence for sequence in sequences):
            raise ValueError(f"stop_token_ids = {self.stop_token_ids} has an empty sequence; leave it out")
        negative = [id for sequence in sequences for id in sequence if id < 0]
        if negative:
            raise ValueError(f"stop_token_ids has {negative[0]}; a token id is 0 or more")
        too_long = [len(sequence) for sequence in sequences if len(sequence) > self.max_new_tokens]
        if too_long:
            raise ValueError(
                f"stop_token_ids has a sequence of {too_long[0]} tokens, more than max_new_tokens = "
                f"{self.max_new_tokens}; a list of ids is one sequence, for alternatives write [[1], [2]]"
            )
        return self

    @property
    def stop_sequences(self) -> tuple[tuple[int, ...], ...]:
        """`stop_token_ids` as alternatives, whichever form it has."""
        ids = self.stop_token_ids
        if isinstance(ids, int):
            return ((ids,),)
        alone = tuple(id for id in ids if isinstance(id, int))
        return (alone,) if alone else tuple(sequence for sequence in ids if isinstance(sequence, tuple))

    def sampling(self, temperature: float, vocabulary: int) -> Sampling:
        """What the rollout service is asked for.

        Raises:
            ValueError: a stop token is not in the vocabulary, so it could never be drawn.
        """
        unknown = [id for sequence in self.stop_sequences for id in sequence if id >= vocabulary]
        if unknown:
            raise ValueError(
                f"learner.stop_token_ids has {unknown[0]}; the model knows ids below {vocabulary}"
            )
        return Sampling(
            temperature=temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_new_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_sequences,
            seed=self.sampling_seed,
        )
