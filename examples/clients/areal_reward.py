"""AReaL: `reward_fn=rollstream_reward_fn` of a workflow; the data set's column `answer` goes along.

Environment: ROLLSTREAM_REWARD_URL and, where the service has one, ROLLSTREAM_REWARD_TOKEN.
An item without a reward raises, and so does a service that does not answer in 12 seconds: AReaL itself
takes 15 seconds of silence for a 0. Asked as slime asks, since AReaL sends the end token along too.
"""

import json
import os
import urllib.request
from typing import Any


def rollstream_reward_fn(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **columns: Any
) -> float:
    url, token = os.environ["ROLLSTREAM_REWARD_URL"], os.environ.get("ROLLSTREAM_REWARD_TOKEN", "")
    sample = {"prompt": prompt, "response": completions, "label": columns.get("answer")}
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/rm", json.dumps(sample).encode(), headers)
    try:  # once: AReaL asks three times more
        with urllib.request.urlopen(request, timeout=12) as answer:
            return float(json.load(answer))
    except OSError as error:
        raise RuntimeError(f"{error}: {getattr(error, 'read', bytes)()!r}") from None
