"""`/v1/weights`: the learner opens an update, streams its parts, commits it (see `shared/weights.py`)."""

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import ValidationError

from services.rollout.access import require_token
from services.rollout.engine import EngineDead, ModelBroken, UpdateFailed
from services.rollout.weight_files import BadUpdate
from services.rollout.weight_store import Conflict, TooLarge, WeightStore
from shared.weights import WeightManifest, WeightStatus

MANIFEST_BYTES = 64 << 20
"""Room for the tensor list of any model."""

_STATUS_CODES: dict[type[Exception], int] = {
    Conflict: 409,
    TooLarge: 413,
    BadUpdate: 422,
    UpdateFailed: 500,
    ModelBroken: 500,
    EngineDead: 500,
}

router = APIRouter(prefix="/v1/weights", dependencies=[Depends(require_token)])


class _Refusals:
    """Turns what the store raises into the contract's status codes."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind in _STATUS_CODES:
            raise HTTPException(_STATUS_CODES[kind], str(error)) from error  # type: ignore[index]


def _store(request: Request) -> WeightStore:
    store: WeightStore = request.app.state.weights
    return store


@router.get("")
async def get_status(request: Request) -> WeightStatus:
    return _store(request).status


@router.post("/{version}", status_code=201)
async def open_update(version: int, request: Request) -> WeightStatus:
    """Begin an update; the body is a `WeightManifest`."""
    with _Refusals():
        manifest = _parse(await _read(request, MANIFEST_BYTES))
        if manifest.version != version:
            raise BadUpdate(f"the manifest is for version {manifest.version}, the path says {version}")
        await _store(request).open(manifest)
    return _store(request).status


@router.put("/{version}/parts/{part}", status_code=204)
async def put_part(version: int, part: int, request: Request) -> None:
    """Store one safetensors part; generation goes on meanwhile."""
    with _Refusals():
        await _store(request).receive(version, part, request.stream())


@router.post("/{version}/commit")
async def commit_update(version: int, request: Request) -> WeightStatus:
    """Serve the update, whole or not at all."""
    with _Refusals():
        await _store(request).commit(version)
    return _store(request).status


@router.delete("/{version}")
async def abandon_update(version: int, request: Request) -> WeightStatus:
    with _Refusals():
        _store(request).abandon(version)
    return _store(request).status


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"a manifest has at most {limit} bytes")
    return bytes(body)


def _parse(body: bytes) -> WeightManifest:
    try:
        return WeightManifest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadUpdate(f"bad manifest: {where}: {first['msg']}") from error
