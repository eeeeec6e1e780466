"""Bearer tokens: from the environment, never from a file that is committed or a command line."""

import hmac
import os


def token_from_environment(variable: str = "ROLLSTREAM_TOKEN") -> str:
    """The run's bearer token. `rollstream up` makes one per run and hands it to the services.

    Raises:
    ValueError: it is missing or too short to be a secret.
    """
    token = os.environ.get(variable, "")
    if len(token) < 16:
        seen = f"has {len(token)} characters" if token else "is not set"
        raise ValueError(f"{variable} {seen}; set it to a random secret of 16 or more characters")
    return token


def is_authorised(header: str | None, token: str) -> bool:
    """Whether an `Authorization` header carries the token; takes the same time for any wrong one."""
    return hmac.compare_digest((header or "").encode(), f"Bearer {token}".encode())
