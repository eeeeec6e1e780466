"""Entries as people read them."""

import json
import re

import msgspec
import pytest
from rich.console import Console

from services.console.peek import peek
from shared.codec import encode
from shared.reader import Reader
from shared.stream import Streams
from tests.console.entries import a_group, a_prompt
from tests.console.looking import Look


def text_of(streams: Streams, name: str, count: int = 3) -> str:
    console = Console(width=140)
    with console.capture() as captured:
        for part in peek(streams, name, count):
            console.print(part)
    return captured.get()


def move(streams: Streams, index: int = 0) -> None:
    """Bring one scored group onto the experiences stream."""
    prompt = a_prompt(index)
    streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
    (entry,) = Reader(streams, "prompts", f"rollout-{index}").read(1)
    rollout = a_group(prompt)
    streams.forward(entry, "prompts", "rollouts", rollout.fields(), encode(rollout))
    (entry,) = Reader(streams, "rollouts", f"reward-{index}").read(1)
    experience = a_group(prompt, rewards=(10.0, 0.0))
    streams.forward(entry, "rollouts", "experiences", experience.fields(), encode(experience))


def test_a_prompt_is_shown_with_its_text_and_ground_truth(streams: Streams) -> None:
    prompt = a_prompt(text="Wie viele Äpfel? 🍎")
    streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
    text = text_of(streams, "prompts")
    assert "Wie viele Äpfel? 🍎" in text and "ground truth 19" in text and "issued at version 3" in text


def test_how_many_completions_a_prompt_asks_for_is_said_in_words(streams: Streams) -> None:
    for n, said in ((1, " 1 completion of"), (2, " 2 completions of")):
        prompt = msgspec.structs.replace(a_prompt(n), n=n)
        streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
        assert said in text_of(streams, "prompts", count=1)


def test_an_experience_is_shown_with_completions_and_rewards(streams: Streams) -> None:
    move(streams)
    text = text_of(streams, "experiences")
    assert "10.000  <answer>19</answer>  2 tokens, stop, version 3+4 gsm8k_reward_fn=10" in text
    assert "0.000  <answer>[bold]5</answer>" in text, "text of the model is no markup"
    assert "by rollout-a, weights dddddddddddd" in text


def test_looking_takes_nothing_from_anybody(streams: Streams) -> None:
    move(streams)
    peek(streams, "experiences", 5)
    assert len(Reader(streams, "experiences", "learner").read(5)) == 1


def test_only_the_newest_are_shown_the_newest_last(streams: Streams) -> None:
    for index in range(3):
        move(streams, index)
    text = text_of(streams, "experiences", count=2)
    assert "id-0" not in text and text.index("id-1") < text.index("id-2")


def test_a_dead_letter_tells_its_cause_and_its_content(streams: Streams) -> None:
    prompt = a_prompt()
    streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
    (entry,) = Reader(streams, "prompts", "rollout").read(1)
    streams.dead_letter(entry, "prompts", "rollout", "failed", "longer than the model allows", attempts=2)
    text = text_of(streams, "dead")
    assert "rollout, failed, attempt 2: longer than the model allows" in text
    assert "Tom has 12 pens" in text


def test_a_payload_that_cannot_be_read_is_said_to_be_so(streams: Streams) -> None:
    streams.append_prompts([({"id": "odd"}, b"\xc1 not msgpack")], 1)
    assert "the payload cannot be read" in text_of(streams, "prompts")


def test_events_are_lines(streams: Streams) -> None:
    streams.event("join", "reward", "reward-b is here")
    assert text_of(streams, "events").rstrip().endswith("reward   join       reward-b is here")


@pytest.mark.usefixtures("run_folder")
def test_an_event_is_one_line_and_metrics_are_their_reward_and_accuracy(
    streams: Streams, shown: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    others = {f"time/part_{number}": 0.5 for number in range(40)}
    solved = {"eval/heldout/greedy/accuracy": 0.75, "eval/heldout/sampled/pass@4": 0.875}
    streams.event("step", "learner", json.dumps({"step": 12, "reward/mean": 5.5, **others}))
    streams.event("eval", "learner", json.dumps({"step": 12, **solved, **others}))
    streams.event("push_failed", "learner", "no answer:\n  " + "x" * 100)
    step, evaluation, failure = shown("peek", "events").splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d learner  step       step 12, reward 5\.500", step)
    assert evaluation.endswith(" eval       step 12, greedy accuracy 0.750, sampled pass@4 0.875")
    assert failure.endswith(" push_failed no answer: " + "x" * 100)


def test_an_unknown_stream_is_refused_with_the_known_ones(streams: Streams) -> None:
    with pytest.raises(ValueError, match="no stream 'prompt'; the streams are prompts, rollouts"):
        peek(streams, "prompt", 1)
