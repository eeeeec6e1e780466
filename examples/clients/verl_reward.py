"""verl: `reward.custom_reward_function.path=.../verl_reward.py` (its name `compute_score` is the default).

An item without a reward stops the run. Environment: ROLLSTREAM_REWARD_URL, ROLLSTREAM_REWARD_TOKEN.
"""

import json
import os
import time
import urllib.request
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **_: Any
) -> float:
    item = {"response": solution_str, "metadata": {**(extra_info or {}), "dataset": data_source}}
    if ground_truth is not None:
        item["ground_truth"] = str(ground_truth)
    result = post([item])[0]
    if result["status"] != "ok":
        raise RuntimeError(f"not scored: {result['status']}: {result['error']}")
    return float(result["reward"])


def post(items: list[Any], pauses: tuple[int, ...] = (1, 2, 4, 8)) -> list[dict[str, Any]]:
    url, token = os.environ["ROLLSTREAM_REWARD_URL"], os.environ.get("ROLLSTREAM_REWARD_TOKEN", "")
    body = json.dumps({"items": items}, default=lambda array: array.tolist()).encode()  # of extra_info
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/score", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return list(json.load(answer)["results"])
    except OSError as error:  # without a status the service is not there, or not yet
        if not pauses or getattr(error, "code", 503) not in (429, 502, 503, 504):
            raise RuntimeError(f"{error}: {getattr(error, 'read', bytes)()!r}") from None
    time.sleep(pauses[0])
    return post(items, pauses[1:])
