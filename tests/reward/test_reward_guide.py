"""docs/reward.md: its answer is what the service gives, and its rule works when one does as it says."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from shared.scoring import ScoreRequest, ScoreResponse

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/reward.md").read_text(encoding="utf-8")
ASKED = re.findall(r"-d '(.*?)'\n(\{[^\n]*\})\n", GUIDE, re.DOTALL)
RULE, ROW = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
RUN = """
import sys, tomllib
import msgspec
from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from shared.scoring import ScoreRequest, ScoreResponse
core = ScoringCore(RewardConfig.model_validate(tomllib.loads(sys.argv[1])["reward"]))
request = msgspec.json.decode(sys.argv[2], type=ScoreRequest)
print(msgspec.json.encode(ScoreResponse(core.score(request.items, request.scorers))).decode())
print(core.score(request.items)[0].reward)
"""


def test_the_first_request_is_answered_as_shown() -> None:
    asked, answered = ASKED[0]
    request = msgspec.json.decode(asked, type=ScoreRequest)
    core = ScoringCore(RewardConfig())
    try:
        answer = msgspec.json.encode(ScoreResponse(core.score(request.items)))
    finally:
        core.close()
    assert json.loads(answer) == json.loads(answered)


def test_the_rule_of_five_minutes_scores_as_shown(tmp_path: Path) -> None:
    for folder in ("shared", "services/reward"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    rules = tmp_path / "services/reward/rules"
    (rules / "shout.py").write_text(RULE, encoding="utf-8")
    table = (rules / "table.py").read_text(encoding="utf-8")
    for where, what in (
        ("from services.reward.rules import ", "shout, "),
        ("RULES: dict[str, Row] = {\n", ROW),
    ):
        assert where in table
        table = table.replace(where, where + what, 1)
    (rules / "table.py").write_text(table, encoding="utf-8")
    configured = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[-1]
    asked, answered = ASKED[-1]
    done = subprocess.run(
        [sys.executable, "-c", RUN, configured, asked],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, reward = done.stdout.splitlines()
    assert json.loads(told) == json.loads(answered)
    assert float(reward) == tomllib.loads(configured)["reward"]["scorers"]["shout"]["weight"]
