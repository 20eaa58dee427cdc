"""What the writers of chat and completions share: the head of every object, chunks, and the end of a stream."""

from typing import Any

from ekiden.api.doors.door import Job
from ekiden.api.errors import ApiError
from ekiden.api.sse import DONE, ChunkFrame


class ChunkedWriter:
    """``key`` is the field of a choice that grows with the text. A chunk with nothing but text is joined from bytes
    that were encoded once."""

    end = DONE

    def __init__(self, job: Job, *, prefix: str, kind: str, chunk: str, key: str, close: str) -> None:
        self.job = job
        self.head: dict[str, Any] = {
            "id": f"{prefix}-{job.origin.request_id}",
            "object": kind,
            "created": job.origin.created,
            "model": job.card.model_id,
            "system_fingerprint": job.card.fingerprint,
        }
        self.frame = ChunkFrame(self.head | {"object": chunk}, include_usage=job.call.include_usage)
        self._starts = [self.frame.prefix + f'{{"index":{child.index},{key}:'.encode() for child in job.children]
        self._end = f'{close},"logprobs":null,"finish_reason":null}}'.encode() + self.frame.suffix

    def grown(self, index: int, text: bytes) -> bytes:
        """The chunk of a choice that grew by a text, which is encoded already."""
        return self._starts[index] + text + self._end

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self.frame.usage(usage) if self.job.call.include_usage else b""
