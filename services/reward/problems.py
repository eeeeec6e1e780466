"""How every route says no: a status and `{"detail": [{"item", "field", "message"}]}`, and nothing else in it.

No key of it is one that a trainer's client would read a score from (`rewards`, `scores`, `reward`, `results`,
`answer_status`, `data`), since some of those clients do not look at the status.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException as RoutingError

PROBLEMS_SHOWN = 20


class Problem(BaseModel):
    item: int | None = None
    """Position of the item that is at fault; null if it is none of them or the whole request."""
    field: str | None = None
    message: str


class Problems(BaseModel):
    """The body of every answer that is not a success."""

    detail: list[Problem]


def refusal(
    status: int,
    message: str,
    item: int | None = None,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> HTTPException:
    """An answer with one problem, to be raised."""
    return refusal_of(status, [Problem(item=item, field=field, message=message)], headers)


def refusal_of(
    status: int, problems: Sequence[Problem], headers: Mapping[str, str] | None = None
) -> HTTPException:
    """An answer with the first `PROBLEMS_SHOWN` of `problems`, to be raised."""
    shown = [problem.model_dump() for problem in problems[:PROBLEMS_SHOWN]]
    return HTTPException(status, shown, dict(headers or {}))


def invalid_body(error: ValidationError) -> HTTPException:
    """422 with the item and field of each mistake; without the values, which may be long or secret."""
    return refusal_of(422, [_problem(mistake) for mistake in error.errors(include_url=False)])


def invalid_structure(error: Exception) -> HTTPException:
    """422 with the item and field of the mistake that msgspec met first, as its message names them."""
    message, _, place = str(error).partition(" - at `$")
    item = re.match(r"\.items\[(\d+)\]", place)
    named = re.match(r"Object .* field `(.*)`$", message) or re.match(r"(?:\.items\[\d+\])?\.(\w+)", place)
    problem = Problem(item=int(item[1]) if item else None, field=named[1] if named else None, message=message)
    return refusal_of(422, [problem])


def _problem(mistake: Any) -> Problem:
    location = list(mistake["loc"])
    item = next((part for part in location if isinstance(part, int)), None)
    if location[:1] == ["items"]:
        location = location[1:]
    # Where a field may have several types, it also names the one that was tried: `str`, `list[any]`.
    named = [part for part in location if isinstance(part, str) and part != "str" and "[" not in part]
    return Problem(item=item, field=".".join(named) or None, message=mistake["msg"])


ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problems, "description": "An empty request, which the contract refuses."},
    401: {"model": Problems, "description": "The token is missing or wrong."},
    408: {"model": Problems, "description": "The body was not sent in its time."},
    413: {"model": Problems, "description": "The body or the number of items is over its limit."},
    422: {"model": Problems, "description": "The request, or an item of it, can never be served as sent."},
    429: {
        "model": Problems,
        "description": "Too many requests; `Retry-After` tells how many seconds to wait.",
    },
    501: {"model": Problems, "description": "What the route needs is not configured or not installed."},
    503: {"model": Problems, "description": "A scorer failed; another try may succeed."},
    504: {"model": Problems, "description": "An item took longer than its deadline."},
}
"""What scoring routes may answer instead of a success, for OpenAPI."""


def answer_of(error: RoutingError) -> Response:
    """What is sent for a refusal, ours or the framework's."""
    detail = error.detail
    if isinstance(detail, str):
        detail = [Problem(message=detail).model_dump()]  # type: ignore[assignment]
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


def speak_in_problems(app: FastAPI) -> None:
    """Give the refusals of the framework itself (no such path, wrong method) the same body."""

    async def answer(_: Request, error: Exception) -> Response:
        assert isinstance(error, RoutingError)
        return answer_of(error)

    app.add_exception_handler(RoutingError, answer)
