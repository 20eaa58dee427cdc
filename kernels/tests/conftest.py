"""The libraries that the tests of the kernels share."""

import pytest

from kernels.tests.library import KERNELS, OF_ISA, Library, build

SHARED = ("isa", "portable", "c_api")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels as the wheel has them."""
    sources = {KERNELS / "src" / f"{name}.cpp": OF_ISA.get(name, ()) for name in (*SHARED, *OF_ISA)}
    return build(tmp_path_factory.mktemp("kernels"), "kernels", sources)
