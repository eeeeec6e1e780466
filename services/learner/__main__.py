"""`torchrun -m services.learner --config run.toml`, or `python -m services.learner` for one rank."""

import os
import sys

import redis

from services.learner.config.learner import LearnerSettings
from shared.config import fail, parse_command_line
from shared.stream import Fenced
from shared.telemetry import set_up_logging


def main() -> None:
    arguments = ["--learner.resume=true" if word == "--resume" else word for word in sys.argv[1:]]
    settings = parse_command_line(LearnerSettings, "services.learner", arguments)
    set_up_logging("learner")
    if not settings.model.path.is_dir():
        fail(f"model.path {settings.model.path} is not a folder; give a local Hugging Face model")

    # How long OpenMP's threads spin while they wait for one another: some 30 microseconds. Not at all makes a
    # PPO step half as long again on a free machine; the default makes it many times as long on a busy one.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    # torch only after the configuration is known to be good
    from services.learner.distributed import join_world
    from services.learner.train import train

    world = join_world()
    try:
        train(settings, world)
    except (ValueError, Fenced, redis.RedisError) as error:
        fail(str(error))
    finally:
        world.leave()


if __name__ == "__main__":
    main()
