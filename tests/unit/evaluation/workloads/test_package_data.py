"""Every data file that the package carries has its licence and its digest, and is what the digest says."""

import hashlib
import json
import re
from importlib.resources import files

import pytest

from ekiden.evaluation.workloads.package_data import BLOCK_TOKENS, digest_of, prompts, system_prompts, trace
from ekiden.evaluation.workloads.texts import FILES, SYSTEM
from ekiden.evaluation.workloads.traces import MOONCAKE

DATA = files("ekiden.data")
TABLE = DATA.joinpath("LICENSES.md").read_text("utf-8")
FOLDERS = ("prompts", "tenants", "text", "traces")
CARRIED = sorted(
    f"{folder}/{file.name}"
    for folder in FOLDERS
    if DATA.joinpath(folder).is_dir()
    for file in DATA.joinpath(folder).iterdir()
    if file.is_file() and not file.name.endswith(".py")
)
DIGESTS = {path: digest for digest, path in re.findall(r"^([0-9a-f]{64})  (\S+)$", TABLE, re.MULTILINE)}
LICENCE_TEXTS = {"Apache-2.0": "Apache-2.0", "CC-BY-4.0": "CC-BY-4.0", "CC0-1.0": "CC0-1.0", "MIT (c)": "MIT-notices"}


def test_there_is_data_in_all_folders():
    assert {path.partition("/")[0] for path in CARRIED} == set(FOLDERS)


@pytest.mark.parametrize("path", CARRIED)
def test_a_data_file_has_its_row_and_its_digest(path):
    assert f"| `{path}`" in TABLE or f", `{path}`" in TABLE
    assert DIGESTS[path] == hashlib.sha256(DATA.joinpath(path).read_bytes()).hexdigest() == digest_of(path)


def test_the_table_tells_of_no_file_that_is_not_there():
    assert sorted(DIGESTS) == CARRIED


def test_every_licence_of_the_table_is_there_in_full():
    rows = [line.split("|") for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    for row in rows[1:]:
        licence = row[3].strip()
        if not licence.startswith("public-domain"):
            name = next(file for start, file in LICENCE_TEXTS.items() if licence.startswith(start))
            assert len(DATA.joinpath(f"license_texts/{name}.txt").read_text("utf-8")) > 2_000


def test_every_source_in_the_prompt_files_is_named_in_the_table():
    for path in (*FILES.values(), SYSTEM):
        for line in DATA.joinpath(path).read_text("utf-8").splitlines():
            source = json.loads(line)["source"]
            assert f"`{source}`" in TABLE or source in TABLE, source


def test_both_languages_of_a_pair_lie_in_the_split_that_the_pair_id_says():
    splits: dict[str, set[str]] = {}
    for path in FILES.values():
        for prompt in prompts(path):
            odd = hashlib.sha256(f"cb-eval-v1:{prompt.pair_id}".encode()).digest()[-1] % 2
            assert prompt.split == ("confirm" if odd else "dev")
            splits.setdefault(prompt.pair_id, set()).add(prompt.split)
    assert {len(found) for found in splits.values()} == {1}
    assert len(system_prompts(SYSTEM)) == 156


def test_blocks_of_the_trace_with_prefixes_say_again_what_the_file_says():
    rows = trace(MOONCAKE)
    assert len(rows) == 12_031
    for row in rows:
        assert len(row.blocks) == -(-row.prompt_tokens // BLOCK_TOKENS)
    lines = DATA.joinpath(MOONCAKE).read_text().splitlines()[1:2_000]
    for index, line in enumerate(lines):
        *_, earlier, blocks = line.split(",")
        if earlier:
            shared = int(blocks)
            assert rows[index].blocks[:shared] == rows[int(earlier)].blocks[:shared]
            others = set().union(*(other.blocks for other in rows[max(0, index - 50) : index]))
            assert not others & set(rows[index].blocks[shared:])
