"""Whether docs/ppo.md explains a metric."""

import re
from collections.abc import Collection
from pathlib import Path

PPO = (Path(__file__).parent.parent / "docs/ppo.md").read_text()

_PATTERNS = {
    r"^(staleness/tokens|correction/ratio)_\d+$": r"\1_<s>",
    r"^reward/scorer/.+": "reward/scorer/<name>",
    r"mean@\d+$": "mean@<k>",
    r"pass@\d+$": "pass@<j>",
}
"""Names that hold a number or a name of the run, and how they are written in the document."""


def unexplained(names: Collection[str]) -> list[str]:
    """Those of the logged names that the document does not have in backticks."""
    general = set(names)
    for pattern, written in _PATTERNS.items():
        general = {re.sub(pattern, written, name) for name in general}
    return sorted(name for name in general if f"`{name}`" not in PPO)
