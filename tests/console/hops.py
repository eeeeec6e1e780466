"""Brings a group along its way as the services do: taken, answered, scored, each by a worker of its own."""

from shared.causes import CauseKind
from shared.codec import encode
from shared.entry import Entry
from shared.reader import Reader
from shared.stream import Streams
from tests.console.entries import a_group, a_prompt


def issue(streams: Streams, index: int = 0) -> str:
    prompt = a_prompt(index)
    assert streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
    return prompt.id


def take_prompt(streams: Streams, worker: str = "rollout-a") -> Entry:
    (entry,) = Reader(streams, "prompts", worker).read(1)
    return entry


def generate(streams: Streams, index: int = 0, worker: str = "rollout-a") -> None:
    entry, rollout = take_prompt(streams, worker), a_group(a_prompt(index))
    facts = {"rollout_seconds": 0.25, "rollout_attempts": 2}
    assert streams.forward(entry, "prompts", "rollouts", rollout.fields() | facts, encode(rollout))


def score(streams: Streams, index: int = 0, worker: str = "reward-b") -> Entry:
    """Returns the experience, which the learner has taken."""
    (entry,) = Reader(streams, "rollouts", worker).read(1)
    experience = a_group(a_prompt(index), rewards=(10.0, 0.0))
    facts = {"reward_worker": worker, "reward_seconds": 0.125, "reward_attempts": 1}
    assert streams.forward(entry, "rollouts", "experiences", experience.fields() | facts, encode(experience))
    (entry,) = Reader(streams, "experiences", "learner").read(1)
    return entry


def bury(streams: Streams, index: int = 0, cause: str = "no luck", stage: str = "rollout",
         kind: CauseKind = "failed") -> str:  # fmt: skip
    """A prompt whose credit the learner has taken back."""
    id = issue(streams, index)
    assert streams.dead_letter(
        take_prompt(streams), "prompts", stage, kind, cause, attempts=3, by="rollout-a"
    )
    streams.release([], [id], 1)
    return id
