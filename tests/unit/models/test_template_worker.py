"""A helper process that something kills costs nobody an answer."""

import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from ekiden.models import template_worker
from ekiden.models.template_worker import RenderingError, end_workers, render_apart

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def fresh_workers() -> Iterator[None]:
    end_workers()
    yield
    end_workers()


def render(text: str) -> str:
    return render_apart("{{ text }}!", {"text": text}, NOW)


def running() -> list[int]:
    """The processes of the idle workers."""
    workers = list(template_worker._idle.queue)
    return [worker._running[0].pid for worker in workers if worker._running is not None]


def test_one_that_is_killed_while_it_is_idle_is_replaced() -> None:
    assert render("before") == "before!"
    (pid,) = running()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert render("after") == "after!"
    assert running() != [pid]


def test_one_that_is_killed_at_work_is_replaced_and_the_work_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render("before") == "before!"
    (pid,) = running()
    os.kill(pid, signal.SIGSTOP)  # so that it is surely at work when it is killed
    answers: list[str] = []
    asked, start = threading.Event(), template_worker._Worker.start

    def start_and_tell(self: template_worker._Worker) -> object:
        connection = start(self)
        asked.set()
        return connection

    monkeypatch.setattr(template_worker._Worker, "start", start_and_tell)
    asking = threading.Thread(target=lambda: answers.append(render("meanwhile")))
    asking.start()
    assert asked.wait(60)
    os.kill(pid, signal.SIGKILL)
    asking.join(60)
    assert answers == ["meanwhile!"]


def test_work_whose_helpers_are_killed_one_after_another_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = template_worker._Worker.start

    def start_and_kill(self: template_worker._Worker) -> object:
        connection = start(self)
        assert self._running is not None
        started.append(self._running[0].pid)
        os.kill(started[-1], signal.SIGKILL)
        return connection

    monkeypatch.setattr(template_worker._Worker, "start", start_and_kill)
    with pytest.raises(RenderingError, match="its process was ended"):
        render("never")
    assert len(started) == 2
