"""slime's `remote_rm` (commit 0b420f1), asked and read as it does it."""

from typing import Any

import pytest

from tests.reward.compat.wire import AIOHTTP, post
from tests.reward.groups import RIGHT, WRONG


def remote_rm(url: str, prompt: Any, response: str, label: Any) -> Any:
    """One of its ten tries."""
    answer = post(AIOHTTP, url, {"prompt": prompt, "response": response, "label": label})
    answer.raise_for_status()
    assert answer.headers["content-type"] == "application/json", "aiohttp refuses to read another"
    return answer.json()


CHAT = [{"role": "system", "content": "Count."}, {"role": "user", "content": "9+9?"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "9+"}, {"type": "text", "text": "9?"}]}]


@pytest.mark.parametrize("prompt", ["9+9?", CHAT, PARTS])
def test_the_answer_is_a_bare_number(gsm8k: str, prompt: Any) -> None:
    assert remote_rm(f"{gsm8k}/rm", prompt, f"{RIGHT}<|im_end|>", "18") == 10.0
    assert remote_rm(f"{gsm8k}/rm", prompt, WRONG, "18") == 1.0


def test_a_reward_key_reads_an_object(gsm8k: str) -> None:
    answer = remote_rm(f"{gsm8k}/rm/object", "9+9?", RIGHT, "18")
    assert answer == {"reward": 10.0, "gsm8k_reward_fn": 10.0}


def test_a_sample_without_a_label_is_scored_where_none_is_needed(textual: str) -> None:
    assert remote_rm(f"{textual}/rm", "p", "abc", None) == 3.0


def test_a_list_of_messages_is_the_prompt(textual: str) -> None:
    assert remote_rm(f"{textual}/rm/object", PARTS, "abc", None)["prompt_length"] == 4.0


@pytest.mark.parametrize(
    ("prompt", "response", "status"),
    [
        ("p", "fail", 503),
        ("p", None, 422),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "r", 422),
        ([5], "r", 422),
    ],
)
def test_a_failure_is_a_status_and_never_a_number(
    textual: str, prompt: Any, response: Any, status: int
) -> None:
    answer = post(AIOHTTP, f"{textual}/rm", {"prompt": prompt, "response": response, "label": None})
    assert (answer.status, answer.json().keys()) == (status, {"detail"})
