"""Connections that lose replies, hold bytes back or damage them: a synchronous run must not show it."""

import random
import time

import pytest

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.proxy import Change

SERVICES = ("learner", "reward", "rollout0")


class Losing:
    """Cuts a connection in place of passing a chunk on, with a probability."""

    def __init__(self, probability: float, seed: int) -> None:
        self.cuts = 0
        self._probability = probability
        self._random = random.Random(seed)

    def __call__(self, data: bytes) -> bytes | None:
        if self._random.random() >= self._probability:
            return data
        self.cuts += 1
        return None


class Once:
    """Does something to the first chunk that is part of a tensor file."""

    def __init__(self, change: Change) -> None:
        self.done = False
        self._change = change

    def __call__(self, data: bytes) -> bytes | None:
        if self.done or len(data) < 10_000:
            return data
        self.done = True
        return self._change(data)


def damaged(data: bytes) -> bytes:
    """One bit is the other way round."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_lost_replies_of_redis_lose_and_repeat_nothing(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(proxied=SERVICES)
    pipeline.wait_for_step(1)
    losses = [Losing(0.05, seed) for seed, _ in enumerate(SERVICES)]
    for name, loss in zip(SERVICES, losses, strict=True):
        pipeline.links[name].replies = loss
    pipeline.finish()
    assert sum(loss.cuts for loss in losses) > 2
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


@pytest.mark.chaos_long
def test_services_that_are_cut_off_for_a_while_go_on_by_themselves(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(proxied=SERVICES, rollouts=2)
    for number, name in enumerate(SERVICES):
        pipeline.wait_for_step(2 + 2 * number)
        pipeline.links[name].hold()
        time.sleep(3.0)  # longer than it takes to pass for dead
        pipeline.links[name].let_go()
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


@pytest.mark.chaos_long
@pytest.mark.timeout(600)
def test_partitions_longer_than_every_deadline_end_without_a_restart(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    """Half-open connections: bytes go nowhere, and nobody is told."""
    pipeline = begin(proxied=[*SERVICES, "weights"], rollouts=2, rollout_timeout=200.0)
    for number, name in enumerate([*SERVICES, "weights"]):
        pipeline.wait_for_step(1 + 2 * number, seconds=120)
        pipeline.links[name].hold()
        time.sleep(30.0)
        pipeline.links[name].let_go()
    pipeline.finish(240)
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


@pytest.mark.chaos_long
def test_a_slow_connection_slows_a_run_and_no_more(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(proxied=[*SERVICES, "weights"])
    for link in pipeline.links.values():
        link.seconds = 0.1
    pipeline.finish(240)
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_pushes_of_weights_that_are_cut_or_damaged_are_never_served(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(proxied=["weights"])
    link = pipeline.links["weights"]
    changes: list[Change] = [lambda data: None, damaged, damaged]
    for number, change in enumerate(changes):
        pipeline.wait_for_step(1 + 2 * number)
        link.requests = once = Once(change)
        pipeline.wait(lambda once=once: once.done, "a push")  # type: ignore[misc]
    pipeline.finish()
    failed = pipeline.events("push_failed")
    assert len(failed) >= len(changes) and any("sha256" in text for text in failed), failed
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed
