"""Prompts and groups as the services would put them on the streams."""

from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan


def a_prompt(index: int = 0, text: str = "Tom has 12 pens, buys 7. How many?") -> Prompt:
    return Prompt(
        id=f"id-{index}",
        epoch=0,
        index=index,
        n=2,
        issued_version=3,
        text=text,
        token_ids=Int32Array([1, 2, 3]),
        sampling=Sampling(max_tokens=16),
        ground_truth="19",
    )


def a_group(prompt: Prompt, rewards: tuple[float | None, float | None] = (None, None)) -> Group:
    """A right answer and a wrong one."""
    completions = [
        Completion(
            token_ids=Int32Array([5, 6]),
            logprobs=Float32Array([-0.5, -0.25]),
            text=text,
            finish_reason="stop",
            version_spans=[VersionSpan(3, 1), VersionSpan(4, 1)],
            reward=reward,
            components={} if reward is None else {"gsm8k_reward_fn": reward},
        )
        for text, reward in zip(("<answer>19</answer>", "<answer>[bold]5</answer>"), rewards, strict=True)
    ]
    return Group(prompt=prompt, completions=completions, worker="rollout-a", weights_digest="d" * 64)
