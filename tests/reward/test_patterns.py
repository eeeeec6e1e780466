"""Every regular expression of the service, wherever it is: no text makes its search take long."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 60
"""For all together; they take about one, and a quadratic one takes minutes."""

SEARCH = r"""
import importlib, re, sys
from pathlib import Path
PIECES = ["a", "1", "1,", "1.", "-", " ", "\n", " \n", "{", "}", "```", "```python", "```\n", "   ", "A ",
          "$", "**", "answer", "answer ", "Answer:", "Answer :\n", "Score:", "Score: 1", "#### ", "#### 1,",
          r"\boxed{", r"\boxed{ ", r"\text{", r"\text {a", "{prompt}", "{prompt", "\0", "\u0661", "\ud800"]
count = 0
for path in sorted(Path("services/reward").rglob("*.py")):
    if "re.compile(" not in path.read_text():
        continue
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    for name, pattern in vars(module).items():
        if isinstance(pattern, re.Pattern):
            count += 1
            for piece in PIECES:
                print(module.__name__, name, repr(piece), flush=True)
                text = piece * (65536 // len(piece))
                for tried in (text, text + "!", "!" + text):
                    pattern.search(tried), pattern.fullmatch(tried), pattern.findall(tried)
print(count)
"""


def test_no_pattern_is_slow_on_any_text() -> None:
    search = [sys.executable, "-c", SEARCH]
    try:
        done = subprocess.run(search, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired as expired:
        last = (expired.stdout or b"").decode(errors="replace").splitlines()[-1:]
        raise AssertionError(f"was still at {last}") from None
    assert int(done.stdout.splitlines()[-1]) > 10
