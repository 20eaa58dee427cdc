"""The libraries that the tests of the kernels share."""

from pathlib import Path

import pytest

from tests.kernels.build import KERNELS, OF_ISA, Isa, Library, compiled, linked

SHARED = ("isa", "portable", "c_api", "avx2")
VNNI = ("avx2_vnni", "avx512_vnni")


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sources = {KERNELS / "src" / f"{name}.cpp": OF_ISA.get(name, ()) for name in (*SHARED, *VNNI)}
    sources[Path(__file__).with_name("emulated.cpp")] = OF_ISA["avx2"]
    sources[Path(__file__).with_name("faulty.cpp")] = ()
    return compiled(tmp_path_factory.mktemp("kernels"), sources)


@pytest.fixture(scope="session")
def kernels(objects: dict[str, Path]) -> Library:
    """The kernels as the wheel has them."""
    return linked(objects["isa"].with_name("kernels.so"), [objects[name] for name in (*SHARED, *VNNI)])


@pytest.fixture(scope="session")
def emulated(objects: dict[str, Path], kernels: Library) -> Library:
    """Those for VNNI without its instruction; the others as they are."""
    if not kernels.usable(Isa.AVX2):
        pytest.skip("the emulation needs AVX2")
    return linked(objects["isa"].with_name("emulated.so"), [objects[name] for name in (*SHARED, "emulated")])


@pytest.fixture(scope="session")
def faulty(objects: dict[str, Path]) -> Library:
    """Those for VNNI give wrong results."""
    return linked(objects["isa"].with_name("faulty.so"), [objects[name] for name in (*SHARED, "faulty")])
