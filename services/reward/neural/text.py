"""From an item to the tokens that a reward model reads, in its own chat template and its own tokenizer."""

from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from services.reward.conversation import MESSAGES, conversation, prompt_messages
from services.reward.neural.config import STEPWISE, NeuralConfig
from services.reward.protocol import Unscorable
from shared.scoring import ScoreItem


class Tokens(NamedTuple):
    ids: list[int]
    step_ends: list[int]
    """The position of the last token of each step's marker, for process reward models."""
    text_ends: list[int]
    """After how many characters of the response each step ends."""


def split_steps(response: str, separator: str) -> list[tuple[str, int]]:
    """The steps that are not blank, and after how many characters each ends; without any, an empty one."""
    steps, start = [], 0
    for step in response.split(separator):
        if step.strip():
            steps.append((step, start + len(step)))
        start += len(step) + len(separator)
    return steps or [("", 0)]


class Renderer:
    """Renders and tokenizes items as the configuration says. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: NeuralConfig, longest: int) -> None:
        """longest: tokens that the model takes.

        Raises:
        ValueError: the tokenizer has no chat template but the configuration wants one.
        """
        if config.prompt_as != "text" and not tokenizer.chat_template:
            raise ValueError(
                f'the tokenizer at {config.path} has no chat template; set prompt_as = "text" to score the '
                "prompt and the response as they stand"
            )
        self._tokenizer = tokenizer
        self._config = config
        self._longest = longest
        self._marker = self._encode(config.steps.marker)
        if config.architecture in STEPWISE and not self._marker:
            raise ValueError(f"steps.marker = {config.steps.marker!r} is no token of this model")

    def tokens(self, item: ScoreItem) -> Tokens:
        """Raises:
        Unscorable: no messages, messages that the template refuses, no tokens, or too many.
        """
        if self._config.prompt_as == "messages" and prompt_messages(item) is None:
            raise Unscorable(
                f'needs metadata "{MESSAGES}", for the reward model has a chat template of its own; '
                "or set prompt_as"
            )
        tokens = self._stepwise(item) if self._config.architecture in STEPWISE else self._whole(item)
        if not tokens.ids:
            raise Unscorable("finds no token in prompt and response")
        if len(tokens.ids) <= self._longest:
            return tokens
        if self._config.too_long == "truncate_left":
            return Tokens(tokens.ids[-self._longest :], [], [])
        raise Unscorable(f"takes {self._longest} tokens at most, and the item has {len(tokens.ids)}")

    def _whole(self, item: ScoreItem) -> Tokens:
        if self._config.prompt_as == "text":
            text = item.prompt + item.response  # rendered by a policy's template it may have a BOS already
            return Tokens(self._tokenizer.encode(text, add_special_tokens=not self._has_bos(text)), [], [])
        return Tokens(self._encode(self._rendered(conversation(item))), [], [])

    def _stepwise(self, item: ScoreItem) -> Tokens:
        """Prompt, and each step followed by its marker, tokenized one by one, as such models are trained.

        Source: TRL, `PRMTrainer.tokenize_row`.
        """
        if self._config.prompt_as == "text":
            bos = self._tokenizer.bos_token_id
            starts = [] if bos is None or self._has_bos(item.prompt) else [bos]
            ids = [*starts, *self._encode(item.prompt)]
        else:
            ids = self._encode(self._rendered(conversation(item)[:-1], add_generation_prompt=True))
        step_ends, text_ends = [], []
        for step, text_end in split_steps(item.response, self._config.steps.separator):
            ids += [*self._encode(step), *self._marker]
            step_ends.append(len(ids) - 1)
            text_ends.append(text_end)
        return Tokens(ids, step_ends, text_ends)

    def _has_bos(self, text: str) -> bool:
        bos = self._tokenizer.bos_token
        return bool(bos) and text.startswith(str(bos))

    def _rendered(self, messages: list[dict[str, Any]], **options: Any) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except (TemplateError, TypeError, KeyError) as error:
            raise Unscorable(f"cannot put the messages into the reward model's template: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
