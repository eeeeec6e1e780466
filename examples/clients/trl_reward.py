"""TRL: `GRPOTrainer(reward_funcs=[rollstream_reward], ...)`; the column `ground_truth` goes along.

Environment: ROLLSTREAM_REWARD_URL and, where the service has one, ROLLSTREAM_REWARD_TOKEN.
Gives a number for each, or None where there is no reward, which TRL leaves out of training.
"""

import json
import os
import time
import urllib.request
from typing import Any


def rollstream_reward(prompts: list[Any], completions: list[Any], ground_truth: Any = None, **_: Any) -> Any:
    truths = map(str, ground_truth) if ground_truth else [None] * len(completions)
    chats = [None if isinstance(p, str) else p for p in prompts]  # for a reward model's own template
    items = [
        {"prompt": text(p), "response": text(c), "ground_truth": truth, "metadata": {"messages": chat}}
        for p, c, truth, chat in zip(prompts, completions, truths, chats, strict=True)
    ]
    return [result["reward"] for result in post(items)]


def text(turns: Any) -> str:
    return turns if isinstance(turns, str) else "\n\n".join(turn["content"] for turn in turns)


def post(items: list[Any], pauses: tuple[int, ...] = (1, 2, 4, 8)) -> list[dict[str, Any]]:
    url, token = os.environ["ROLLSTREAM_REWARD_URL"], os.environ.get("ROLLSTREAM_REWARD_TOKEN", "")
    body, headers = json.dumps({"items": items}).encode(), {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/score", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return list(json.load(answer)["results"])
    except OSError as error:  # without a status the service is not there, or not yet
        if not pauses or getattr(error, "code", 503) not in (429, 502, 503, 504):
            raise RuntimeError(f"{error}: {getattr(error, 'read', bytes)()!r}") from None
    time.sleep(pauses[0])
    return post(items, pauses[1:])
