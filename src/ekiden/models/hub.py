"""Fetches ``org/name`` from a model hub with the ``huggingface_hub`` package (the extra ``hub``).

The package keeps its own cache layout under ``hub/`` of the model cache, writes each file under another name until
it is complete, and refuses an incomplete snapshot when the hub cannot be reached. ``HF_ENDPOINT`` and ``HF_TOKEN``
have their usual meaning.
"""

import errno
from pathlib import Path
from typing import Any

from ekiden.models.errors import ModelError, one_line
from ekiden.models.fetch import Progress

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.gguf", "openvino_model.xml", "openvino_model.bin")
_CONFIGURATION = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
PATTERNS = (*_WEIGHTS, *_CONFIGURATION, "chat_template.jinja", "chat_template.json")


def fetch_snapshot(repository: str, cache_dir: Path, progress: Progress) -> Path:
    """The folder of the newest snapshot of ``org/name``, or of the cached one when the hub cannot be reached.

    Raises:
        ModelError: the extra, the repository, access to it, the network or disk space is missing.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise ModelError(
            f"{repository!r} names a model on a hub, and fetching from one needs an extra: run "
            "pip install 'ekiden[hub]', or give a folder or a .gguf file"
        ) from error
    named = f"{repository} cannot be fetched from the hub"
    try:
        bar = _progress_bar(f"fetching {repository}", progress)
        folder = snapshot_download(
            repository, cache_dir=cache_dir / "hub", allow_patterns=list(PATTERNS), tqdm_class=bar
        )
    except errors.GatedRepoError as error:
        raise ModelError(f"{named}: it is gated; accept its terms there, then set HF_TOKEN") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise ModelError(f"{named}: no such repository; check the name, and set HF_TOKEN if it is private") from error
    except errors.LocalEntryNotFoundError as error:
        reason = one_line(error.__cause__ or error)
        raise ModelError(
            f"{named}, and no complete copy is here; check the network, the proxy and HF_ENDPOINT ({reason})"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"{named}: no space left in {cache_dir}; free space, or set EKIDEN_MODEL_CACHE to another disk"
            ) from error
        raise ModelError(f"{named}: {one_line(error)}; try again later") from error
    except Exception as error:  # errors of the package's HTTP client, whose types differ between versions
        raise ModelError(f"{named}: {one_line(error)}; check the network and HF_ENDPOINT") from error
    return Path(folder)


def _progress_bar(what: str, progress: Progress) -> type[Any]:
    """A class to use as the package's progress bar; it calls ``progress`` instead of drawing."""
    from huggingface_hub.utils.tqdm import tqdm

    class Reporter(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._is_bytes = options.get("unit") == "B"
            options["disable"] = False
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **options: Any) -> None:
            """Draw nothing; the caller's own display shows the progress."""

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if self._is_bytes:
                progress(what, int(self.n), int(self.total or 0))
            return drawn

    return Reporter
