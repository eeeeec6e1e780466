"""ms-swift: `--external_plugins ms_swift_plugin.py --reward_funcs rollstream`; `solution` goes along.

An item without a reward stops the run. Environment: ROLLSTREAM_REWARD_URL, ROLLSTREAM_REWARD_TOKEN.
"""

import json
import os
import time
import urllib.request
from typing import Any

from swift.rewards import ORM, orms


class Rollstream(ORM):  # type: ignore[misc]
    def __call__(self, completions: list[str], solution: list[Any] | None = None, **_: Any) -> list[float]:
        truths = map(str, solution) if solution else [None] * len(completions)
        items = [{"response": c, "ground_truth": t} for c, t in zip(completions, truths, strict=True)]
        results = post(items)
        if failed := [result for result in results if result["status"] != "ok"]:
            raise RuntimeError(f"{len(failed)} of {len(items)} not scored; {failed[0]['error']}")
        return [result["reward"] for result in results]


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


orms["rollstream"] = Rollstream
