"""What only rank 0 does: talk to Redis and the rollout servers, write checkpoints, metrics and the report."""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedTokenizerBase

from services.learner import checkpoint
from services.learner.algorithm.schedule import is_due
from services.learner.algorithm.state import AlgorithmState
from services.learner.completions import scorer_means, write_completions
from services.learner.config.learner import LearnerSettings
from services.learner.data.chat_template import ChatTemplate
from services.learner.data.dataset import load_datasets
from services.learner.data.prompts import PromptSource
from services.learner.evaluate import Evaluator
from services.learner.feed import Feed
from services.learner.gap_alarm import GapAlarm
from services.learner.lines import evaluation_line, step_line
from services.learner.metrics_server import MetricsServer
from services.learner.models.snapshot import Snapshot
from services.learner.prometheus import LearnerMetrics
from services.learner.report import Report
from services.learner.tracking import Trackers
from services.learner.trained_groups import TrainedGroups
from services.learner.weight_sync import WeightPublisher
from shared.auth import token_from_environment
from shared.experience import Group
from shared.outage import insist_at_start
from shared.queue_metrics import QueueMetrics
from shared.stream import STREAMS, Streams, check_server, connect
from shared.telemetry import JsonLines, keep_lines
from shared.vocabulary import vocabulary_digest
from shared.workers import Heartbeat

log = logging.getLogger("rollstream.learner")


