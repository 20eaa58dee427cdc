// The instruction sets that the kernels are written for, and which of them this processor has.
#pragma once

#include <cstdint>

namespace ekiden {

// From the slowest to the fastest. All of them give the same bits.
enum class Isa : std::int32_t { portable, avx2, avx2_vnni, avx512_vnni };
constexpr int isa_count = 4;

// Whether this build has the kernels of `isa`, and processor and operating system its instructions.
bool usable(Isa isa);

// The fastest usable instruction set, or the one that `prefer` named.
Isa best();

// Makes `best` answer `isa` from now on, in all threads. False, and nothing changed, where it is not usable.
bool prefer(Isa isa);

// Whether the kernels of a usable `isa` give the bits of the portable ones on small made-up inputs. A few milliseconds
// at most. A processor, or a virtual machine, that executes an instruction wrongly is found out here.
bool agrees(Isa isa);

}  // namespace ekiden
