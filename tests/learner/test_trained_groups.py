"""`groups.jsonl` tells of every group trained on, once, with its way."""

import json
from pathlib import Path

from services.learner.trained_groups import TrainedGroups
from shared.stream import Streams
from tests.learner.test_feed import make_feed, services


def rows(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]


def test_each_trained_group_has_a_row_with_its_step_and_its_way(streams: Streams, tmp_path: Path) -> None:
    feed = make_feed(streams)
    trained = TrainedGroups(tmp_path, step=0)
    ids = []
    with services(streams):
        for number in (1, 2):
            groups = feed.take(number - 1)
            ids.append([group.prompt.id for group in groups])
            trained.write(number, feed.consumed(groups))
    trained.close()
    assert [row["id"] for row in rows(tmp_path)] == ids[0] + ids[1]
    for row in rows(tmp_path):
        assert row["step"] == (1 if row["id"] in ids[0] else 2)
        assert row["issued_version"] == str(int(str(row["step"])) - 1)
        times = [float(str(row[name])) for name in ("issued_at", "generated_at", "scored_at")]
        assert times == sorted(times) and float(str(row["at"])) >= times[-1]


def test_what_a_resumed_learner_trains_again_is_told_once(streams: Streams, tmp_path: Path) -> None:
    feed = make_feed(streams)
    with services(streams):
        groups = feed.take(0)
    entries = feed.consumed(groups)
    first = TrainedGroups(tmp_path, step=0)
    first.write(1, entries[:2])
    first.write(2, entries[2:])
    first.close()
    again = TrainedGroups(tmp_path, step=1)
    assert [row["step"] for row in rows(tmp_path)] == [1, 1]
    again.close()
    TrainedGroups(tmp_path, step=0).close()
    assert rows(tmp_path) == []
