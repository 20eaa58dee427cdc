// The constants of silu(g) = g / (1 + exp(-g)) and the order of its operations, which all instruction sets follow:
//
//   g' = max(g, silu_least)              below that silu is 0 in float32
//   x  = clamp(-g', exp_least, -silu_least)
//   n  = round-to-nearest-even(x / ln 2)
//   r  = x - n ln 2                      ln 2 in two parts, each step one fma: |r| <= ln 2 / 2
//   p  = exp(r)                          a polynomial by Horner's rule, each step one fma
//   silu = (g' h) / fma(p, h 2^n, h)     h is 2^-64 where n > 64, and 1 elsewhere: exp(x) alone may overflow
#pragma once

namespace ekiden {

constexpr float silu_least = -127.0f;
constexpr float exp_least = -60.0f;  // 1 + exp of it is 1
constexpr float log2_e = 0x1.715476p+0f;
constexpr float ln2_high = 0x1.62e4p-1f;  // few bits: its product with n is exact
constexpr float ln2_low = 0x1.7f7d1cp-20f;
constexpr int large_exponent = 64;
// exp(r) = 1 + r + r^2 (c[0] + c[1] r + ...)
constexpr float exp_terms[6] = {0x1p-1f,        0x1.555556p-3f,  0x1.555556p-5f,
                                0x1.111112p-7f, 0x1.6c16c2p-10f, 0x1.a01a02p-13f};

}  // namespace ekiden
