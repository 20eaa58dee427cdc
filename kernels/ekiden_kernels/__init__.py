"""Operations of Ekiden's own for OpenVINO on CPUs, in a library that it loads as an extension.

``LIBRARY`` is that library, ``OPENVINO`` the version that it was built for: it works with no other.
"""

from pathlib import Path

from ekiden_kernels._built import OPENVINO

LIBRARY = Path(__file__).with_name("libekiden_kernels.so")

__all__ = ["LIBRARY", "OPENVINO"]
