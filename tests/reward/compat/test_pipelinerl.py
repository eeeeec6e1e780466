"""PipelineRL's `verify_answer_rpc` (commit 2c5b60b), asked and read as it does it."""

import httpx
import pytest

from tests.conftest import RedisServer
from tests.reward.compat.conftest import url_of
from tests.reward.compat.wire import AIOHTTP, post
from tests.reward.conftest import Launcher


def verify_answer_rpc(url: str, prediction: str, gold: str, max_prediction_length: int = 1000) -> str:
    payload = {
        "prediction": prediction,
        "gold": gold,
        "strict": True,
        "max_prediction_length": max_prediction_length,
    }
    answer = post(AIOHTTP, f"{url}/verify_answer", payload)
    if answer.status != 200:
        raise ValueError("Error verifying answer")
    return str(answer.json()["answer_status"])


@pytest.mark.parametrize(
    ("prediction", "gold", "status"),
    [
        ("so \\boxed{18}", "\\boxed{18}", "correct"),
        ("so \\boxed{18}", "18", "correct"),
        ("so \\boxed{\\frac{1}{2}}", "\\boxed{0.5}", "correct"),
        ("first \\boxed{17}, no: \\boxed{18}", "\\boxed{18}", "correct"),
        ("so \\boxed{19}", "\\boxed{18}", "wrong"),
        ("first \\boxed{18}, no: \\boxed{17}", "\\boxed{18}", "wrong"),
        ("it is 18", "\\boxed{18}", "no_answer"),
        ("", "\\boxed{18}", "no_answer"),
        ("so \\boxed{}", "\\boxed{18}", "unparsable"),
        ("so \\boxed{ \n}", "\\boxed{18}", "unparsable"),
        ("so \\boxed{18}" + " " * 1000, "\\boxed{18}", "unparsable"),
    ],
)
def test_the_status_is_the_contracts(gsm8k: str, prediction: str, gold: str, status: str) -> None:
    assert verify_answer_rpc(gsm8k, prediction, gold) == status


def test_its_rule_is_its_own_whatever_is_configured_by_that_name(
    launch: Launcher, redis_server: RedisServer
) -> None:
    service = launch("compat-tags", "--reward.scorers", '{ math_verify = { answer_in = "tags" } }')
    url = url_of(service, "compat-tags", redis_server)
    assert verify_answer_rpc(url, "so \\boxed{18}", "18") == "correct"
    assert service.stop() == 0


def test_an_answer_that_is_never_done_with_is_504_and_no_verdict(gsm8k: str) -> None:
    payload = {
        "prediction": "so \\boxed{9^{9^{9^{9^{9^{9}}}}}}",
        "gold": "7^{7^{7^{7^{7^{8}}}}}",
        "strict": True,
    }
    answer = post(AIOHTTP, f"{gsm8k}/verify_answer", payload)
    assert answer.status == 504, answer
    assert answer.json().keys() == {"detail"}


def test_its_health_check_is_answered(gsm8k: str) -> None:
    assert httpx.get(f"{gsm8k}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"strict": False}, "strict"), ({"prediction": "countdown 1"}, "prediction"), ({"gold": 5}, "gold")],
)
def test_what_is_not_served_is_an_error(gsm8k: str, changed: dict[str, object], field: str) -> None:
    payload = {"prediction": "\\boxed{1}", "gold": "1", "strict": True, "max_prediction_length": 9}
    answer = post(AIOHTTP, f"{gsm8k}/verify_answer", {**payload, **changed})
    assert (answer.status, answer.json()["detail"][0]["field"]) == (422, field)
    assert answer.json().keys() == {"detail"}
