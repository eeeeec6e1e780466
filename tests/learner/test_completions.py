"""The files of sample completions."""

import json
from pathlib import Path

from services.learner.completions import scorer_means, write_completions
from tests.learner.samples import make_groups


def test_each_completion_is_a_row_and_a_repeated_step_replaces_its_file(tmp_path: Path) -> None:
    path = tmp_path / "completions" / "step-000003.jsonl"
    write_completions(path, make_groups(5, n=2))
    groups = make_groups(2, n=3, seed=1)
    groups[0].completions[0].text = "one\u2028line"
    groups[0].completions[0].components = {"gsm8k_reward_fn": 1.0}
    write_completions(path, groups)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert [row["id"] for row in rows] == ["p0"] * 3 + ["p1"] * 3
    assert rows[0]["completion"] == "one\u2028line" and rows[0]["components"] == {"gsm8k_reward_fn": 1.0}
    assert [row["reward"] for row in rows] == [c.reward for group in groups for c in group.completions]
    assert [row["tokens"] for row in rows] == [len(c.token_ids) for g in groups for c in g.completions]
    assert {row["mode"] for row in rows} == {"train"}


def test_each_scorer_has_the_mean_of_what_it_gave() -> None:
    groups = make_groups(2, n=2)
    for number, completion in enumerate(c for group in groups for c in group.completions):
        completion.components = {"right": float(number)} | ({"short": 1.0} if number else {})
    assert scorer_means(groups) == {"reward/scorer/right": 1.5, "reward/scorer/short": 1.0}
