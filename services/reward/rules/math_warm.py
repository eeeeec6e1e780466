"""Imported by the pool before it forks: math-verify builds its tables at its first use, which takes 0.1 s.

Each process would else do that with its first item, which would then count as slow and cost the process. A
fresh process also has to copy the pages that it writes to, 7 MB in 10 ms: `warm_up` does that beforehand.
"""

import os

from services.reward.rules.math_equal import are_equal, read_answer, read_text


def warm_up() -> None:
    """Read and compare what goes through the parsers of LaTeX and of plain numbers.

    One number is new in each process: what the nursery has read before comes from caches.
    """
    assert are_equal(read_answer("\\frac{1}{2}"), read_text("so it is \\boxed{0.5}"))
    assert not are_equal(read_answer(f"{os.getpid()}"), read_text("so it is $\\boxed{0.5}$"))


warm_up()