class Coordinator:
    """Rank 0's connections and files."""

    def __init__(
        self,
        settings: LearnerSettings,
        tokenizer: PreTrainedTokenizerBase,
        chat: ChatTemplate,
        resume: Path | None,
    ) -> None:
        config, run = settings.learner, settings.run
        self._settings = settings
        self._tokenizer = tokenizer
        self.resumed_from = resume
        model = AutoConfig.from_pretrained(settings.model.path, trust_remote_code=False)
        vocabulary = model.get_text_config().vocab_size
        sampling = chat.stopping(config).sampling(config.temperature, vocabulary)
        training, heldout = load_datasets(config, tokenizer, config.system_message or chat.system_message)

        token = token_from_environment()
        client = connect(settings.redis.url)
        check_server(client, settings.redis.url)
        self._prometheus = LearnerMetrics()
        self._door = None
        if config.metrics_port is not None:  # before the learner that may still be running is fenced out
            self._door = MetricsServer(
                config.metrics_host, config.metrics_port, token, self._prometheus.registry
            )
            log.info("metrics at %s", self._door.url)
        self.streams = Streams(client, run.name)
        self._learner_epoch = learner_epoch = insist_at_start(self.streams.next_learner_epoch)
        # After a resume, what was in flight belongs to a policy that is gone; its prompts are issued again.
        forget = self.streams.forget_work if resume else self.streams.forget_run
        insist_at_start(lambda: forget(learner_epoch))
        self.publisher = WeightPublisher(
            self.streams, token, learner_epoch, self._prometheus, vocabulary_digest(settings.model.path)
        )
        self.feed = Feed(
            self.streams,
            PromptSource(run.name, training, run.seed, config.completions_per_prompt, sampling),
            learner_epoch=learner_epoch,
            vocabulary=vocabulary,
            groups_per_step=config.groups_per_step,
            max_staleness=config.max_staleness,
            total_groups=config.steps * config.groups_per_step,
            timeout=config.rollout_timeout,
            while_waiting=self.publisher.check,
            digest_of=self.publisher.digest,
        )
        self._prometheus.show_feed(
            self.feed.counts, self.feed.deaths, lambda: self.feed.in_flight, self._credits
        )
        self._prometheus.registry.register(QueueMetrics("learner", self.streams, (*STREAMS, "dead")))
        self._gap_alarm = GapAlarm(self.streams, sampling)
        self.step = 0
        self.report = Report(
            run.path / "report.json", run.name, run.seed, sum(part.too_long for part in training)
        )
        if resume:
            state = checkpoint.load_loop_state(resume)
            self.step = state["step"]
            self.feed.restore(state["feed"])
            self.report.restore(state["report"])
            log.info("resumed from %s", resume)
            # The evaluation of this step is made again.
            keep_lines(
                run.path / "metrics.jsonl",
                lambda row: row["step"] < self.step or (row["step"] == self.step and "eps" in row),
            )
        asked = [(dataset.name, dataset.rows) for dataset in heldout]
        self._evaluator = Evaluator(run.name, self.feed, asked, sampling, config) if asked else None
        self._metrics = JsonLines(run.path / "metrics.jsonl")
        self._trained = TrainedGroups(run.path, self.step)
        known = settings.model_dump(mode="json", exclude={"redis"})  # whose URL may hold a password
        self._trackers = Trackers(config.trackers, run.path, known, self.step if resume else None)
        self._heartbeat = Heartbeat(self.streams, "learner", "learner", self._facts)
        insist_at_start(self._heartbeat.start)

    @classmethod
    def open(
        cls, settings: LearnerSettings, tokenizer: PreTrainedTokenizerBase, chat: ChatTemplate
    ) -> "Coordinator":
        """Raises:
        ValueError: bad input, or a run of this name that has checkpoints and is not to be resumed.
        """
        newest = checkpoint.newest(settings.run.path / "checkpoints")
        if settings.learner.resume and newest is None:
            raise ValueError(f"nothing to resume: {settings.run.path} has no whole checkpoint")
        if newest and not settings.learner.resume:
            raise ValueError(
                f"{newest} exists: go on from it with --resume, choose another run.name, "
                f"or remove {settings.run.path}"
            )
        return cls(settings, tokenizer, chat, newest)

    def finish_step(
        self, step: int, groups: Sequence[Group], metrics: dict[str, float], seconds: float
    ) -> None:
        """Return the credits of a published step, issue what they allow, and tell people about it."""
        self.step = step
        self._trained.write(step, self.feed.consumed(groups))
        self.feed.issue(step)
        config = self._settings.learner
        generated = sum(group.tokens for group in groups)
        completions = sum(len(group.completions) for group in groups)
        metrics |= {
            "eps": completions / seconds,
            "episode": step * config.groups_per_step * config.completions_per_prompt,
            "time/step": seconds,
            "tokens/generated_per_second": generated / seconds,
            "tokens/trained_per_second": metrics["tokens/trained"] / seconds,
            "queue/in_flight": self.feed.in_flight,
            "queue/issued": self.feed.counts["issued"],
            "queue/trained": self.feed.counts["trained"],
            "queue/dead": self.feed.counts["dead"],
            "queue/duplicates": self.feed.counts["duplicates"],
            "completions/failed": sum(len(group.failed) for group in groups),
            **scorer_means(groups),
        }
        self._prometheus.count_step(step, groups, seconds, metrics["time/wait"])
        self._gap_alarm.look(step, metrics)
        self.report.add_step(metrics)
        log.info(step_line(self._log("step", step, metrics)))
        if step == 1 or is_due(step, config.log_completions_every, config.steps):
            self._write_completions(step, groups)

    def evaluate(self, step: int) -> None:
        """Held-out evaluation of the published policy; all rows before the first and after the last step."""
        if not self._evaluator:
            return
        config = self._settings.learner
        ends = step in (0, config.steps)
        started = time.monotonic()
        metrics, groups = self._evaluator.run(step, count=10**9 if ends else config.evaluate_prompts)
        metrics["time/evaluate_heldout"] = time.monotonic() - started
        log.info(evaluation_line(self._log("eval", step, metrics)))
        if ends:
            self.report.add_heldout("before" if step == 0 else "after", metrics)
            self._write_completions(step, groups, name="heldout")

    def checkpoint(
        self,
        step: int,
        state: AlgorithmState,
        models: Snapshot,
    ) -> None:
        """Write a durable checkpoint, then acknowledge the experience it holds."""
        self.feed.confirm_ownership()
        path = checkpoint.save(
            self._settings.run.path / "checkpoints",
            step,
            models=models,
            tokenizer=self._tokenizer,
            loop_state={
                "step": step,
                "algorithm": state.as_json(),
                "feed": self.feed.state(),
                "report": self.report.state(),
            },
            learner_epoch=self._learner_epoch,
            keep=self._settings.learner.keep_checkpoints,
        )
        self.feed.release()
        self.streams.event("checkpoint", "learner", str(path))
        log.info("checkpoint %s", path)

    def close(self) -> None:
        """Write the report and leave."""
        self.report.write(self.feed.counts)
        self._metrics.close()
        self._trained.close()
        self._trackers.close()
        self.publisher.close()
        if self._door:
            self._door.close()
        self._heartbeat.stop()

    def _log(self, kind: str, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Tell everybody who keeps metrics; returns the row they got."""
        row = {"step": step, **{name: float(f"{value:.7g}") for name, value in metrics.items()}}
        self._metrics.write(row)
        self.streams.event(kind, "learner", json.dumps(row))
        self._trackers.log(metrics, step)
        return row

    def _write_completions(self, step: int, groups: Sequence[Group], name: str = "step") -> None:
        write_completions(self._settings.run.path / "completions" / f"{name}-{step:06d}.jsonl", groups)

    @property
    def _credits(self) -> int:
        config = self._settings.learner
        return (config.max_staleness + 1) * config.groups_per_step

    def _facts(self) -> dict[str, Any]:
        config = self._settings.learner
        return {
            "version": self.step,
            "steps": config.steps,
            "groups_in_flight": self.feed.in_flight,
            "credits": self._credits,
            "state": "training",
        }
