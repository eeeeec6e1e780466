"""A model in memory with the heads and adapters that score with it; scorers on the same base share one."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.reward.neural.batching import Batcher, Row
from services.reward.neural.config import NeuralConfig
from services.reward.neural.heads import Batch, Head
from services.reward.neural.loading import auto_class, check_complete, load_model

_SHORT_TOKENS = 8
_SPARE_POSITIONS = 4
_TIMED_LENGTH = 32
_TIMED_TOKENS = 256
"""Of the batch that is timed on a CPU, where a full one could take minutes."""
_TIMES = 3

MakeHead = Callable[[PreTrainedModel, torch.device], Head]


class Engine:
    """Runs one model. Made and shared by `join`."""

    def __init__(self, config: NeuralConfig) -> None:
        """Raises:
        ValueError: the model cannot be loaded.
        """
        self.device = torch.device(_device(config.device))
        self.model, self._missing = load_model(config, self.device)
        self.settings = (config.max_batch_tokens, config.max_wait_ms)
        self._heads: dict[str, Head] = {}
        self._adapters: dict[str, str | None] = {}
        self._peft: Any = None
        self._numbers = itertools.count()
        self._using = threading.Lock()
        self.batcher = Batcher(self._run, config.max_batch_tokens, config.max_wait_ms / 1000)

    def add(self, name: str, config: NeuralConfig, make_head: MakeHead) -> str:
        """The key under which rows are scored by the scorer's head, with its adapter in force if it has one.

        Raises:
        ValueError: see `join`.
        """
        if self.settings != (config.max_batch_tokens, config.max_wait_ms):
            raise ValueError(
                f"scorer {name!r} shares its base; its max_batch_tokens and max_wait_ms must be the other's"
            )
        check_complete(config, self._missing)
        key = f"{name}-{next(self._numbers)}"
        try:
            with self._using:
                self._adapters[key] = self._load_adapter(config.adapter)
                self._heads[key] = make_head(self.model, self.device)
            self._warm_up(key)
            if len(self._heads) == 1:
                self.batcher.batch_cost = self._batch_cost(key)
        except ValueError:
            self.remove(key)
            raise
        except Exception as error:
            self.remove(key)
            raise ValueError(f"scorer {name!r} cannot run its model: {error}") from error
        return key

    def remove(self, key: str) -> None:
        """Forget the head and the adapter, as far as they came to be."""
        with self._using:
            self._heads.pop(key, None)
            adapter = self._adapters.pop(key, None)
            if adapter is not None:
                self._peft.delete_adapter(adapter)

    def is_used(self) -> bool:
        return bool(self._heads)

    def _load_adapter(self, folder: Path | None) -> str | None:
        if folder is None:
            return None
        from peft import PeftModel

        name = f"adapter{next(self._numbers)}"
        if self._peft is None:
            self._peft = PeftModel.from_pretrained(self.model, folder, adapter_name=name)
        else:
            self._peft.load_adapter(folder, adapter_name=name)
        self._peft.eval()
        return name

    def _warm_up(self, key: str) -> None:
        """Run once what is slow the first time; on a GPU a full batch, to see now whether it fits."""
        budget = self.settings[0] if self.device.type == "cuda" else _SHORT_TOKENS
        longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or budget
        rows = [Row([0] * length, [length - 1], key) for length in filling(budget, longest)]
        self.batcher.submit(rows)
        for row in rows:
            row.scores.result()

    def _batch_cost(self, key: str) -> float:
        """Tokens that take as long as what a batch costs beside its tokens, from the times of two batches."""
        most = self.settings[0]
        tokens = most if self.device.type == "cuda" else min(most, _TIMED_TOKENS)
        short, *_ = lengths = filling(tokens, _TIMED_LENGTH)
        if len(lengths) < 2:
            return float(most)
        one, all_of_them = (
            min(self._seconds([Row([0] * short, [short - 1], key)] * rows) for _ in range(_TIMES))
            for rows in (1, len(lengths))
        )
        token = (all_of_them - one) / (sum(lengths) - short)
        return min(max(one / token - short, 1.0), most) if token > 0 else float(most)

    def _seconds(self, rows: Sequence[Row]) -> float:
        # On a CPU what other programs take in between must not count.
        clock = time.thread_time if self.device.type == "cpu" else time.perf_counter
        started = clock()
        self._run(rows)
        return clock() - started

    @torch.inference_mode()
    def _run(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        key = rows[0].head
        with self._using, self._adapter(self._adapters[key]):
            head = self._heads[key]
            scores = head(self.model, self._pad(rows)).tolist()
        if not head.reads_states:
            return [(score,) for score in scores]
        found = iter(scores)
        return [tuple(next(found) for _ in row.reads) for row in rows]

    def _adapter(self, name: str | None) -> contextlib.AbstractContextManager[object]:
        """Within it the model works with that adapter, or with none."""
        if self._peft is None:
            return contextlib.nullcontext()
        if name is None:
            return self._peft.disable_adapter()
        self._peft.set_adapter(name)
        return contextlib.nullcontext()

    def _pad(self, rows: Sequence[Row]) -> Batch:
        """Right padding, which leaves every real token's position and causal context as they are alone."""
        lengths = [len(row.ids) for row in rows]
        filler = getattr(self.model.config.get_text_config(), "pad_token_id", None) or 0
        padded = [row.ids + [filler] * (max(lengths) - len(row.ids)) for row in rows]
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        places = [(number, position) for number, row in enumerate(rows) for position in row.reads]
        where = torch.tensor(places, dtype=torch.long).reshape(-1, 2)
        return Batch(*(self._send(t) for t in (torch.tensor(padded), mask.long(), where[:, 0], where[:, 1])))

    def _send(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def filling(budget: int, longest: int) -> list[int]:
    """Lengths of rows that make a full batch of `budget` tokens, for a model of `longest` positions.

    A few positions are left out: RoBERTa numbers them from behind its padding token.
    """
    length = max(1, min(budget, longest - _SPARE_POSITIONS))
    return [length] * (budget // length)


_ENGINES: dict[tuple[object, ...], Engine] = {}
_SHARING = threading.Lock()


def join(name: str, config: NeuralConfig, make_head: MakeHead) -> tuple[Engine, str]:
    """The engine of the scorer's base, shared with all scorers on the same, with this scorer's head in it.

    Gives the engine and the key of the head, to name in rows and to leave with.

    Raises:
    ValueError: the model or the adapter cannot be loaded, lacks its head, or cannot run.
    """
    key = (config.path.resolve(), auto_class(config), _device(config.device), config.dtype)
    with _SHARING:
        engine = _ENGINES.get(key) or Engine(config)
        _ENGINES[key] = engine
        try:
            return engine, engine.add(name, config, make_head)
        except BaseException:
            _close_unused(engine)
            raise


def leave(engine: Engine, key: str) -> None:
    """Take the scorer's head out; the last one frees the model."""
    with _SHARING:
        engine.remove(key)
        _close_unused(engine)


def _close_unused(engine: Engine) -> None:
    if not engine.is_used():
        engine.batcher.close()
        for key in [key for key, value in _ENGINES.items() if value is engine]:
            del _ENGINES[key]


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
