"""What browsers and networks see: CORS, https, and documentation without another server."""

import asyncio
import re
import ssl
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trustme

from ekiden.api.binding import bind, check_tls, url_of
from ekiden.api.server import make_server
from ekiden.config import Config, ConfigError, ServerConfig
from tests.api.conftest import Memory, memory_client
from tests.api.scripted import MODEL, QUICK, ScriptedEngine, make_app, make_tokenizer

ORIGIN = "https://app.example.org"


async def test_cors_for_configured_origins_only():
    config = Config(server=ServerConfig(cors_origins=f"{ORIGIN}, https://b.example.org", api_key="secret"))
    async with memory_client(make_app(ScriptedEngine(make_tokenizer()), config)) as http:
        ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        allowed = await http.options("/v1/completions", headers={"origin": ORIGIN, **ask})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        assert "access-control-allow-credentials" not in allowed.headers
        refused = await http.options("/v1/completions", headers={"origin": "https://evil.example.org", **ask})
        assert "access-control-allow-origin" not in refused.headers
        body = {"model": MODEL, "prompt": "x"}
        headers = {"origin": ORIGIN, "authorization": "Bearer secret"}
        answer = await http.post("/v1/completions", json=body, headers=headers)
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-ekiden-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origins", ["app.example.org", "https://a.example.org/path", "ftp://a", "https://a, null"])
def test_origins_that_are_none(origins):
    with pytest.raises(ConfigError, match="cors_origins"):
        ServerConfig(cors_origins=origins)


async def test_documentation_needs_no_other_server(memory: Memory):
    page = await memory.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|https?://""", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert 'fetch("openapi.json")' in page.text


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    paths = {name: tmp_path / name for name in ("chain.pem", "key.pem", "both.pem", "authority.pem", "bad.pem")}
    issued.cert_chain_pems[0].write_to_path(str(paths["chain.pem"]))
    issued.private_key_pem.write_to_path(str(paths["key.pem"]))
    issued.private_key_and_cert_chain_pem.write_to_path(str(paths["both.pem"]))
    authority.cert_pem.write_to_path(str(paths["authority.pem"]))
    paths["bad.pem"].write_text("nothing")
    return paths


@pytest.mark.parametrize("names", [("chain.pem", "key.pem"), ("both.pem",)])
async def test_https(certificates, names):
    certfile, *keyfile = (str(certificates[name]) for name in names)
    settings = replace(QUICK, ssl_certfile=certfile, ssl_keyfile=keyfile[0] if keyfile else None)
    check_tls(certfile, settings.ssl_keyfile)
    listener = bind("127.0.0.1", 0)
    server = make_server(make_app(ScriptedEngine(make_tokenizer())), settings)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    url = url_of(listener, tls=True)
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificates["authority.pem"]))
    async with httpx.AsyncClient(base_url=url, verify=trusted, timeout=60) as http:
        answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True})
        assert answer.text.endswith("data: [DONE]\n\n")
    server.ask_to_stop()
    await task
    listener.close()


@pytest.mark.parametrize(
    ("certfile", "keyfile"), [("bad.pem", None), ("chain.pem", None), ("none.pem", None), ("chain.pem", "bad.pem")]
)
def test_certificates_that_cannot_be_used(certificates, tmp_path: Path, certfile, keyfile):
    with pytest.raises(ConfigError, match="ssl_certfile"):
        check_tls(str(tmp_path / certfile), None if keyfile is None else str(tmp_path / keyfile))


def test_a_key_without_a_certificate():
    with pytest.raises(ConfigError, match="ssl_certfile"):
        ServerConfig(ssl_keyfile="key.pem")
