"""One training run on this machine, from the first process to the last."""

from services.console.launcher import Interrupted, Launcher
from services.console.resolved import Resolved
from services.console.screen import Screen
from services.console.stack import Stack, StackError


def train(resolved: Resolved) -> int:
    """Start the stack, watch it until the learner ends, stop it. The learner's exit status, or our own.

    Raises:
    ValueError: a port is in use, or Redis is not fit.
    """
    with Screen() as screen, Launcher(resolved.console.stop_timeout) as launcher:
        try:
            stack = Stack(resolved, launcher, screen)
            stack.start()
            return stack.run(lambda: None)
        except StackError as error:
            screen.fail(str(error))
            return 1
        except Interrupted as interruption:
            screen.say("console", f"{interruption}; stopping the services")
            return interruption.exit_status
