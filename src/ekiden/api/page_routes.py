"""The page at ``/`` and what it asks for under ``/dashboard/``. All of it reads: the page acts at ``/admin/``.

``/dashboard/data/`` is the page's own: its shapes (:mod:`ekiden.dashboard.shapes`) change with the page. Programs have
``/admin/live``, ``/v1/explain`` and ``/metrics``.
"""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.auth import PAGE_DATA, PAGE_FILES, PAGE_REPORTS
from ekiden.api.errors import not_found
from ekiden.api.page_data import PageData
from ekiden.api.page_shelves import PageShelves
from ekiden.api.page_stream import PageStream
from ekiden.dashboard.files import START, page_files


def add_routes(app: FastAPI, data: PageData, stream: PageStream, shelves: PageShelves) -> None:
    async def start(request: Request) -> Response:
        return _file(START, request)

    async def file(request: Request) -> Response:
        return _file(str(request.path_params["name"]), request)

    for path, handler in (
        ("config", data.config),
        ("runs", data.runs),
        ("period", data.period),
        ("changes", data.changes),
        ("requests", data.requests),
        ("request", data.request),
        ("what-if", data.what_if),
        ("compare", data.compare),
        ("releases", shelves.releases),
        ("evaluations", shelves.evaluations),
        ("stream", stream.stream),
    ):
        app.add_route(PAGE_DATA + path, handler, methods=["GET"], include_in_schema=False)
    app.add_route(PAGE_REPORTS + "{name:path}", shelves.report, methods=["GET"], include_in_schema=False)
    app.add_route("/", start, methods=["GET"], include_in_schema=False)
    app.add_route(PAGE_FILES + "{name:path}", file, methods=["GET"], include_in_schema=False)


def _file(name: str, request: Request) -> Response:
    """One of the page's files; 304 to a browser that has it already."""
    found = page_files().get(name)
    if found is None:
        raise not_found(request.url.path)
    headers = {"etag": found.etag, "cache-control": "no-cache"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if found.packed:
        headers["content-encoding"] = "gzip"
    return Response(found.content, media_type=found.media_type, headers=headers)
