"""What an experience must be, beyond what its wire format says, before it is trained on."""

import torch

from shared.codec import MalformedEntry, decode_group, encode, intact_payload
from shared.entry import Entry
from shared.experience import Group, Prompt


def decode_experience(entry: Entry, vocabulary: int) -> Group:
    """The scored group of an entry.

    Args:
    vocabulary: number of token ids that the policy knows.

    Raises:
    MalformedEntry: it must not be trained on; the message says why.
    """
    group = decode_group(intact_payload(entry))
    if group.prompt.id != entry.id:
        raise MalformedEntry(f"the entry is for prompt {entry.id}, its payload for {group.prompt.id}")
    for number, completion in enumerate(group.completions):
        if completion.reward is None:
            raise MalformedEntry(f"completion {number} has no reward")
    all_ids = bytearray().join(completion.token_ids for completion in group.completions)
    largest = int(torch.frombuffer(all_ids, dtype=torch.int32).max())
    if largest >= vocabulary:
        number = next(n for n, completion in enumerate(group.completions) if largest in completion.token_ids)
        raise MalformedEntry(
            f"completion {number} has token id {largest}; the policy's vocabulary has {vocabulary} entries"
        )
    if group.min_version < group.prompt.issued_version:
        raise MalformedEntry(
            f"sampled under version {group.min_version}, "
            f"older than the prompt's {group.prompt.issued_version}"
        )
    return group


def check_answer(group: Group, issued: Prompt) -> None:
    """Raises:
    MalformedEntry: the group does not answer the prompt as it was issued; the message says in what.
    """
    # Their bytes are the same also where metadata holds what is not equal to itself (NaN).
    if group.prompt != issued and encode(group.prompt) != encode(issued):
        names = [
            name for name in issued.__struct_fields__ if getattr(group.prompt, name) != getattr(issued, name)
        ]
        raise MalformedEntry(f"its prompt is not the one that was issued, but has another {', '.join(names)}")
    longest = max([len(completion.token_ids) for completion in group.completions])
    if longest > issued.sampling.max_tokens:
        raise MalformedEntry(
            f"a completion has {longest} tokens; the prompt asked for {issued.sampling.max_tokens} at most"
        )
