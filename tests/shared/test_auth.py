"""Bearer tokens."""

import pytest

from shared.auth import is_authorised, token_from_environment


@pytest.mark.parametrize("token", [None, "", "short"])
def test_a_missing_or_short_token_is_refused(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    monkeypatch.delenv("ROLLSTREAM_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("ROLLSTREAM_TOKEN", token)
    with pytest.raises(ValueError, match=r"ROLLSTREAM_TOKEN .* 16 or more characters"):
        token_from_environment()


def test_only_the_exact_bearer_header_is_authorised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_TOKEN", "0123456789abcdef")
    token = token_from_environment()
    assert is_authorised("Bearer 0123456789abcdef", token)
    for header in (None, "", token, f"bearer {token}", f"Bearer {token} ", f"Basic {token}", "Bearer ü"):
        assert not is_authorised(header, token)
