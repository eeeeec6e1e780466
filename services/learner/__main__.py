"""`torchrun -m services.learner --config run.toml`, or `python -m services.learner` for one rank."""

import os
import sys

from services.learner.config import LearnerSettings
from shared.config import fail, parse_command_line
from shared.stream import Fenced
from shared.telemetry import set_up_logging


def main() -> None:
    arguments = ["--learner.resume=true" if word == "--resume" else word for word in sys.argv[1:]]
    settings = parse_command_line(LearnerSettings, "services.learner", arguments)
    set_up_logging("learner")
    if not settings.model.path.is_dir():
        fail(f"model.path {settings.model.path} is not a folder; give a local Hugging Face model")

    # OpenMP's threads otherwise spin while they wait for one another. Where anything else wants the cores, as
    # a rollout engine on the same machine does, that makes a PPO step several times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    # torch only after the configuration is known to be good
    from services.learner.distributed import join_world
    from services.learner.train import train

    world = join_world()
    try:
        train(settings, world)
    except (ValueError, Fenced) as error:
        fail(str(error))
    finally:
        world.leave()


if __name__ == "__main__":
    main()
