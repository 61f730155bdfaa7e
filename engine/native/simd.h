// Vectors of fp32 through GCC vector extensions: one source for AVX-512, AVX2, SSE and NEON.
//
// Bits must not depend on how the compiler fuses multiplications and additions, so the build turns contraction off
// (-ffp-contract=off) and every fused operation is written as fma().
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace native {

// Tests set NATIVE_LANES to run the code of other machines' widths on this one, without its special instructions.
#if defined(NATIVE_LANES)
constexpr int kLanes = NATIVE_LANES, kBlockVectors = 3, kMaxTileRows = NATIVE_LANES == 16 ? 8 : 4;
#elif defined(__AVX512F__)
#define NATIVE_AVX512 1
#if defined(__AVX512BF16__)
#define NATIVE_BF16_DOT 1  // an instruction multiplies pairs of bf16 and adds both products to fp32
#endif
constexpr int kLanes = 16, kBlockVectors = 3, kMaxTileRows = 8;
#elif defined(__AVX2__) && defined(__FMA__)
#define NATIVE_AVX2 1
constexpr int kLanes = 8, kBlockVectors = 3, kMaxTileRows = 4;
#elif defined(__aarch64__)
#define NATIVE_NEON 1
constexpr int kLanes = 4, kBlockVectors = 4, kMaxTileRows = 4;
#else
constexpr int kLanes = 4, kBlockVectors = 3, kMaxTileRows = 4;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));

struct BFloat16 {
  uint16_t bits;
};

template <class Vector, class Element>
inline Vector load(const Element* source) {
  Vector value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

template <class Vector, class Element>
inline void store(Element* target, Vector value) {
  std::memcpy(target, &value, sizeof value);
}

inline Floats splat(float value) { return value - Floats{}; }
inline Words splat_word(uint32_t value) { return value - Words{}; }

// a * b + c with one rounding where the machine has it.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(NATIVE_AVX512)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(NATIVE_AVX2)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(NATIVE_NEON)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

#if defined(NATIVE_BF16_DOT)
// Per lane: sum + a's first half * b's first half + a's second half * b's second half.
inline Floats bf16_dot(Words a, Words b, Floats sum) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
inline Floats bf16_dot(Words, Words, Floats sum) { return sum; }  // never called
#endif

// Keeps a value in a register where the compiler would rather load and unpack it again for every use.
inline Floats in_register(Floats value) {
#if defined(NATIVE_AVX512) || defined(NATIVE_AVX2)
  asm("" : "+v"(value));
#elif defined(NATIVE_NEON)
  asm("" : "+w"(value));
#endif
  return value;
}

inline Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }
inline Floats minimum(Floats a, Floats b) { return a < b ? a : b; }

inline Ints lane_index() {
  Ints index;
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = lane;
  return index;
}

template <int Step, size_t... Lane>
inline Floats rotate_lanes(Floats value, std::index_sequence<Lane...>) {
  return __builtin_shufflevector(value, value, (Lane + Step) % kLanes...);
}

// Sum or maximum over lanes, always by halving, so that the order never changes.
template <int Step = kLanes / 2>
inline float lane_sum(Floats value) {
  value = value + rotate_lanes<Step>(value, std::make_index_sequence<kLanes>{});
  if constexpr (Step > 1)
    return lane_sum<Step / 2>(value);
  else
    return value[0];
}

template <int Step = kLanes / 2>
inline float lane_max(Floats value) {
  value = maximum(value, rotate_lanes<Step>(value, std::make_index_sequence<kLanes>{}));
  if constexpr (Step > 1)
    return lane_max<Step / 2>(value);
  else
    return value[0];
}

// e^x to about 1 ulp: x = n ln2 + r with |r| <= ln2 / 2, Taylor series of degree 7 in r (its remainder is 5e-9).
// Below -87.3 the result is 0, above 88 it is e^88.
inline Floats exponential(Floats x) {
  const Ints normal = x >= splat(-87.3f);
  x = minimum(maximum(x, splat(-87.3f)), splat(88.0f));
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = fma(x, splat(1.44269504f), magic);
  const Floats n = shifted - magic;
  Floats r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Floats y = splat(1.0f / 5040);
  y = fma(y, r, splat(1.0f / 720));
  y = fma(y, r, splat(1.0f / 120));
  y = fma(y, r, splat(1.0f / 24));
  y = fma(y, r, splat(1.0f / 6));
  y = fma(y, r, splat(0.5f));
  y = fma(y, r, splat(1.0f));
  y = fma(y, r, splat(1.0f));
  const Words power = ((Words)shifted << 23) + splat_word(0x3f800000u);
  return (Floats)((Ints)(y * (Floats)power) & normal);
}

// What a storage type means: how it is rounded to, loaded, stored, and unpacked from 32-bit words.
template <class T>
struct Type;

template <>
struct Type<float> {
  static constexpr int kPerWord = 1;
  static Floats round(Floats value) { return value; }
  static Floats load_floats(const float* source) { return load<Floats>(source); }
  static void store_floats(float* target, Floats value) { store(target, value); }
  template <int Half>
  static Floats unpack(Words words) {
    return (Floats)words;
  }
  static void load_pair(const float* source, Floats pair[2]) {
    pair[0] = load<Floats>(source), pair[1] = load<Floats>(source + kLanes);
  }
};

template <>
struct Type<BFloat16> {
  static constexpr int kPerWord = 2;

  // Round to nearest even, kept as fp32; NaN stays NaN.
  static Floats round(Floats value) {
    const Words bits = (Words)value;
    const Words bias = ((bits >> 16) & splat_word(1)) + splat_word(0x7fff);
    const Floats rounded = (Floats)((bits + bias) & splat_word(0xffff0000u));
    return select(value == value, rounded, value);
  }
  static Floats load_floats(const BFloat16* source) {
    const Halves halves = load<Halves>(source);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
  }
  static void store_floats(BFloat16* target, Floats value) {
    const Words bits = (Words)round(value) >> 16;
    store(target, __builtin_convertvector(bits, Halves));
  }
  // Word = two neighbours: the low half is the first, the high half the second.
  template <int Half>
  static Floats unpack(Words words) {
    return Half == 0 ? (Floats)(words << 16) : (Floats)(words & splat_word(0xffff0000u));
  }
  // 2 * kLanes numbers as even ones and odd ones.
  static void load_pair(const BFloat16* source, Floats pair[2]) {
    const Words words = load<Words>(source);
    pair[0] = unpack<0>(words), pair[1] = unpack<1>(words);
  }
};

}  // namespace native
