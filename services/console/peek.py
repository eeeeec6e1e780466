"""Stream entries as a person reads them."""

import json
from collections.abc import Iterator, Mapping

from rich.console import Group as Lines
from rich.panel import Panel
from rich.text import Text

from services.console.passage import passage
from services.console.progress import MEASURED
from services.console.screen import clock
from shared.codec import MalformedEntry, decode_group, decode_prompt, intact_payload
from shared.entry import Entry, seconds_of
from shared.experience import Completion, Group, Prompt
from shared.heldout import solved_shares
from shared.stream import STREAMS, Streams

PEEKABLE = (*STREAMS, "dead", "events")


def peek(streams: Streams, name: str, count: int) -> list[Panel | Text]:
    """The newest `count` entries of a stream, oldest first. Nobody's delivery is touched.

    Raises:
    ValueError: there is no stream of that name.
    """
    if name not in PEEKABLE:
        raise ValueError(f"there is no stream {name!r}; the streams are {', '.join(PEEKABLE)}")
    return [
        _event(entry) if name == "events" else entry_panel(name, entry) for entry in streams.tail(name, count)
    ]


def _event(entry: Entry) -> Text:
    """One line, however long."""
    fields = entry.fields
    return Text.assemble(
        (clock(float(fields["at"])), "dim"),
        (f" {fields['service']:<8} ", "cyan"),
        (f"{fields['kind']:<10} ", "bold"),
        _gist(json.loads(fields["text"])) if fields["kind"] in MEASURED else " ".join(fields["text"].split()),
    )


def _gist(metrics: Mapping[str, float]) -> str:
    """Of a step or an evaluation with its dozens of metrics, what people look for first."""
    words = [f"step {metrics['step']:.0f}"]
    if "reward/mean" in metrics:
        words.append(f"reward {metrics['reward/mean']:.3f}")
    words += [
        f"{name} {share:.3f}" if "pass@" in name else f"{name} accuracy {share:.3f}"
        for name, share in solved_shares(metrics).items()
    ]
    return ", ".join(words)


def entry_panel(name: str, entry: Entry) -> Panel:
    """An entry whole and decoded; of a dead letter also why it died and the way it came."""
    lines = list(_letter_lines(entry) if name == "dead" else _lines(name, entry))
    at = clock(seconds_of(entry.entry_id))
    return Panel(Lines(*lines), title=f"{name} {entry.id or entry.entry_id} at {at}", title_align="left")


def _letter_lines(letter: Entry) -> Iterator[Text]:
    fields = letter.fields
    facts = f"{fields.get('stage')}, {fields.get('kind')}, attempt {fields.get('attempts')}"
    yield Text(f"{facts}: {fields.get('cause')}", style="red")
    for moment in passage(fields):
        yield Text(f"{clock(moment.at, digits=3)} {moment.where:<8} {moment.text}", style="dim")
    yield Text(f"{clock(seconds_of(letter.entry_id), digits=3)} given up by {fields.get('by')}", style="dim")
    yield from _lines(fields.get("stream", ""), letter)


def _lines(stream: str, entry: Entry) -> Iterator[Text]:
    try:
        if stream == "prompts":
            yield from _prompt_lines(decode_prompt(intact_payload(entry)))
        else:
            yield from _group_lines(decode_group(intact_payload(entry)))
    except MalformedEntry as error:
        yield Text(f"the payload cannot be read: {error}", style="red")


def _prompt_lines(prompt: Prompt) -> Iterator[Text]:
    sampling, completions = prompt.sampling, f"completion{'' if prompt.n == 1 else 's'}"
    yield Text(
        f"{prompt.purpose}, row {prompt.index} of epoch {prompt.epoch}, {prompt.n} {completions} of at most "
        f"{sampling.max_tokens} tokens at temperature {sampling.temperature:g}, "
        f"issued at version {prompt.issued_version}",
        style="dim",
    )
    yield Text(prompt.text)
    if prompt.ground_truth is not None:
        yield Text.assemble(("ground truth ", "dim"), prompt.ground_truth)


def _group_lines(group: Group) -> Iterator[Text]:
    yield from _prompt_lines(group.prompt)
    yield Text(f"by {group.worker}, weights {group.weights_digest[:12]}", style="dim")
    for completion in group.completions:
        yield _completion_line(completion)
    for cause in group.failed:
        yield Text(f"a completion is missing: {cause}", style="red")


def _completion_line(completion: Completion) -> Text:
    if completion.reward is None:
        score = ("not scored", "dim")
    else:
        score = (f"{completion.reward:8.3f}", "bold green" if completion.reward > 0 else "bold yellow")
    components = " ".join(f"{name}={value:g}" for name, value in completion.components.items())
    versions = "+".join(str(span.version) for span in completion.version_spans)
    facts = (
        f"  {len(completion.token_ids)} tokens, {completion.finish_reason}, version {versions} {components}"
    )
    return Text.assemble(score, "  ", completion.text, (facts.rstrip(), "dim"))
