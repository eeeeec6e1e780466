"""Groups as the rollout service would deliver them."""

from collections.abc import Sequence

from shared.codec import encode
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan
from shared.stream import Streams

RIGHT = "<think>r</think><answer>18</answer>"
WRONG = "<think>r</think><answer>19</answer>"
UNFINISHED = "<think>r"


def make_group(id: str, texts: Sequence[str], ground_truth: str | None = "18", tokens: int = 3) -> Group:
    prompt = Prompt(
        id=id,
        epoch=0,
        index=0,
        n=len(texts),
        issued_version=4,
        text="How many?",
        token_ids=Int32Array([1, 2]),
        sampling=Sampling(max_tokens=tokens),
        ground_truth=ground_truth,
        metadata={"source": "test"},
    )
    completions = [
        Completion(
            token_ids=Int32Array(range(tokens)),
            logprobs=Float32Array([-0.5] * tokens),
            text=text,
            finish_reason="stop",
            version_spans=[VersionSpan(4, tokens)],
        )
        for text in texts
    ]
    return Group(prompt=prompt, completions=completions, worker="rollout-1", weights_digest="d" * 64)


def deliver(streams: Streams, *groups: Group) -> None:
    for group in groups:
        add(streams, group.prompt.id, encode(group))


def add(streams: Streams, id: str, payload: bytes) -> None:
    streams.client.xadd(streams.key("rollouts"), {"id": id, "payload": payload})
