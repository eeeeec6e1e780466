"""The live view of a run, and the same as plain lines."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group as Lines
from rich.panel import Panel
from rich.table import Table

from services.console.progress import Progress
from services.console.queues import queue_table
from services.console.workers import work_of
from shared.heldout import solved_shares

BARS = "▁▂▃▄▅▆▇█"
POINTS = 40
LEGEND = (
    "version: updates that the weights have seen; servers behind the learner get no new prompts. "
    "work: what each process has done since its start and holds now. Below: figures of the newest step; "
    "staleness: by how many versions its tokens are older than the policy."
)


def run_panel(progress: Progress, run: str, total_steps: int, seconds: float) -> Panel:
    """Everything at a glance: training, rates, workers, queues."""
    step = progress.newest_step
    done = int(step.get("step", 0))
    title = f"{run}   step {done}/{total_steps}   {seconds // 60:.0f}:{seconds % 60:02.0f}"
    lines = [_training(progress), worker_table(progress), queue_table(progress.queues)]
    return Panel(Lines(*(part for line in lines for part in (line, ""))), title=title, title_align="left")


def status_views(progress: Progress, past: Sequence[str] = ()) -> list[Table | str]:
    """Workers and rates of a run, for one look at it.

    Args:
    past: lines about it that matter when nobody works for it.
    """
    if progress.workers:
        return [_headline(progress), worker_table(progress), "", _training(progress)]
    return [f"no service of run {progress.run} is alive", *past, "", _training(progress)]


def _headline(progress: Progress) -> str:
    """The run and how far it is; the learner's heartbeat tells that, also before its first step."""
    learner = next((worker for worker in progress.workers if worker["service"] == "learner"), None)
    if learner is None:
        return f"{progress.run}: no learner is alive"
    return f"{progress.run}: step {learner['version']} of {learner['steps']}"


def worker_table(progress: Progress) -> Table:
    table = Table("worker", "version", "state", "work", box=None, pad_edge=False)
    for worker in progress.workers:
        version, state = worker.get("version"), worker.get("state", "")
        table.add_row(worker["id"], "-" if version is None else str(version), state, work_of(worker))
    return table


def _training(progress: Progress) -> Table:
    step = progress.newest_step
    table = Table.grid(padding=(0, 2))
    rewards = [row["reward/mean"] for _, row in sorted(progress.steps.items())]
    table.add_row("reward", _number(step, "reward/mean"), sparkline(rewards))
    shares = [solved_shares(row) for _, row in sorted(progress.evaluations.items())]
    for name in dict.fromkeys(name for row in shares for name in row):
        shown = name if "pass@" in name else f"{name} accuracy"
        table.add_row(shown, _number(shares[-1], name), sparkline(row[name] for row in shares if name in row))
    table.add_row("KL to reference", _number(step, "objective/kl"), "per completion")
    generated, trained = (
        _number(step, f"tokens/{kind}_per_second", ",.0f") for kind in ("generated", "trained")
    )
    table.add_row("tokens/s", generated, f"generated, {trained} trained")
    mean, highest = _number(step, "staleness/mean"), _number(step, "staleness/max")
    table.add_row("staleness", mean, f"mean, {highest} at most")
    return table


def sparkline(values: Iterable[float]) -> str:
    """The last values as a row of bars, the lowest and the highest of them at the ends of the scale."""
    shown = list(values)[-POINTS:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


def _number(metrics: Mapping[str, float], name: str, form: str = ".3f") -> str:
    return format(metrics[name], form) if name in metrics else "-"
