#!/bin/sh
# Makes llama.cpp in an environment: its server, its quantiser and the library, compiled for this machine from the source
# that llama-cpp-python carries; and the Python bindings, which then need no library of their own.
#   build_llamacpp.sh ENVIRONMENT LOCK
set -eu
environment=$(cd "$1" && pwd)
pip="$environment/bin/python -m pip"
pinned=$(grep -E '^llama-cpp-python==' "$2")

# The bindings without a library, and all that is in the lock.
CMAKE_ARGS="-DLLAMA_BUILD=OFF" $pip install --quiet --no-binary llama-cpp-python -r "$2"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "$pinned"
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
"$environment/bin/cmake" -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" -G Ninja \
  -DCMAKE_MAKE_PROGRAM="$environment/bin/ninja" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
  -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF
"$environment/bin/cmake" --build "$work/build" --target llama-server llama-quantize
cp -P "$work"/build/bin/lib*.so* "$work"/build/bin/llama-server "$work"/build/bin/llama-quantize "$environment/bin/"
