"""Whether two machines mean the same texts by the same token ids."""

import hashlib
import json
from pathlib import Path
from typing import Any


def vocabulary_digest(model: Path) -> str | None:
    """Digest of the tokens of a model folder's `tokenizer.json`, by their ids; None if there is no such file.

    Of its content and not of the file, which differs with each version of the library that saved it.

    Raises:
    ValueError: it is no `tokenizer.json`.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        known: dict[str, Any] = json.loads(path.read_bytes())
        vocabulary = known["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: pieces with their scores
            vocabulary = {token: id for id, (token, _) in enumerate(vocabulary)}
        tokens = {id: token for token, id in vocabulary.items()}
        tokens |= {added["id"]: added["content"] for added in known.get("added_tokens") or []}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read as a tokenizer: {error!r}; save it again") from error
    return hashlib.sha256(json.dumps(sorted(tokens.items())).encode()).hexdigest()
