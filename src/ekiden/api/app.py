"""The ASGI application: its routes, middleware and documentation.

Layers, from outside in: ids and the last answer to our own faults, CORS where origins are configured (otherwise a page
from elsewhere cannot read an answer), what is for the page alone, the API key, the routes.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from ekiden.api import evidence_routes, page_routes, status_routes
from ekiden.api.admin import AbortAction, AdminRoutes, DrainAction, PolicyAction, RequestAction
from ekiden.api.asgi import ErrorResponse, Handler
from ekiden.api.auth import ApiKeyMiddleware
from ekiden.api.doors import chat, chat_messages, completions, embeddings, messages, responses, scores
from ekiden.api.doors.door import Door, Doors
from ekiden.api.errors import ApiError, not_found, refusal_of, speaks_messages
from ekiden.api.flight import Flight
from ekiden.api.generation import AnswerWriter, Generation
from ekiden.api.guard_routes import ApprovalAction, GuardAction, GuardRoutes
from ekiden.api.identity import IdentityMiddleware
from ekiden.api.ignored import HEADER, IgnoredFields
from ekiden.api.json_schema import TEXT, any_of, closed_object
from ekiden.api.keys import KeyStore
from ekiden.api.metrics import ApiMetrics
from ekiden.api.page_access import PageAccessMiddleware
from ekiden.api.page_data import PageData
from ekiden.api.page_shelves import PageShelves
from ekiden.api.page_stream import PageStream
from ekiden.api.reasoning import marks_of
from ekiden.api.release_routes import ReleaseAction, ReleaseRoutes
from ekiden.api.schema_base import Strict
from ekiden.api.text import ModelText
from ekiden.api.tokenize_routes import DetokenizeRequest, TokenizeRequest, detokenize, tokenize, tokenizer_info
from ekiden.config import Config, ServerConfig
from ekiden.dashboard.frames import Frames
from ekiden.dashboard.ports import PagePorts
from ekiden.engine.interface import Engine, Health
from ekiden.guard.people import People
from ekiden.guard.runtime import Guard
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.sampling_params import SamplingParams
from ekiden.version import __version__

Route = tuple[str, str, str, Handler, type[Strict] | None]
"""Path, summary, tag, handler, and the model of the body: None for GET."""

_DOORS: Final[tuple[tuple[str, str, Door[Any, AnswerWriter]], ...]] = (
    ("/v1/chat/completions", "Chat", chat.DOOR),
    ("/v1/completions", "Completions", completions.DOOR),
    ("/v1/responses", "Responses", responses.DOOR),
    ("/v1/messages", "Messages", messages.DOOR),
)
_READING_DOORS: Final[tuple[tuple[str, str, Door[Any, Any]], ...]] = (
    ("/v1/embeddings", "Vectors of texts", embeddings.DOOR),
    ("/v1/score", "How well texts fit others", scores.SCORE_DOOR),
    ("/v1/rerank", "Documents in order of their fit to a query", scores.RERANK_DOOR),
    ("/rerank", "The same, where some clients look for it", scores.RERANK_DOOR),
)
_ERRORS: Final = {
    "400": "A field cannot work; the error names it",
    "401": "No API key, or a wrong one",
    "403": "The API key is not for this",
    "404": "No such model or path",
    "408": "The deadline passed or is too short, or the body did not arrive",
    "409": "What is asked does not fit the state of things, or has been done already",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "The tenant is over its own limits; see Retry-After",
    "503": "No capacity now; see Retry-After",
}


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    config: Config,
    generation_defaults: SamplingParams | None = None,
    guard: Guard | None = None,
    page: PagePorts | None = None,
) -> FastAPI:
    """The server's application over a running engine.

    ``chat_template`` is None for models without one. ``generation_defaults`` are the sampling values for what requests
    leave out (the model's ``generation_config``). Without a ``guard`` there is nothing at its paths. ``page``: what the
    page shows of evaluations and releases. ``app.state`` has the :class:`Doors`, the keys and the metrics.
    """
    app = FastAPI(title="Ekiden", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None)
    server, card, page = config.server, engine.card, page or PagePorts()
    keys = KeyStore.of(server)
    metrics = ApiMetrics(engine.stats, lambda: engine.health is Health.OK, card.model_id, guard)
    text = ModelText(
        tokenizer=tokenizer,
        chat_template=chat_template,
        grammars=GrammarCompiler(tokenizer, card.vocab_size),
        max_model_len=card.max_model_len,
        vocab_size=card.vocab_size,
        template_defaults=config.model.template_defaults,
        reasoning=marks_of(config.model.reasoning_parser, chat_template, tokenizer),
    )
    generation = Generation(
        engine=engine,
        text=text,
        flight=Flight(engine),
        metrics=metrics,
        keep_alive_seconds=server.stream_keep_alive,
    )
    doors = Doors(
        generation=generation,
        limits=config.limits,
        tenant_header=server.tenant_header,
        defaults=generation_defaults or SamplingParams(),
        ignored=IgnoredFields(metrics.count_ignored),
        refuse_unknown=server.unknown_fields == "refuse",
    )
    app.state.doors, app.state.keys, app.state.metrics, app.state.config = doors, keys, metrics, config
    app.state.guard = guard
    models: list[type[Strict]] = [chat_messages.ChatMessage]
    for path, summary, tag, handler, model in _routes(doors, config, guard, page, admin=keys.may_hold_admins):
        _add_route(app, path, summary, tag, handler, model)
        models += [model] if model else []
    status_routes.add_routes(app, doors, metrics, guard)
    evidence_routes.add_routes(app, generation, config)
    frames = Frames(engine, guard, recording=config.ledger.ledger)
    data = PageData(engine, doors.generation.flight, guard, config, keys, frames)
    app.state.page = PageStream(frames, doors.generation.flight, data)
    page_routes.add_routes(app, data, app.state.page, PageShelves(page, data))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    _add_middleware(app, server, keys, metrics)
    app.openapi = lambda: _openapi(app, models)  # type: ignore[method-assign]  # the way FastAPI documents
    return app


def _add_middleware(app: FastAPI, server: ServerConfig, keys: KeyStore, metrics: ApiMetrics) -> None:
    counted = {path for path, _, _ in (*_DOORS, *_READING_DOORS)}

    def refused(scope: Scope, error: ApiError) -> None:
        if scope["path"] in counted:
            metrics.count_unrecorded(refusal_of(error).reason)

    if keys.required:
        app.add_middleware(ApiKeyMiddleware, store=keys, refused=refused)
    app.add_middleware(PageAccessMiddleware, server=server, keys=keys)
    if server.cors_origin_list:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origin_list,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-ekiden-request-id", "x-request-id", "retry-after", "retry-after-ms", HEADER.decode()],
        )
    app.add_middleware(IdentityMiddleware)  # added last, so it is outermost


def _routes(doors: Doors, config: Config, guard: Guard | None, page: PagePorts, *, admin: bool) -> Iterator[Route]:
    for path, summary, door in _DOORS:
        yield path, summary, "generation", partial(doors.answer, door), door.fields
    count, counted = partial(messages.count_tokens, doors), messages.COUNTING.fields
    yield "/v1/messages/count_tokens", "Tokens of messages", "tokens", count, counted
    for path, summary, reading in _READING_DOORS:
        yield path, summary, "reading", partial(doors.answer_whole, reading), reading.fields
    yield "/tokenize", "Text to token ids", "tokens", partial(tokenize, doors), TokenizeRequest
    yield "/detokenize", "Token ids to text", "tokens", partial(detokenize, doors), DetokenizeRequest
    yield "/tokenizer_info", "Special tokens and lengths", "tokens", partial(tokenizer_info, doors), None
    people = None if guard is None else People(guard)
    if admin:
        routes = AdminRoutes(doors, config, people)
        yield "/admin/pause", "Pause a request", "admin", partial(routes.act, "pause"), RequestAction
        yield "/admin/resume", "Let a paused request go on", "admin", partial(routes.act, "resume"), RequestAction
        yield "/admin/abort", "End a request", "admin", partial(routes.act, "abort"), AbortAction
        yield "/admin/drain", "Close the server to new requests, or open it", "admin", routes.drain, DrainAction
        yield "/admin/policy", "Change rules and limits", "admin", routes.set_policy, PolicyAction
        yield "/admin/policy", "Rules in force", "admin", routes.policy, None
        yield "/admin/live", "The engine at a glance", "admin", routes.live, None
        if page.releases is not None:
            releases = ReleaseRoutes(doors, page.releases)
            yield "/admin/releases", "Approve, promote or abort a release", "admin", releases.act, ReleaseAction
    if admin and people is not None:
        desk = GuardRoutes(doors, people)
        yield "/admin/guard", "What the guard sees and holds in force", "admin", desk.state, None
        yield "/admin/guard", "Acknowledge, override, pause the guard", "admin", desk.act, GuardAction
        yield "/admin/approvals", "What waits for a person's yes", "admin", desk.approvals, None
        yield "/admin/approvals", "Approve or refuse", "admin", desk.approve, ApprovalAction


def _add_route(app: FastAPI, path: str, summary: str, tag: str, handler: Handler, model: type[Strict] | None) -> None:
    async def route(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response()  # nobody is left to read it; the generation has ended already

    described: dict[str, Any] = {}
    if model is not None:
        content: dict[str, Any] = {"application/json": {"schema": {}}}
        if "stream" in model.model_fields:
            content["text/event-stream"] = {"schema": {}}
        body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        described = {
            "responses": {200: {"description": "The answer", "content": content}},
            "openapi_extra": {"requestBody": {"required": True, "content": body}},
        }
    methods = ["GET" if model is None else "POST"]
    app.add_api_route(path, route, name=path, methods=methods, summary=summary, tags=[tag], **described)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return ErrorResponse(request.url.path, error)


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
    return ErrorResponse(request.url.path, told)


def _openapi(app: FastAPI, models: list[type[Strict]]) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, definitions = models_json_schema(
            [(model, "validation") for model in models],
            ref_template="#/components/schemas/{model}",
        )
        nullable = any_of(TEXT, {"type": "null"})
        error = closed_object({"message": TEXT, "type": TEXT, "param": nullable, "code": nullable})
        messages_error = closed_object({"type": TEXT, "message": TEXT})
        for each in (error, messages_error):  # only where a deadline could not be met
            each["properties"] = {**each["properties"], "estimate": {"type": "object"}}
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= definitions["$defs"]
        schemas["Error"] = closed_object({"error": error})
        schemas["MessagesError"] = closed_object({"type": {"const": "error"}, "error": messages_error})
        for path, operations in document["paths"].items():
            schema = {"$ref": f"#/components/schemas/{'MessagesError' if speaks_messages(path) else 'Error'}"}
            for operation in operations.values():
                operation["responses"].pop("422", None)
                for status, description in _ERRORS.items():
                    content = {"application/json": {"schema": schema}}
                    operation["responses"].setdefault(status, {"description": description, "content": content})
        app.openapi_schema = document
    return app.openapi_schema
