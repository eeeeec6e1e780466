"""docs/scorers.md shows tables that the service accepts, and names every key and choice there is."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from services.reward.config import RewardConfig
from services.reward.external.config import ContractName
from services.reward.neural.config import Architecture
from services.reward.plugin.config import Signature

GUIDE = (Path(__file__).parent.parent.parent / "docs/scorers.md").read_text(encoding="utf-8")
TABLES = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("text", TABLES)
def test_every_table_shown_is_accepted(text: str) -> None:
    written = tomllib.loads(text)["reward"]
    config = RewardConfig.model_validate(written)
    assert set(config.scorers) == set(written["scorers"])


@pytest.mark.parametrize("choices", [ContractName, Architecture, Signature])
def test_every_choice_is_explained(choices: object) -> None:
    assert len(TABLES) >= 7
    for choice in get_args(choices):
        assert f"`{choice}`" in GUIDE
