"""`python -m tests.chaos.soak --kills 200 --groups 20000 --seed 1`: runs disturbed at random, then audited.

Rounds of 2,000 groups follow one another, every second one synchronous, whose weights must be those of a run
that was left in peace. A round's seed gives its faults back, but not their exact moments.
"""

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from services.learner import checkpoint
from tests.chaos.audit import audit, weights_of
from tests.chaos.pipeline import Pipeline
from tests.chaos.points import LEARNER, REWARD, ROLLOUT
from tests.chaos.workspace import make_workspace

GROUPS_PER_STEP = 40
STEPS = 50
ROLLOUTS = 2
POINTS = {"learner": LEARNER, "reward": REWARD} | {f"rollout{n}": ROLLOUT for n in range(ROLLOUTS)}
FAULTS = {"learner": 5, "reward": 4, "rollout0": 4, "rollout1": 4, "redis": 2, "pause": 3, "loss": 1}
"""How often each happens, in proportion."""
RUN_SECONDS = 900.0


@dataclass
class Round:
    """One run and what is done to it."""

    pipeline: Pipeline
    random: random.Random
    planned_kills: int
    seconds_between: float = 1.0
    faults: Counter[str] = field(default_factory=Counter)
    _checkpoint: Path | None = None

    @property
    def kills(self) -> int:
        return len(self.pipeline.deaths) + self.faults["redis"]

    @property
    def finished(self) -> bool:
        return self.pipeline.process("learner").status == 0

    def disturb(self) -> None:
        """Strike again and again until the kills are used up or the run is over; then let it finish."""
        while not self.finished and self.kills < self.planned_kills:
            moment = time.monotonic() + self.random.uniform(0, 2 * self.seconds_between)
            self.pipeline.wait(lambda moment=moment: self.finished or time.monotonic() > moment, "a moment")  # type: ignore[misc]
            (fault,) = self.random.choices(list(FAULTS), list(FAULTS.values()))
            if not self.finished:
                self._strike(fault)
        for planned in self.pipeline.strikes.values():
            planned.clear()
        self.pipeline.finish(RUN_SECONDS)

    def _strike(self, fault: str) -> None:
        self.faults[fault] += 1
        if fault == "redis":
            self.pipeline.redis.kill()
            self.pipeline.redis.start()
        elif fault == "loss":
            stream = self.random.choice(("prompts", "rollouts", "experiences"))
            self.pipeline.client.delete(self.pipeline.streams.key(stream))
        elif fault == "pause":
            process = self.pipeline.process(self.random.choice(list(POINTS)))
            process.strike(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.5, 3.0))  # up to more than its lease
            process.strike(signal.SIGCONT)
        elif fault == "learner" and not self._learner_got_on():
            self.faults[fault] -= 1
        else:
            if self.random.random() < 0.5:  # the next process of the name dies at a point of its code
                self.pipeline.strikes[fault].append(self.random.choice(POINTS[fault]))
            self.pipeline.process(fault).strike(signal.SIGKILL)

    def _learner_got_on(self) -> bool:
        """Whether there is a checkpoint since its last death. Without that it would never get anywhere."""
        newest = checkpoint.newest(self.pipeline.run / "checkpoints")
        before, self._checkpoint = self._checkpoint, newest
        return newest is not None and newest != before


def start(folder: Path, workspace: Path, steps: int, max_staleness: int) -> Pipeline:
    return Pipeline(
        folder, workspace, rollouts=ROLLOUTS, strikes={name: [] for name in POINTS}, steps=steps,
        groups_per_step=GROUPS_PER_STEP, max_staleness=max_staleness, checkpoint_every=3,
    )  # fmt: skip


def undisturbed(folder: Path, workspace: Path, steps: int) -> dict[str, str]:
    """Weights of a synchronous run that is left in peace."""
    with start(folder, workspace, steps, max_staleness=0) as pipeline:
        pipeline.finish(RUN_SECONDS)
        assert audit(pipeline, steps, GROUPS_PER_STEP) == {}
        return weights_of(pipeline.run)


def soak(folder: Path, kills: int, groups: int, seed: int) -> Counter[str]:
    """At least so many kills over at least so many groups. Returns what was done in sum.

    Raises:
    AssertionError: a promise was broken; the message says which, and the lines above with which seed.
    """
    workspace = make_workspace(folder / "workspace")
    steps = min(STEPS, max(6, groups // GROUPS_PER_STEP))
    weights = undisturbed(folder / "undisturbed", workspace, steps)
    done: Counter[str] = Counter()
    number = 0
    while done["groups"] < groups or done["kills"] < kills:
        rounds_left = max(1, -(-(groups - done["groups"]) // (steps * GROUPS_PER_STEP)))
        planned = max(1, -(-(kills - done["kills"]) // rounds_left))
        max_staleness = (0, 2)[number % 2]
        print(f"round {number} seed {seed}/{number} max_staleness {max_staleness}: ", end="", flush=True)
        started = time.monotonic()
        with start(folder / f"round{number}", workspace, steps, max_staleness) as pipeline:
            turn = Round(pipeline, random.Random(f"{seed}/{number}"), planned)
            turn.disturb()
            dead = audit(pipeline, steps, GROUPS_PER_STEP)
            if max_staleness == 0 and not dead:  # another group takes a dead one's place
                assert weights_of(pipeline.run) == weights, "the weights show what happened"
        this = Counter(kills=turn.kills, groups=steps * GROUPS_PER_STEP, dead=len(dead))
        killed = Counter(f"{name} killed" for name, _ in pipeline.deaths)
        other = {name: turn.faults[name] for name in ("redis", "pause", "loss")}
        print(f"{dict(this)} {dict(killed)} {other} in {time.monotonic() - started:.0f} s", flush=True)
        done += this + killed + Counter(other)
        number += 1
    return done


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"soak: seed {seed}, at least {arguments.kills} kills over {arguments.groups} groups", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollstream-soak-") as folder:
        done = soak(Path(folder), arguments.kills, arguments.groups, seed)
    print(f"soak: every promise kept in {time.monotonic() - started:.0f} s: {dict(done)}")


if __name__ == "__main__":
    main()
