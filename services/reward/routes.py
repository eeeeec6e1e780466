"""Our own contract: `POST /v1/score` and `GET /v1/scorers`; and how routes of any contract are added."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from services.reward.door import Door
from services.reward.problems import ANSWERS
from services.reward.shortcut import Straight
from shared.scoring import ScoreRequest, ScoreResponse

Wanted = TypeVar("Wanted", bound=BaseModel | msgspec.Struct)


class Routes:
    """The scoring routes of a service, all behind one door."""

    def __init__(self, door: Door) -> None:
        self.door = door
        # `post` asks `admit` itself; what is added otherwise only shows something.
        self.router = APIRouter(dependencies=[Depends(door.admit_watcher)])
        self.straight: dict[str, Straight] = {}
        """By path, those that `post` added."""
        self._examples: dict[str, tuple[Any, Any]] = {}

    def post(
        self,
        path: str,
        wanted: type[Wanted],
        reply: Any,
        answer: Callable[[Wanted, Door], Any],
        example: tuple[Any, Any],
        contract: str,
        own_scorer: bool = False,
        soon: Callable[[Wanted, Door], Awaitable[Any]] | None = None,
    ) -> None:
        """Answer `POST path` with what `answer` makes of the body; its docstring is the route's description.

        reply: type of the answer. example: a request and the answer to it. contract: who speaks it.
        own_scorer: whether `answer` asks another scorer than the configured ones.
        soon: does the same by the door's `score_soon`.
        """

        door = self.door

        async def handle(request: Request) -> Response:
            await door.admit(request)
            return await door.serve(request, wanted, answer, own_scorer, soon)

        class Direct(APIRoute):
            """Asks the door at once: there are no parameters that FastAPI would have to resolve."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                return handle

        def endpoint() -> None:
            """In the schema only."""

        self._examples[path] = example
        self.straight[path] = Straight(path, handle)
        body = {"schema": inline_schema(wanted)}  # type: ignore[arg-type]  # it is one or the other
        is_struct = isinstance(reply, type) and issubclass(reply, msgspec.Struct)
        self.router.add_api_route(
            path,
            endpoint,
            route_class_override=Direct,
            methods=["POST"],
            name=answer.__name__,
            tags=[contract],
            description=answer.__doc__,
            response_model=None if is_struct else reply,
            responses=ANSWERS | ({200: _described(reply)} if is_struct else {}),
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": body}}},
        )

    def put_examples(self, schema: dict[str, Any]) -> None:
        """Into an OpenAPI schema, after FastAPI made it: FastAPI would leave out their nulls."""
        for path, (asked, answered) in self._examples.items():
            route = schema["paths"][path]["post"]
            route["requestBody"]["content"]["application/json"]["example"] = asked
            route["responses"]["200"]["content"]["application/json"]["example"] = answered


def _described(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """For OpenAPI, a successful answer of that type, which FastAPI does not know."""
    schema = inline_schema(struct)
    return {"description": "Successful Response", "content": {"application/json": {"schema": schema}}}


def inline_schema(model: type[BaseModel] | type[msgspec.Struct]) -> dict[str, Any]:
    """The model's JSON schema with its definitions put where they are referred to.

    The body is read by us, for its limits, and so FastAPI does not collect the definitions itself.
    """
    schema = model.model_json_schema() if issubclass(model, BaseModel) else msgspec.json.schema(model)
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(definitions[node["$ref"].rpartition("/")[2]])
            return {key: resolve(value) for key, value in node.items()}
        return [resolve(value) for value in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def add_native_routes(routes: Routes) -> None:
    routes.post("/v1/score", ScoreRequest, ScoreResponse, score, EXAMPLE, "native", soon=score_soon)

    @routes.router.get("/v1/scorers", tags=["native"], responses={401: ANSWERS[401], 429: ANSWERS[429]})
    async def scorers() -> dict[str, Any]:
        """The configured scorers with weight, kind and parameters, and the rules that a request may name."""
        return routes.door.core.describe()


def score(wanted: ScoreRequest, door: Door) -> ScoreResponse:
    """One result per item, in order. What cannot be scored has a status and a cause, and no number."""
    return ScoreResponse(results=door.score(wanted.items, wanted.scorers))


async def score_soon(wanted: ScoreRequest, door: Door) -> ScoreResponse:
    """As `score`, where no thread need wait."""
    return ScoreResponse(results=await door.score_soon(wanted.items))


EXAMPLE = (
    {
        "items": [
            {"id": "a", "response": "<think>9+9</think><answer>18</answer>", "ground_truth": "18"},
            {"id": "b", "response": "<think>9+9</think><answer>18</answer>"},
        ],
        "scorers": ["gsm8k_reward_fn"],
    },
    {
        "results": [
            {
                "id": "a",
                "reward": 10.0,
                "components": {"gsm8k_reward_fn": 10.0},
                "steps": {},
                "status": "ok",
                "error": None,
            },
            {
                "id": "b",
                "reward": None,
                "components": {},
                "steps": {},
                "status": "invalid",
                "error": "gsm8k_reward_fn needs a ground_truth, and the item has none",
            },
        ]
    },
)
