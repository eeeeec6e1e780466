"""vLLM's own OpenAI-compatible routes, over the engine that also answers the stream."""

from fastapi import Depends, FastAPI
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.api_router import router as chat_completions
from vllm.entrypoints.openai.completion.api_router import router as completions
from vllm.entrypoints.openai.models.api_router import router as models
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.tokenize.api_router import router as tokenize
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.rollout.access import require_token, require_version
from services.rollout.vllm_engine import VllmEngine


def add_openai_routes(app: FastAPI) -> None:
    """Mount them behind the token; those that generate also wait for a version."""
    for router in (models, tokenize):
        app.include_router(router, dependencies=[Depends(require_token)])
    for router in (completions, chat_completions):
        app.include_router(router, dependencies=[Depends(require_token), Depends(require_version)])
    init_exception_handler(app)


async def attach_engine(app: FastAPI, engine: VllmEngine) -> None:
    """Give the routes the engine they serve."""
    model = engine.llm.model_config
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(
        ["--model", model.model, "--served-model-name", str(model.served_model_name)]
    )
    await init_app_state(engine.llm, app.state, arguments, await engine.llm.get_supported_tasks())
