"""``/docs``: the endpoints and their fields, drawn from ``/openapi.json`` by a self-contained page.

The page is one file with its style and script inside, so that it works without a network and lets no other server
know who reads it; its content policy forbids anything else. Text is put in as text, never as markup.
"""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


def add_routes(app: FastAPI) -> None:
    page = files("ekiden.api").joinpath("docs.html").read_bytes()

    @app.get("/docs", summary="This documentation", tags=["status"], include_in_schema=False)
    async def docs() -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": _POLICY})
