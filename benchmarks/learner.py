"""`python -m benchmarks.learner`: how fast the learner trains, beside a bare loop and the padded way.

All contenders train copies of one model on the same made-up completions, in turn within each round, so that
whatever else the machine does strikes all of them. What counts is the ratio of medians.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.contenders import Contender, Task, equal_lengths, learner, like_lengths, padded, recut
from benchmarks.workload import Spread, make_batch, make_targets
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import minibatches
from services.learner.distributed import World
from services.learner.models.policy import load_policy
from services.learner.models.scores import score_completions

CONTENDERS: dict[str, Callable[[Task], Contender]] = {
    "learner": learner,
    "bare, recut to one length": recut,
    "bare, recut, plain sdpa": lambda task: recut(task, "sdpa"),
    "bare, exact lengths": equal_lengths,
    "padded": padded,
    "padded, like lengths": like_lengths,
}
SPREADS: tuple[Spread, ...] = ("demo", "lognormal")


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or make_model(Path(folder), options.hidden, options.layers, options.vocabulary)
        for spread in [options.spread] if options.spread else SPREADS:
            compare(path, spread, device, options)


def make_model(folder: Path, hidden: int, layers: int, vocabulary: int) -> Path:
    """A Llama of random weights; by default the demo's shape."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    return folder / "model"


def compare(path: Path, spread: Spread, device: torch.device, options: argparse.Namespace) -> None:
    """Measure all contenders on one spread of lengths, and print the table."""
    task = make_task(path, spread, device, options)
    contenders = {name: CONTENDERS[name](task) for name in options.only or CONTENDERS}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(-1, options.repeats):  # the first round warms up
        for name, contender in contenders.items():
            started = time.perf_counter()
            contender.epoch()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_number >= 0:
                seconds[name].append(time.perf_counter() - started)
    rates = {name: contenders[name].tokens / statistics.median(taken) for name, taken in seconds.items()}
    _print_table(task, spread, rates, seconds, options)
    if options.profile:
        for name, contender in contenders.items():
            _print_profile(name, contender, device)


def make_task(path: Path, spread: Spread, device: torch.device, options: argparse.Namespace) -> Task:
    policy = load_policy(path)
    policy.to(device)  # type: ignore[arg-type]
    vocabulary = policy.config.get_text_config().vocab_size
    batch = make_batch(spread, options.sequences, vocabulary, seed=0).to(device)
    with torch.no_grad():  # in passes of a few rows, as the learner has them
        old = torch.zeros(batch.completion_mask.shape, device=device)
        for rows in torch.arange(len(batch)).split(8):
            part = batch.rows(rows.tolist())
            scores = score_completions(policy, part, 1.0, options.precision)
            old[rows, : part.completion_mask.shape[1]] = scores.logprobs
    generator = torch.Generator().manual_seed(0)
    return Task(
        model=path,
        batch=batch,
        targets=make_targets(batch, old, seed=0),
        minibatches=minibatches(len(batch), options.minibatches, generator),
        config=AlgorithmConfig(
            precision=options.precision,
            micro_batch_tokens=options.micro_batch_tokens,
            kl_coef=0.0,
            advantage_estimator="reinforce_plus_plus",  # an estimator without a critic
        ),
        world=World(rank=0, size=1, device=device, mesh=None),
    )


def _print_table(
    task: Task,
    spread: Spread,
    rates: dict[str, float],
    seconds: dict[str, list[float]],
    options: argparse.Namespace,
) -> None:
    lengths = task.batch.lengths
    parameters = sum(p.numel() for p in load_policy(task.model).parameters())
    print(
        f"\n{spread} lengths: {len(task.batch)} sequences of {int(lengths.min())} to {int(lengths.max())} "
        f"tokens, {int(lengths.sum())} together; {parameters / 1e6:.2f} M parameters, {options.precision}, "
        f"{options.device}, {options.threads} threads, {options.minibatches} minibatches, passes of "
        f"{options.micro_batch_tokens} tokens, {options.repeats} rounds, torch {torch.__version__}\n"
    )
    print("| | tokens/s | seconds, median | min | max | learner is |")
    print("|---|---|---|---|---|---|")
    for name, rate in rates.items():
        taken = seconds[name]
        ratio = f"{rates['learner'] / rate:.2f} x" if "learner" in rates else ""
        print(
            f"| {name} | {rate:,.0f} | {statistics.median(taken):.3f} | {min(taken):.3f} | "
            f"{max(taken):.3f} | {ratio} |"
        )
    bounds = [rate for name, rate in rates.items() if name.startswith("bare")]
    if "learner" in rates and bounds:
        print(f"\nlearner / fastest bare loop: {rates['learner'] / max(bounds):.2f} (target 0.85)")
    if "learner" in rates and "padded" in rates:
        print(f"learner / padded: {rates['learner'] / rates['padded']:.2f} (target 1.5, lognormal lengths)")


def _print_profile(name: str, contender: Contender, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiled:
        contender.epoch()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(f"\n{name}\n{profiled.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=50)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: random, the demo's shape")
    parser.add_argument("--hidden", type=int, default=192, help="of the random model (default 192)")
    parser.add_argument("--layers", type=int, default=3, help="of the random model (default 3)")
    parser.add_argument("--vocabulary", type=int, default=262, help="of the random model (default 262)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--spread", choices=SPREADS, help="of lengths; default: one after the other")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--micro-batch-tokens", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="contenders; default: all")
    parser.add_argument("--profile", action="store_true", help="print where one more epoch of each goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
