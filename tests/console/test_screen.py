"""Lines and views, on a terminal and off it."""

import io

import pytest
from rich.console import Console

from services.console.screen import Screen


def screen_on(terminal: bool) -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    console = Console(
        file=output, force_terminal=terminal, width=80, highlight=False, _environ={"TERM": "xterm"}
    )
    return Screen(console), output


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_without_a_terminal_there_are_lines_and_no_view() -> None:
    screen, output = screen_on(terminal=False)
    with screen:
        screen.say("reward", "ready")
        screen.show("the view")
    assert output.getvalue().split()[1:] == ["reward", "ready"]
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_the_view_stays_below_the_lines() -> None:
    screen, output = screen_on(terminal=True)
    with screen:
        screen.show("the view")
        screen.say("reward", "ready")
        screen.show("a newer view")
    text = output.getvalue()
    assert "\x1b[" in text
    assert text.index("the view") < text.index("ready") < text.index("a newer view")


def test_in_ci_there_is_no_view_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    screen, output = screen_on(terminal=True)
    with screen:
        screen.show("the view")
    assert "the view" not in output.getvalue()


def test_only_our_own_lines_of_a_log_are_repeated() -> None:
    screen, output = screen_on(terminal=False)
    screen.repeat("rollout", "12:00:01 INFO rollout serving version 3")
    screen.repeat("rollout", "INFO 11-21 00:14:25 [core.py:1] engine noise")
    screen.repeat("rollout", "error: the model path is missing")
    lines = [line.split(maxsplit=2)[1:] for line in output.getvalue().splitlines()]
    assert lines == [["rollout", "serving version 3"], ["rollout", "error: the model path is missing"]]


def test_text_from_elsewhere_is_no_markup() -> None:
    screen, output = screen_on(terminal=False)
    screen.say("learner", "a [bold]b")
    screen.fail("c [red]d")
    assert "a [bold]b" in output.getvalue() and "c [red]d" in output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_lines_of_steps_make_way_for_the_live_view(terminal: bool) -> None:
    screen, output = screen_on(terminal)
    screen.repeat("learner", "12:00:01 INFO learner step 3  reward 5.500  kl 0.2500")
    screen.repeat("learner", "12:00:02 INFO learner held-out accuracy after step 3: greedy 0.750")
    assert ("reward 5.500" in output.getvalue()) is not terminal
    assert "greedy 0.750" in output.getvalue()
