"""The ASGI application: routes, layers and documentation put together.

Layers, from outside in: ids and the last answer to our own faults, CORS where origins are configured (otherwise a page
from elsewhere cannot read an answer), the API key, the routes.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ekiden.api import admin, docs_page, evidence_routes, models_routes, status_routes
from ekiden.api.auth import ApiKeyMiddleware
from ekiden.api.chat import chat_completions
from ekiden.api.completions import completions
from ekiden.api.context import ApiContext
from ekiden.api.doors.embeddings import EmbeddingsRequest, embeddings
from ekiden.api.doors.messages import count_tokens, messages
from ekiden.api.doors.messages_request import CountRequest, MessagesRequest
from ekiden.api.doors.responses import responses
from ekiden.api.doors.responses_request import ResponsesRequest
from ekiden.api.errors import ApiError, ClientGone, not_found, shaped, speaks_messages
from ekiden.api.identity import IdentityMiddleware
from ekiden.api.keys import KeyStore
from ekiden.api.metrics import ApiMetrics
from ekiden.api.responses import AsgiResponse, ErrorResponse
from ekiden.api.schema_base import Strict
from ekiden.api.schemas import ChatMessage, ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from ekiden.api.text_output import TokenText
from ekiden.api.tokenize_routes import detokenize, tokenize
from ekiden.config import Config
from ekiden.engine.interface import Engine, Health
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.sampling_params import SamplingParams
from ekiden.version import __version__

Handler = Callable[[ApiContext, Scope, Receive, Send], Awaitable[None]]

_POSTS: Final[tuple[tuple[str, str, str, Handler, type[Strict]], ...]] = (
    ("/v1/chat/completions", "Chat", "generation", chat_completions, ChatRequest),
    ("/v1/completions", "Completions", "generation", completions, CompletionRequest),
    ("/v1/responses", "Responses", "generation", responses, ResponsesRequest),
    ("/v1/messages", "Messages", "generation", messages, MessagesRequest),
    ("/v1/messages/count_tokens", "Tokens of messages", "tokens", count_tokens, CountRequest),
    ("/v1/embeddings", "Embeddings: refused with the reason", "generation", embeddings, EmbeddingsRequest),
    ("/tokenize", "Text to token ids", "tokens", tokenize, TokenizeRequest),
    ("/detokenize", "Token ids to text", "tokens", detokenize, DetokenizeRequest),
)
_ERRORS: Final = {
    "400": "A field cannot work; the error names it",
    "401": "No API key, or a wrong one",
    "403": "The API key is not for this",
    "404": "No such model or path",
    "408": "The deadline passed, or the body did not arrive",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "The tenant is over its own limits; see Retry-After",
    "503": "No capacity now; see Retry-After",
}
_ADMIN_POSTS: Final[tuple[tuple[str, str, Handler, type[Strict]], ...]] = (
    ("/admin/pause", "Pause a request", admin.pause, admin.RequestAction),
    ("/admin/resume", "Let a paused request go on", admin.resume, admin.RequestAction),
    ("/admin/abort", "End a request", admin.abort, admin.RequestAction),
    ("/admin/drain", "Close the server to new requests, or open it", admin.drain, admin.DrainAction),
    ("/admin/policy", "Change rules and limits", admin.set_policy, admin.PolicyAction),
)


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    config: Config,
    generation_defaults: SamplingParams | None = None,
) -> FastAPI:
    """The server's application over a running engine.

    ``chat_template`` is None for models without one. ``generation_defaults`` are the sampling values for what requests
    leave out (the model's ``generation_config``). ``app.state.context`` is the :class:`ApiContext`.
    """
    app = FastAPI(title="Ekiden", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    server = config.server
    context = ApiContext(
        engine=engine,
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer, engine.card.vocab_size),
        chat_template=chat_template,
        config=config,
        defaults=generation_defaults or SamplingParams(),
        metrics=ApiMetrics(engine.stats, lambda: engine.health is Health.OK, engine.card.model_id),
        token_text=TokenText(tokenizer),
        keys=KeyStore.of(server),
        keep_alive_seconds=server.stream_keep_alive,
    )
    app.state.context = context
    for path, summary, tag, handler, model in _POSTS:
        _add_post(app, context, path, summary, tag, handler, model)
    if context.keys.may_hold_admins:
        for path, summary, handler, model in _ADMIN_POSTS:
            _add_post(app, context, path, summary, "admin", handler, model)
        _add_route(
            app, context, "/admin/policy", admin.policy, methods=["GET"], summary="Rules in force", tags=["admin"]
        )
        _add_route(
            app, context, "/admin/live", admin.live, methods=["GET"], summary="The engine at a glance", tags=["admin"]
        )
    docs_page.add_routes(app)
    models_routes.add_routes(app, context)
    status_routes.add_routes(app, context)
    evidence_routes.add_routes(app, context)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    if context.keys.required:
        app.add_middleware(ApiKeyMiddleware, store=context.keys)
    if server.cors_origin_list:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origin_list,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-ekiden-request-id", "x-request-id", "retry-after", "retry-after-ms"],
        )
    app.add_middleware(IdentityMiddleware)  # added last, so it is outermost
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # the way FastAPI documents
    return app


def _add_post(
    app: FastAPI, context: ApiContext, path: str, summary: str, tag: str, handler: Handler, model: type[Strict]
) -> None:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    streamed: dict[str, Any] = {"text/event-stream": {"schema": {}}} if "stream" in model.model_fields else {}
    _add_route(
        app,
        context,
        path,
        handler,
        methods=["POST"],
        summary=summary,
        tags=[tag],
        responses={200: {"description": "The answer", "content": {"application/json": {"schema": {}}, **streamed}}},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )


def _add_route(app: FastAPI, context: ApiContext, path: str, handler: Handler, **options: Any) -> None:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await handler(context, scope, receive, send)
        except ClientGone:
            # Nobody is left to answer; the exchange has closed what was being generated.
            return

    async def route() -> Response:
        return AsgiResponse(run)

    app.add_api_route(path, route, name=handler.__name__, **options)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return ErrorResponse(shaped(request.url.path, error))


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    if error.status_code == 404:
        told = not_found(request.url.path)
    elif error.status_code == 405:
        message = f"{request.method} is not allowed at {request.url.path[:200]}; see /docs."
        told = ApiError(405, message, code="method_not_allowed", headers=headers)
    else:
        told = ApiError(error.status_code, str(error.detail), headers=headers)
    return ErrorResponse(shaped(request.url.path, told))


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        models: list[type[Strict]] = [ChatMessage, *(model for *_, model in _POSTS)]
        models += [model for path, _, _, model in _ADMIN_POSTS if path in document["paths"]]
        _, definitions = models_json_schema(
            [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
        )
        error = {"type": "string"}
        nullable = {"anyOf": [error, {"type": "null"}]}
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= definitions["$defs"]
        schemas["Error"] = {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {"message": error, "type": error, "param": nullable, "code": nullable},
                    "required": ["message", "type", "param", "code"],
                }
            },
            "required": ["error"],
        }
        schemas["MessagesError"] = {
            "type": "object",
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object",
                    "properties": {"type": error, "message": error},
                    "required": ["type", "message"],
                },
            },
            "required": ["type", "error"],
        }
        for path, operations in document["paths"].items():
            schema = {"$ref": f"#/components/schemas/{'MessagesError' if speaks_messages(path) else 'Error'}"}
            for operation in operations.values():
                operation["responses"].pop("422", None)
                for status, text in _ERRORS.items():
                    content = {"application/json": {"schema": schema}}
                    operation["responses"].setdefault(status, {"description": text, "content": content})
        app.openapi_schema = document
    return app.openapi_schema
