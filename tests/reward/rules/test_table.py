"""The table of rules: documented whole, and open to requests only where that is safe."""

import re
from pathlib import Path

import pytest

from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES

PAGE = (Path(__file__).parents[3] / "docs/reward.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_documented_with_its_parameters_and_where_it_runs(name: str) -> None:
    rows = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    assert len(rows) == 1
    assert f"| {'yes' if RULES[name].pooled else 'no'} |" in rows[0]
    own = RULES[name].table.model_fields.keys() - RuleConfig.model_fields.keys()
    missing = [key for key in own if f"`{key}`" not in PAGE]
    assert not missing
    assert RULES[name].description.endswith(".")


def test_a_request_may_name_no_rule_that_runs_programs_or_lacks_a_parameter() -> None:
    closed = {name for name, row in RULES.items() if not row.on_request}
    assert closed == {"code_tests", "regex", "length_reward_fn", "overlong_penalty_fn"}
