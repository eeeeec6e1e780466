"""vLLM's statistics of each step: for Prometheus as vLLM shows them, and for the concurrency controller."""

import time
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from services.rollout.load_log import LoadLog


class StepStats(PrometheusStatLogger):
    """Takes the place of vLLM's own Prometheus logger, which observes a histogram for every token: time that
    an engine on CPU has no other core for. `vllm:inter_token_latency_seconds` therefore stays empty.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.load = LoadLog(self.vllm_config.scheduler_config.max_num_seqs)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        *arguments: Any,
        **named: Any,
    ) -> None:
        """What a step left behind. Called in the event loop."""
        preempted = 0
        if iteration_stats is not None:
            iteration_stats.inter_token_latencies_iter.clear()
            preempted = iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self.load.record(
                scheduler_stats.num_running_reqs,
                scheduler_stats.num_waiting_reqs,
                scheduler_stats.kv_cache_usage,
                preempted,
                time.monotonic(),
            )
        super().record(scheduler_stats, iteration_stats, *arguments, **named)
