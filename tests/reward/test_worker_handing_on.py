"""Groups that are scored at the same time go on in one step."""

from collections.abc import Sequence

import pytest

from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES, Row
from shared.scoring import ScoreItem
from shared.stream import Move, StreamName, Streams
from tests.reward.conftest import Start, wait_for
from tests.reward.groups import RIGHT, deliver, make_group


def test_groups_that_are_scored_while_others_go_on_go_on_together(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    forward_all = Streams.forward_all

    def slowly(self: Streams, moves: Sequence[Move], source: StreamName, target: str) -> list[bool]:
        if not sizes:
            wait_for(lambda: len(scored) == 8, "the scores of all groups")
        sizes.append(len(moves))
        return forward_all(self, moves, source, target)

    scored: list[str] = []

    def noted(item: ScoreItem, config: RuleConfig) -> float:
        scored.append(item.response)
        return 1.0

    monkeypatch.setitem(RULES, "noted", Row(noted))
    monkeypatch.setattr(Streams, "forward_all", slowly)
    for number in range(8):
        deliver(streams, make_group(f"g{number}", [RIGHT]))
    start(streams, {"noted": {}})
    wait_for(lambda: streams.client.xlen(streams.key("experiences")) == 8, "the experiences")
    assert sum(sizes) == 8 and max(sizes) > 1
