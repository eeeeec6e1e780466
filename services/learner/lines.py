"""What the learner tells of a step and of an evaluation in its log, one line each."""

from collections.abc import Mapping

from shared.heldout import evaluated_prompts, solved_shares


def step_line(metrics: Mapping[str, float]) -> str:
    return (
        f"step {metrics['step']:.0f}  reward {metrics['reward/mean']:.3f}  kl {metrics['objective/kl']:.4f}  "
        f"staleness {metrics['staleness/mean']:.2f}  {metrics['time/step']:.2f} s  "
        f"{metrics['tokens/generated_per_second']:,.0f} tokens/s generated, "
        f"{metrics['tokens/trained_per_second']:,.0f} trained"
    )


def evaluation_line(metrics: Mapping[str, float]) -> str:
    shares = ", ".join(f"{name} {share:.3f}" for name, share in solved_shares(metrics).items())
    counts = evaluated_prompts(metrics)
    named = len(counts) > 1
    prompts = ", ".join(f"{name} {count:,}" if named else f"{count:,}" for name, count in counts.items())
    return f"held-out accuracy after step {metrics['step']:.0f}: {shares} ({prompts} prompts)"
