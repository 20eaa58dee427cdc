"""What the writers of chat and completions share: the head of every object, choices, chunks, and a stream's end."""

from typing import Any

from ekiden.api.doors.door import Job
from ekiden.api.errors import ApiError
from ekiden.api.fields import GenerationFields
from ekiden.api.generation import Child
from ekiden.api.sse import DONE, KEEP_ALIVE, encode
from ekiden.api.text_output import Piece


class ChunkedWriter:
    """``key`` is the field of a choice that grows with the text. The parts of a chunk that never change are encoded
    once, and a chunk with nothing but text is joined from them."""

    end = DONE
    keep_alive = KEEP_ALIVE

    def __init__(
        self, fields: GenerationFields, job: Job, *, prefix: str, kind: str, chunk: str, key: str, close: str
    ) -> None:
        self.job = job
        self.return_ids = bool(fields.return_token_ids)
        options = fields.stream_options
        self._continuous = job.call.include_usage and options is not None and bool(options.continuous_usage_stats)
        self._counts = [0 for _ in job.children]
        self.head: dict[str, Any] = {
            "id": f"{prefix}-{job.origin.request_id}",
            "object": kind,
            "created": job.origin.created,
            "model": job.card.model_id,
            "system_fingerprint": job.card.fingerprint,
        }
        # Without its closing brace, so that "choices" can be appended.
        self._prefix = b"data: " + encode(self.head | {"object": chunk})[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if job.call.include_usage else b"]}\n\n"
        self._starts = [self._prefix + f'{{"index":{child.index},{key}:'.encode() for child in job.children]
        self._close = f'{close},"logprobs":null,"finish_reason":null}}'.encode() + self._suffix

    def choice(self, index: int, body: dict[str, Any], finish: dict[str, Any], **ids: Any) -> dict[str, Any]:
        """A choice; ``ids`` are given only to clients that asked for token ids."""
        return {"index": index, **body, **finish, **(ids if self.return_ids else {})}

    def chunk(self, choice: dict[str, Any]) -> bytes:
        suffix = self._usage_so_far(choice["index"]) if self._continuous else self._suffix
        return self._prefix + encode(choice) + suffix

    def count(self, child: Child, piece: Piece) -> None:
        """Count the tokens of a piece before its chunks are written."""
        self._counts[child.index] += len(piece.token_ids)

    def _usage_so_far(self, index: int) -> bytes:
        given, done = len(self.job.children[index].prompt.token_ids), self._counts[index]
        usage = {"prompt_tokens": given, "completion_tokens": done, "total_tokens": given + done}
        return b'],"usage":' + encode(usage) + b"}\n\n"

    def is_text(self, piece: Piece) -> bool:
        """Whether a piece has nothing to tell but its text."""
        if piece.finish is not None or piece.reasoning:
            return False
        return not (piece.logprobs or self.return_ids or self._continuous)

    def grown(self, index: int, text: str) -> bytes:
        """The chunk of a choice that grew by a text and nothing else."""
        return self._starts[index] + encode(text) + self._close if text else b""

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._prefix + b'],"usage":' + encode(usage) + b"}\n\n" if self.job.call.include_usage else b""
