"""What made a run, as plain values in sections, and one digest over them.

Rules:
- whatever can change a token or a decision is in a section, and so in the digest; where a value came from, names,
  addresses and folders are not (``sources``, ``apart``);
- no secret is ever in it;
- what cannot be found out is None, and never a reason not to serve.
"""

import hashlib
import json

import msgspec

Value = str | int | float | bool | None
Section = dict[str, Value]


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """``code``, ``dependencies``, ``model``, ``settings``, ``backend`` and ``machine`` are what the digest covers."""

    code: Section = {}
    dependencies: Section = {}
    model: Section = {}
    settings: Section = {}
    backend: Section = {}
    machine: Section = {}
    sources: dict[str, str] = {}
    """Where each setting came from: a flag, a variable, a file, or ``default``."""
    apart: Section = {}
    """Names, addresses and folders."""

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal."""
        return hashlib.sha256(json.dumps(self.sections(), sort_keys=True).encode()).hexdigest()

    def sections(self) -> dict[str, Section]:
        return {name: getattr(self, name) for name in SECTIONS}

    def as_object(self) -> dict[str, object]:
        """As JSON shows it."""
        return {"digest": self.digest, **self.sections(), "sources": self.sources, "apart": self.apart}


SECTIONS = tuple(name for name in Lineage.__struct_fields__ if name not in ("sources", "apart"))
