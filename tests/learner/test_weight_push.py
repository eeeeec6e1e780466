"""One push of weights to one server: its parts, its deadlines, and what it may replace."""

import time

import pytest

from services.learner import weight_push
from services.learner.prometheus import LearnerMetrics
from services.learner.weight_push import Push, PushFailed, Update
from shared.stream import Streams
from shared.weights import WeightStatus, sha256
from tests.learner.weight_server import TENSORS, Server, serving


def test_a_push_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_push, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(weight_push, "_CHUNK_BYTES", 10)
    deadline = time.monotonic() + 0.1
    pieces = weight_push._in_time(b"x" * 25, deadline)
    assert next(pieces) == b"x" * 10
    time.sleep(max(0.0, deadline - time.monotonic()) + 0.01)
    with pytest.raises(PushFailed, match="took 10 of 25 bytes"):
        next(pieces)


def test_a_server_that_does_not_answer_is_given_up(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, metrics: LearnerMetrics
) -> None:
    monkeypatch.setattr(weight_push, "CALL_SECONDS", 0.2)
    silent = Server(streams, "r1")
    silent.goes_on.clear()
    with serving(silent):
        push = Push("the-token-of-this-run", metrics, lambda version: None)
        with pytest.raises(PushFailed, match="Timeout"):
            push.to(silent.url, Update(TENSORS, version=1, learner_epoch=1))
        push.close()


def test_only_what_the_learner_did_not_publish_is_replaced_by_an_earlier_version() -> None:
    update = Update(TENSORS, version=3, learner_epoch=1)
    later = WeightStatus(version=4, digest="of 4", learner_epoch=1, state="serving")
    assert update.manifest_for(later, published="another").replaces == "of 4"
    assert update.manifest_for(later, published=None).replaces == "of 4"
    with pytest.raises(PushFailed, match="superseded: it serves 4"):
        update.manifest_for(later, published="of 4")


def test_large_models_travel_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_push, "PART_BYTES", 30)
    update = Update(TENSORS, version=1, learner_epoch=1)
    assert [tensor.part for tensor in update.manifest.tensors] == [0, 1]
    assert [part.sha256 for part in update.manifest.parts] == [sha256([data]) for data in update.parts]
