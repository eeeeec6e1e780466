"""The doors of the HTTP side: who may enter, and when."""

from fastapi import HTTPException, Request

from shared.auth import is_authorised


async def require_token(request: Request) -> None:
    """401 unless the request carries the run's bearer token."""
    if not is_authorised(request.headers.get("authorization"), request.app.state.token):
        raise HTTPException(401, "the bearer token of the run is required (ROLLSTREAM_TOKEN)")


async def require_version(request: Request) -> None:
    """503 until the learner has confirmed which weights are served."""
    if request.app.state.weights.version is None:
        raise HTTPException(503, "no weights are confirmed yet: the learner has to push a version first")
