"""Stream entries as a person reads them."""

import time
from collections.abc import Iterator

from rich.console import Group as Lines
from rich.panel import Panel
from rich.text import Text

from shared.codec import MalformedEntry, decode_group, decode_prompt
from shared.experience import Completion, Group, Prompt
from shared.stream import STREAMS, Entry, Streams

PEEKABLE = (*STREAMS, "dead", "events")


def peek(streams: Streams, name: str, count: int) -> list[Panel | Text]:
    """The newest `count` entries of a stream, oldest first. Nobody's delivery is touched.

    Raises:
    ValueError: there is no stream of that name.
    """
    if name not in PEEKABLE:
        raise ValueError(f"there is no stream {name!r}; the streams are {', '.join(PEEKABLE)}")
    return [_event(entry) if name == "events" else _panel(name, entry) for entry in streams.tail(name, count)]


def _event(entry: Entry) -> Text:
    fields = entry.fields
    return Text.assemble(
        (_clock(float(fields["at"])), "dim"),
        (f" {fields['service']:<8} ", "cyan"),
        (f"{fields['kind']:<10} ", "bold"),
        fields["text"],
    )


def _panel(name: str, entry: Entry) -> Panel:
    source = entry.fields.get("stream", "") if name == "dead" else name
    lines = list(_lines(source, entry))
    if name == "dead":
        cause = f"{entry.fields['stage']}, attempt {entry.fields['attempts']}: {entry.fields['cause']}"
        lines.insert(0, Text(cause, style="red"))
    at = int(entry.entry_id.split("-")[0]) / 1000
    return Panel(Lines(*lines), title=f"{name} {entry.id} at {_clock(at)}", title_align="left")


def _lines(stream: str, entry: Entry) -> Iterator[Text]:
    try:
        if stream == "prompts":
            yield from _prompt_lines(decode_prompt(entry.payload))
        else:
            yield from _group_lines(decode_group(entry.payload))
    except MalformedEntry as error:
        yield Text(f"the payload cannot be read: {error}", style="red")


def _prompt_lines(prompt: Prompt) -> Iterator[Text]:
    sampling = prompt.sampling
    yield Text(
        f"{prompt.purpose}, row {prompt.index} of epoch {prompt.epoch}, {prompt.n} completions of at most "
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


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
