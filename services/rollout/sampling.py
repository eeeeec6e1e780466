"""Our sampling parameters as vLLM's."""

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from shared.experience import Sampling


def sampling_parameters(sampling: Sampling, n: int) -> SamplingParams:
    """For `n` completions of one prompt. Stop sequences of several tokens are not vLLM's: see `stops.py`.

    Raises:
        ValueError: a number is out of vLLM's range.
    """
    return SamplingParams(
        n=n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop),
        stop_token_ids=[stop[0] for stop in sampling.stop_token_ids if len(stop) == 1],
        include_stop_str_in_output=True,  # else the tokens of the text would be without its last
        seed=sampling.seed,
        logprobs=0,  # of the sampled token only
        detokenize=bool(sampling.stop),  # costs time, and only a stop text needs it
        skip_special_tokens=False,  # a stop text may be a special token such as <|im_end|>
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
