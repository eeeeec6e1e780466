"""Threads in the place of rollout and reward, which carry groups round a real Redis for the learner."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.codec import decode_prompt, encode
from shared.entry import Entry
from shared.experience import Group, Prompt
from shared.reader import Reader
from shared.stream import Streams


@contextmanager
def both_hops(streams: Streams, answer: Callable[[Entry, Prompt], Group | None]) -> Iterator[None]:
    """Within it every prompt comes back as the scored group of `answer`, which gives None if it saw to the
    entry itself."""
    stop = threading.Event()

    def work() -> None:
        prompts, rollouts = Reader(streams, "prompts", "rollout"), Reader(streams, "rollouts", "reward")
        while not stop.is_set():
            for entry in prompts.read(8, 50):
                prompt = decode_prompt(entry.payload)
                group = answer(entry, prompt)
                if group is None:
                    continue
                streams.forward(entry, "prompts", "rollouts", prompt.fields(), b"")
                (rollout,) = rollouts.read(1, 1000)
                streams.forward(rollout, "rollouts", "experiences", group.fields(), encode(group))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
