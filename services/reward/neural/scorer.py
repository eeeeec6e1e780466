"""The scorer that runs a reward model: tokens in, batches with other requests' items, one number per item."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.reward.neural.batching import Row
from services.reward.neural.config import STEPWISE, NeuralConfig
from services.reward.neural.engine import join, leave
from services.reward.neural.folder import check_folder, read_tensors
from services.reward.neural.heads import (
    Head,
    LinearHead,
    PooledHead,
    TokenLabelHead,
    next_token_head,
    value_layer,
)
from services.reward.neural.loading import load_tokenizer
from services.reward.neural.text import Renderer
from services.reward.protocol import NEVER, OVERDUE, Failure, Kind, Outcome, Steps, Unscorable
from services.reward.steps import aggregate
from shared.scoring import ScoreItem


class NeuralScorer:
    """A `Scorer` whose numbers come from a reward model in this process."""

    kind: Kind = "neural"
    waits = True

    def __init__(self, name: str, config: NeuralConfig) -> None:
        """Raises:
        ValueError: the model, its tokenizer or its adapter is not as the configuration says.
        """
        self.name = name
        self.description = f"reward model, {config.architecture.replace('_', ' ')}"
        self.parameters: dict[str, Any] = config.model_dump(mode="json", exclude={"kind", "weight"})
        self._config = config
        check_folder(config.path)
        tokenizer = load_tokenizer(config)
        self._engine, self._key = join(
            name, config, lambda model, device: _head(config, tokenizer, model, device)
        )
        try:
            longest = _longest(config, tokenizer, self._engine.model)
            self._renderer = Renderer(tokenizer, config, longest)
        except ValueError:
            self.close()
            raise
        text = self._engine.model.config.get_text_config()
        self._pad = getattr(text, "pad_token_id", None)

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """One outcome per item. The deadline holds for the batch that an item is in, from its start on."""
        outcomes: list[Outcome] = []
        for row in self._submit(items):
            if isinstance(row, Row):
                # Asked first: once a batch hangs, no row of it is waited for anew.
                while not (row.scores.done() or self._is_given_up(deadline_seconds, until)):
                    wait([row.scores], _patience(deadline_seconds, until))  # also behind others
            outcomes.append(self._outcome(row, deadline_seconds, until))
        return outcomes

    async def score_soon(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """The same, awaited."""
        outcomes: list[Outcome] = []
        for row in self._submit(items):
            if isinstance(row, Row) and not row.scores.done():
                scores = asyncio.wrap_future(row.scores)
                while not (scores.done() or self._is_given_up(deadline_seconds, until)):
                    await asyncio.wait([scores], timeout=_patience(deadline_seconds, until))
                if scores.done() and not scores.cancelled():
                    scores.exception()  # it is told of below; else asyncio complains that nobody looked
            outcomes.append(self._outcome(row, deadline_seconds, until))
        return outcomes

    def close(self) -> None:
        leave(self._engine, self._key)

    def _submit(self, items: Sequence[ScoreItem]) -> list[Row | Failure]:
        prepared = [self._row(item) for item in items]
        self._engine.batcher.submit([row for row in prepared if isinstance(row, Row)])
        return prepared

    def _row(self, item: ScoreItem) -> Row | Failure:
        try:
            ids, step_ends, text_ends = self._renderer.tokens(item)
        except Unscorable as error:
            return Failure("invalid", str(error))
        return Row(ids, step_ends or [self._last(ids)], self._key, text_ends)

    def _last(self, ids: list[int]) -> int:
        """The position of the state that is scored.

        Value heads read the last token. Sequence classification reads the last one that is not the padding
        token, as transformers does: where padding and end of text are the same token, it is the one before.
        """
        position = len(ids) - 1
        if self._config.architecture == "sequence_classification":
            while position > 0 and ids[position] == self._pad:
                position -= 1
            return position if ids[position] != self._pad else 0
        return position

    def _is_given_up(self, deadline_seconds: float, until: float) -> bool:
        """Waiting for a turn does not count until `until`, as long as the batches before it end in time."""
        if time.monotonic() >= until:
            return True
        began = self._engine.batcher.batch_began
        return began is not None and time.monotonic() - began >= deadline_seconds

    def _outcome(self, row: Row | Failure, deadline_seconds: float, until: float) -> Outcome:
        """Of a row that is done or given up."""
        if isinstance(row, Failure):
            return row
        if row.scores.cancel() or row.scores.cancelled():
            if time.monotonic() >= until:
                return OVERDUE
            return Failure("timeout", f"was busy with one batch for more than {deadline_seconds:g} s")
        try:
            scores = row.scores.result()
        except Exception as error:  # the model's, for this row alone
            return Failure("error", f"raised {type(error).__name__}: {error}")
        if self._config.architecture in STEPWISE:
            return Steps(aggregate(scores, self._config.steps.aggregation), scores, tuple(row.text_ends))
        return scores[0]


def _patience(deadline_seconds: float, until: float) -> float:
    return min(deadline_seconds, max(until - time.monotonic(), 0.0))


def _head(
    config: NeuralConfig, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, device: torch.device
) -> Head:
    """Raises:
    ValueError: the folder lacks the head.
    """
    match config.architecture:
        case "colossalchat":
            tensors = read_tensors(config.path, lambda name: name.startswith("value_head."))
            return LinearHead(value_layer(tensors, "value_head", device))
        case "llamafactory":
            folder = config.adapter or config.path
            tensors = read_tensors(folder, lambda name: name.startswith("v_head."))
            return LinearHead(value_layer(tensors, "v_head.summary", device))
        case "token_classification":
            return TokenLabelHead()
        case "causal_lm_steps":
            return next_token_head(model, tokenizer, config.steps)
        case "sequence_classification":
            # Decoders of transformers have one linear layer, `score`, on the last token's state.
            layer = getattr(model, "score", None)
            return PooledHead() if layer is None else LinearHead(layer)


def _longest(config: NeuralConfig, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Tokens that an input may have: as configured, else what model, tokenizer and batch all take."""
    if config.max_tokens is not None:
        return config.max_tokens
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limits = (positions, tokenizer.model_max_length, config.max_batch_tokens)
    return min(int(limit) for limit in limits if limit)
