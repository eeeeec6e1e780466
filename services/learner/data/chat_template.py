"""Chat templates from elsewhere than the tokenizer: a Jinja file, or ColossalChat's conversation template.

Both are read and never written. What a template says about the end of a completion is the default of the
stop settings.
"""

import json
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from transformers import AutoTokenizer

from services.learner.config.generation import GenerationConfig

log = logging.getLogger("rollstream.data")


@dataclass(frozen=True)
class ChatTemplate:
    template: str | None = None
    """Jinja text; None leaves the tokenizer its own."""
    system_message: str | None = None
    """For conversations that have none."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion: `end_of_assistant`."""
    stop_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences, each of which ends a completion: `stop_ids`."""
    tags: dict[str, Any] | None = None
    """`response_format_tags` as they stand in the file: for each tag its `text` and `num_occur`."""

    def stopping(self, config: GenerationConfig) -> GenerationConfig:
        """The config, with this template's stops unless it names its own.

        Raises:
        ValueError: the stops are none that the config could have.
        """
        if config.stop or config.stop_sequences:
            return config
        dials = config.model_dump(include=set(GenerationConfig.model_fields))
        try:
            return GenerationConfig.model_validate(
                dials | {"stop": self.stop, "stop_token_ids": self.stop_token_ids}
            )
        except ValidationError as error:
            raise ValueError(f"the stops of learner.chat_template: {error.errors()[0]['msg']}") from error


def load_chat_template(path: Path | None) -> ChatTemplate:
    """Read a `.json` file as ColossalChat's, any other as Jinja; without a path, the tokenizer's own.

    Raises:
    ValueError: what is wrong with the file.
    """
    if path is None:
        return ChatTemplate()
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = _colossalchat(json.loads(text)) if path.suffix == ".json" else ChatTemplate(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"learner.chat_template {path} cannot be used: {error}") from error
    if found.tags and found.tags != _COMMON_TAGS:
        log.warning(
            "response_format_tags of %s are read by nobody here: the reward service looks for those of "
            "reward.tags, so write them there",
            path,
        )
    return found


def _colossalchat(content: Any) -> ChatTemplate:
    """The fields of coati's `setup_conversation_template`.

    `stop_ids` are the ids of one pattern, the end of the assistant's turn; a list of lists, alternatives.
    """
    if not isinstance(content, dict) or not content.keys() & FIELDS:
        raise ValueError(f"it must be a JSON object with some of {', '.join(sorted(FIELDS))}")
    for field, kind in FIELDS.items():
        if not isinstance(content.get(field), kind | None):
            raise ValueError(f"{field} = {content[field]!r:.80} must be of type {kind.__name__}")
    sequences = content.get("stop_ids") or []
    if sequences and isinstance(sequences[0], int):
        sequences = [sequences]
    if not all(isinstance(ids, list) and ids and all(type(id) is int for id in ids) for ids in sequences):
        raise ValueError(f"stop_ids = {content['stop_ids']!r:.80} must be token ids, or lists of them")
    end = content.get("end_of_assistant")
    return ChatTemplate(
        template=_jinja(content.get("chat_template")),
        system_message=content.get("system_message"),
        stop=(end,) if end else (),
        stop_token_ids=tuple(tuple(ids) for ids in sequences),
        tags=content.get("response_format_tags"),
    )


FIELDS: dict[str, type] = {
    "chat_template": str,
    "system_message": str,
    "stop_ids": list,
    "end_of_assistant": str,
    "response_format_tags": dict,
}


def check_arguments(template: Any, arguments: Collection[str]) -> None:
    """Make sure that the template, or one of several by name, knows the arguments it is to be given.

    Raises:
    ValueError: it does not, so they would change nothing.
    """
    unknown = [name for name in arguments if not re.search(rf"\b{re.escape(name)}\b", str(template))]
    if unknown:
        raise ValueError(
            f"learner.chat_template_arguments has {unknown[0]!r}, which the chat template does not know: "
            "correct it or leave it out"
        )


_COMMON_TAGS: dict[str, Any] = {
    name: {"text": text, "num_occur": 1}
    for name, text in {
        "think_start": "<think>",
        "think_end": "</think>",
        "answer_start": "<answer>",
        "answer_end": "</answer>",
    }.items()
}
"""What the templates that ColossalChat ships with name, and the reward service looks for by itself."""


def _jinja(text: str | None) -> str | None:
    """Jinja text as it is; else it names the model whose tokenizer has the template."""
    if not text or "{{" in text or "{%" in text:
        return text or None
    tokenizer = AutoTokenizer.from_pretrained(text, trust_remote_code=False)
    if not isinstance(tokenizer.chat_template, str):
        raise ValueError(f"the tokenizer of {text} has no chat template")
    return tokenizer.chat_template
