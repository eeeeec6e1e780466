"""The `[reward.scorers.NAME]` table of an external scorer."""

import os
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, FiniteFloat, field_validator, model_validator

from services.reward.protocol import Context, Scorer, ScorerConfig
from services.reward.steps import Aggregation
from shared.auth import token_from_environment
from shared.config import Table

HOSTS_VARIABLE = "ROLLSTREAM_REWARD_EXTERNAL_HOSTS"
"""Environment variable: the hosts, as `host` or `host:port` with commas between, that may be asked. It is not
in the run's file, so that who writes the file does not decide where texts are sent."""

ContractName = Literal[
    "vllm_classify",
    "vllm_pooling",
    "sglang_classify",
    "tei_predict",
    "openrlhf",
    "llamafactory",
    "chat_judge",
    "sandbox_fusion",
]


DEADLINES = {"chat_judge": 60.0, "sandbox_fusion": 120.0}
"""Seconds that an item has without `deadline_seconds`, where an answer takes long to make: a judge writes
before its verdict, and a program's tests run one after the other."""
SANDBOX_MARGIN_SECONDS = 2.0
"""What a request to a sandbox may take beside compiling and running."""


class JudgeConfig(Table):
    """How a chat model is asked for a verdict."""

    rubric: str = Field(min_length=1)
    """What a good response is. The scale and the form of the verdict are added to it."""
    lowest: FiniteFloat = 0.0
    highest: FiniteFloat = 10.0
    """A verdict outside the scale is an error."""
    max_tokens: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _scale_has_width(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest = {self.lowest} must be below highest = {self.highest}")
        return self


class SandboxConfig(Table):
    """How a program is run."""

    language: str = "python"
    run_seconds: float = Field(default=10.0, gt=0)
    compile_seconds: float = Field(default=10.0, gt=0)
    memory_mb: int = Field(default=1024, ge=16)
    max_tests: int = Field(default=100, ge=1)
    """An item with more tests is invalid."""


class ExternalConfig(ScorerConfig):
    """A server of somebody else's that gives scores."""

    kind: Literal["external"] = "external"
    contract: ContractName
    url: str
    """The whole URL that is posted to, path included."""
    model: str = "model"
    """The model's name for servers that want one."""
    token_variable: str | None = None
    """Environment variable with the bearer token for this server."""
    send: Literal["messages", "text"] = "text"
    """`messages`: the conversation, for the server's own chat template (vLLM). `text`: `template`, filled."""
    template: str = "{prompt}{response}"
    """The text to score; `{prompt}`, `{response}` and `{ground_truth}` are filled in."""
    add_special_tokens: bool = True
    """Of vLLM with `send = "text"`: whether its tokenizer adds special tokens. False for a text that already
    has them, as one in a chat template has."""
    task: Literal["classify", "token_classify"] = "classify"
    """Of vLLM's `/pooling`; `token_classify` gives one score per step of a process reward model."""
    aggregation: Aggregation = "min"
    """From the scores of steps to one."""
    judge: JudgeConfig | None = None
    sandbox: SandboxConfig = SandboxConfig()
    batch_size: Annotated[int, Field(ge=1, le=1024)] = 32
    """Items in one request, where the contract has room for several."""
    max_concurrency: int = Field(default=16, ge=1)
    """Requests under way at a time."""
    max_retries: int = Field(default=2, ge=0, le=10)
    """Further tries after 429, 5xx or no connection; never after anything else."""
    retry_seconds: float = Field(default=0.2, ge=0)
    """Longest pause before the first further try; it doubles with each."""
    breaker_failures: int = Field(default=8, ge=1)
    """After so many failed requests in a row the server is left alone for `breaker_seconds`."""
    breaker_seconds: float = Field(default=10.0, ge=0)
    max_reply_bytes: int = Field(default=8 * 2**20, ge=1)

    @field_validator("url")
    @classmethod
    def _is_plain_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be http://host[:port]/path or https://…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must hold no password; name an environment variable in token_variable")
        return url

    @model_validator(mode="before")
    @classmethod
    def _has_the_deadline_of_its_contract(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(contract := table.get("contract"), str):
            return {"deadline_seconds": DEADLINES.get(contract), **table}
        return table

    @model_validator(mode="after")
    def _contract_has_what_it_needs(self) -> Self:
        if self.contract == "chat_judge" and self.judge is None:
            raise ValueError("contract 'chat_judge' needs a table 'judge' with a 'rubric'")
        if self.send == "messages" and not self.contract.startswith("vllm_"):
            raise ValueError(f'contract {self.contract!r} takes no messages; set send = "text"')
        if not self.add_special_tokens and (self.send == "messages" or not self.contract.startswith("vllm_")):
            raise ValueError('add_special_tokens is for the vllm_ contracts with send = "text" only')
        least = self.sandbox.compile_seconds + self.sandbox.run_seconds + SANDBOX_MARGIN_SECONDS
        if self.contract == "sandbox_fusion" and (self.deadline_seconds or 0) < least:
            raise ValueError(
                f"deadline_seconds = {self.deadline_seconds} may be over before one test is: it must be at "
                f"least sandbox.compile_seconds + run_seconds + {SANDBOX_MARGIN_SECONDS:g} = {least:g}, "
                "and the tests of an item run one after the other"
            )
        return self

    def build(self, name: str, context: Context) -> Scorer:
        """Raises:
        ValueError: the host is not allowed, or the token is missing.
        """
        from services.reward.external.scorer import ExternalScorer

        check_host(name, self.url)
        token = None if self.token_variable is None else token_from_environment(self.token_variable)
        return ExternalScorer(name, self, token)


def check_host(name: str, url: str) -> None:
    """Raises:
    ValueError: the host of `url` is not among those of `HOSTS_VARIABLE`.
    """
    allowed = [host.strip().lower() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip()]
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    if host not in allowed and f"{host}:{port}" not in allowed:
        known = ", ".join(allowed) or "no host"
        raise ValueError(
            f"scorer {name!r} would send texts to {host}:{port}; {HOSTS_VARIABLE} allows {known}. "
            f"Set {HOSTS_VARIABLE}={','.join([*allowed, f'{host}:{port}'])} to allow it"
        )
