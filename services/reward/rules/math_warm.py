"""Imported by the pool before it forks: math-verify builds its tables at its first use, which takes 0.1 s.

Each process would else do that with its first item, which would then count as slow and cost the process.
"""

from services.reward.rules.math_equal import are_equal, read_answer, read_text

assert are_equal(read_answer("\\frac{1}{2}"), read_text("so it is \\boxed{0.5}"))
