"""``ekiden top``: the page fits its terminal whatever it has to show, and says the same as the view."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ekiden.cli.main import main
from ekiden.cli.top_page import page
from ekiden.evidence.live import live_view
from ekiden.evidence.live_view import (
    Away,
    Control,
    LiveView,
    Memory,
    Pace,
    Queue,
    Slot,
    SlotState,
    Spread,
    Tenant,
    Waiting,
)
from tests.unit.evidence.directed import Directed

RULES = {"batching": "continuous", "scheduling_policy": "fair", "max_num_seqs": "64", "max_num_batched_tokens": "512"}
BUSY = (SlotState.DECODE, SlotState.PREFILL, SlotState.RECOMPUTE, SlotState.PREEMPTED, SlotState.PADDING)


def full_view(slots: int) -> LiveView:
    """Everything that can be there is, with long names."""
    name = "0123456789abcdef0123456789abcdef-127"
    spread = Spread(count=900, p50=0.0213, p95=0.134, p99=1.234)
    return LiveView(
        run_id="20260131-101530-9f3a",
        model="HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
        version="0.1.0",
        lineage="abcdef0123456789" * 4,
        recording=True,
        turn=1_234_567,
        age_seconds=0.21,
        window_seconds=10.0,
        exact=True,
        running=slots - 1,
        slots=[
            Slot(
                slot=index,
                state=BUSY[index % 5],
                request_id=f"{index:04}{name}",
                tenant=f"tenant-{index % 12}",
                prompt_tokens=1234,
                computed_tokens=567,
                output_tokens=7 * index,
                max_tokens=2048,
                seconds=12.3,
                left_out="concurrent_prefills" if index % 7 == 0 else None,
            )
            for index in range(slots - 1)
        ]
        + [Slot(slot=slots - 1)],
        queue=Queue(
            waiting=120,
            by_cause={"waiting_for_tenants_turn": 100, "waiting_for_slot": 20},
            oldest_seconds=34.5,
            prompt_tokens=123_456,
            first=[
                Waiting(
                    request_id=name,
                    tenant="tenant-1",
                    prompt_tokens=900,
                    seconds=30.1,
                    cause="waiting_behind_earlier_deadline",
                    behind=name,
                    passed_over=True,
                )
            ]
            * 12,
        ),
        paused=2,
        away=[Away(request_id=name, tenant="tenant-2", why=["slow_reader", "operator"], output_tokens=99)] * 2,
        memory=Memory(
            used=1000,
            free=24,
            total=1024,
            block_size=32,
            swap_total=100,
            preempted=3,
            preempted_blocks=30,
            moved=60,
            preemptions=2,
        ),
        pace=Pace(
            steps=480,
            output_tokens=25_000,
            prompt_tokens=40_000,
            output_tokens_per_second=2500.0,
            prompt_tokens_per_second=4000.0,
            rows_per_step=52.1,
            ttft=spread,
            itl=spread,
            step=spread,
        ),
        tenants=[
            Tenant(
                tenant=f"tenant-{number}-of-a-long-name",
                weight=2.0,
                running=8,
                waiting=12,
                away=1,
                prompt_tokens=5000,
                output_tokens=3000,
                ended=12,
                refused=345,
            )
            for number in range(8)
        ],
        other_tenants=Tenant(tenant="12 others", running=1, output_tokens=10),
        ended={"length": 12, "stop": 30, "abort": 2},
        refused={"tenant_tokens_per_second": 100, "queue_full_requests": 245},
        controls=[
            *(
                Control(name=name, value=value, set_by="configuration", who="", seconds=99.0)
                for name, value in RULES.items()
            ),
            Control(name=f"pause {name}", value="on", set_by="person", who="anna", seconds=12.0),
        ],
        order="fair",
    )


def drawn(view: LiveView, width: int, height: int | None) -> list[str]:
    """As a terminal of that size would show it."""
    console = Console(
        file=io.StringIO(), width=width, height=height or 25, force_terminal=True, color_system="truecolor"
    )
    for line in page(view, width=width, height=height, keys="q quits"):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (100, 30), (200, 60)])
@pytest.mark.parametrize("slots", [1, 4, 16, 64, 256])
def test_a_page_fits_and_shows_every_slot(slots: int, width: int, height: int) -> None:
    lines = drawn(full_view(slots), width, height)
    text = "\n".join(lines)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    for section in ("ekiden top", "TTFT", "ITL", "KV", "slots", "queue", "tenants", "ended", "refused", "rules", "set"):
        assert section in text, section
    assert "slots (--json" not in text
    assert "tenant-0" in text
    assert "anna" in text
    assert "1 0123456789" in text, "the first in line"
    cells = signs(lines)
    expected = [BUSY[index % 5] for index in range(slots - 1)]
    assert cells == expected, cells


def signs(lines: list[str]) -> list[SlotState]:
    """The states as they can be read off the page, the free ones left out."""
    start = next(place for place, line in enumerate(lines) if line.startswith("slots"))
    end = next(place for place, line in enumerate(lines) if line.startswith("queue"))
    rows = lines[start + 1 : end]
    if re.match(r" +0 [dprx~·!] [a-z]{5}", rows[0]):
        return [SlotState(row.split()[2]) for row in rows if "·" not in row]
    short = {"d": BUSY[0], "p": BUSY[1], "r": BUSY[2], "x": BUSY[3], "~": BUSY[4]}
    # The sign stands first in a cell; what follows are digits and the beginning of a tenant's name.
    cells = r"[dprx~!·](?:[ \d]{2,3}[\dk%])?"
    found = [cell[0] for row in rows for cell in re.findall(cells, re.sub(r" t[-a-z…\d]*", " ", row))]
    for place, sign in enumerate(found):
        if sign == "!":  # left out of steps: its state is in the style
            found[place] = "dprx~"[place % 5]
    return [short[sign] for sign in found if sign != "·"]


def test_few_slots_have_a_line_each_and_many_a_cell() -> None:
    four = drawn(full_view(4), 80, 24)
    assert sum(line.startswith(f"{number:>4} ") for number in range(4) for line in four) >= 4
    assert any("prefilling" in line and "prompt 567/1,234" in line and "out    7/2048" in line for line in four)
    assert "tenant-1" in "".join(four)
    many = drawn(full_view(64), 80, 24)
    first = many[[line.startswith("slots") for line in many].index(True) + 1]
    assert first.startswith("!  0 p45% r 14 x 21 ~    d 35"), first
    assert any("d decode p prompt" in line and line.endswith("! left out") for line in many), "the signs are explained"
    wide = drawn(full_view(64), 120, 40)
    assert any(line.startswith("!  0 tenant-0       p45% tenant-1 ") for line in wide)


def test_a_thousand_slots_say_how_many_are_not_shown() -> None:
    lines = drawn(full_view(2000), 80, 24)
    assert len(lines) <= 24
    assert any("more slots (--json shows them)" in line for line in lines)


def test_a_low_terminal_and_no_terminal() -> None:
    assert len(drawn(full_view(64), 80, 20)) <= 20
    assert max(map(len, drawn(full_view(64), 40, 24))) <= 40
    lines = drawn(full_view(4), 80, None)
    assert sum("tenant-1" in line for line in lines) >= 12, "the whole queue"


def test_an_idle_engine(tmp_path: Path) -> None:
    with Directed().stored(tmp_path) as reader:
        lines = drawn(live_view(reader), 80, 24)
    assert any(line.startswith("queue  empty") for line in lines)
    assert any("TTFT -" in line for line in lines)


def test_commands_of_a_terminal_are_not_passed_on() -> None:
    view = msgspec.structs.replace(full_view(4), model="\x1b]0;title\x07", run_id="a\x1b[2Jb")
    assert "\x1b" not in "".join(line.plain for line in page(view, width=80, height=24))


# --- the command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    world = Directed(max_num_seqs=2)
    for name in ("one", "two", "three"):
        world.submit(name, output=40)
    world.step(5)
    with world.stored(tmp_path):
        return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["top", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_one_page_in_plain_text(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, "--once", "--ledger-dir", str(folder))
    assert status == 0
    assert "\x1b" not in text
    assert "2/2 running, 1 waiting" in text
    assert "three" in text
    assert "1 waiting for slot" in text
    assert run(capsys, "directed", "--ledger-dir", str(folder))[1].startswith("ekiden top"), "no terminal: once"


def test_the_view_for_programs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text, _ = run(capsys, "last", "--json", "--ledger-dir", str(folder))
    view = msgspec.convert(json.loads(text), LiveView)
    assert status == 0
    assert [slot.request_id for slot in view.slots] == ["one", "two"]
    assert view.queue.waiting == 1


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    status, _, told = run(capsys, "nothing", "--ledger-dir", str(folder))
    assert (status, told.count("\n")) == (2, 1)
    assert "no run 'nothing'" in told
    status, _, told = run(capsys, "--url", "http://127.0.0.1:1", "--once")
    assert status == 2
    assert "is the server running?" in told
    assert run(capsys, "--interval", "0", "--ledger-dir", str(folder))[0] == 2


class _Answers(BaseHTTPRequestHandler):
    body, status = b"", 200
    seen: "list[tuple[str, str | None]]" = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["authorization"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    _Answers.seen.clear()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_server_is_asked(capsys: pytest.CaptureFixture[str], server: HTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    _Answers.body, _Answers.status = msgspec.json.encode(full_view(64)), 200
    status, text, _ = run(capsys, "--url", url, "--api-key", "secret", "--window", "30", "--once")
    assert status == 0
    assert "63/64 running" in text
    assert _Answers.seen == [("/admin/live?window=30.0", "Bearer secret")]
    _Answers.body, _Answers.status = b'{"error": {"message": "There is nothing at /admin/live."}}', 404
    status, _, told = run(capsys, "--url", f"{url}/v1", "--once")
    assert status == 2
    assert "There is nothing at /admin/live." in told
    assert "keys of scope admin only" in told
    _Answers.body, _Answers.status = b'{"other": 1}', 200
    status, _, told = run(capsys, "--url", url, "--once")
    assert (status, "a view of this version" in told) == (2, True)


def test_q_ends_it_and_gives_the_terminal_back(folder: Path) -> None:
    """The command on a terminal of its own: it draws on the other screen, again and again, until q."""
    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "ekiden", "top", "--interval", "0.1", "--ledger-dir", str(folder)]
    size = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    child = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=os.environ | size)
    os.close(other)
    written = b""
    while written.count(b"ekiden top") < 3:
        assert select.select([terminal], [], [], 60)[0], written
        written += os.read(terminal, 65_536)
    os.write(terminal, b"q")
    try:
        while piece := os.read(terminal, 65_536):
            written += piece
    except OSError:  # so Linux says that the other end is closed
        pass
    os.close(terminal)
    assert child.wait(timeout=60) == 0
    assert written.index(b"\x1b[?1049h") < written.index(b"ekiden top") < written.index(b"\x1b[?1049l")
