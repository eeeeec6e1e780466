"""What of an engine's answer becomes completions, and what is said of the rest."""

import math
from typing import Any

import pytest

from services.rollout.completions import Unusable, all_completions, make_completion
from services.rollout.engine import SomeFailed
from shared.experience import Completion, VersionSpan


def make(**changes: Any) -> Completion:
    given: dict[str, Any] = {"tokens": [5, 6, 7], "logprobs": [-1.0, -2.0, -0.5], "decode": str,
                             "spans": [VersionSpan(4, 3)], "finish_reason": "length"}  # fmt: skip
    return make_completion(**{"stops": []} | given | changes)


def test_a_completion_ends_with_its_first_stop_sequence() -> None:
    whole, cut = make(), make(stops=[(5, 6)], finish_reason="abort")
    assert (list(whole.token_ids), whole.finish_reason, whole.text) == ([5, 6, 7], "length", "[5, 6, 7]")
    assert (list(cut.token_ids), cut.finish_reason, cut.text) == ([5, 6], "stop", "[5, 6]")
    assert list(cut.logprobs) == [-1.0, -2.0] and cut.version_spans == [VersionSpan(4, 2)]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"finish_reason": "error"}, "ended it with 'error' after 3 tokens"),
        ({"finish_reason": "abort"}, "ended it with 'abort'"),
        ({"logprobs": [-1.0, math.nan, -1.0]}, "not finite"),
        ({"logprobs": [-1.0, -1.0, -math.inf]}, "not finite"),
    ],
)
def test_what_the_engine_gave_up_or_got_wrong_is_no_completion(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(Unusable, match=cause):
        make(**changes)


def test_the_others_are_there_beside_the_cause_of_each_that_failed() -> None:
    outputs: list[dict[str, Any] | Exception] = [{}, {"finish_reason": "error"}, RuntimeError("a fuse blew")]
    outputs.append({"logprobs": [-3.0] * 3})
    with pytest.raises(SomeFailed) as caught:
        all_completions(outputs, lambda changes: make(**changes))
    first, second = caught.value.completions
    assert (first.logprobs[0], second.logprobs[0]) == (-1.0, -3.0)
    assert [cause.partition(" was not generated: ")[::2] for cause in caught.value.causes] == [
        ("completion 1", "the engine ended it with 'error' after 3 tokens"),
        ("completion 2", "RuntimeError: a fuse blew"),
    ]
    assert len(all_completions([{}, {}], lambda changes: make(**changes))) == 2
