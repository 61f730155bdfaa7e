// The 4-row bf16 tile for AVX2 in assembly: 12 accumulators, 3 weights and 1 activation are exactly the 16 registers,
// which compilers spill (58 instead of 86 of 90 GFLOP/s). Same operations in the same order as the generic tile.
#pragma once

#include "simd.h"

#if defined(NATIVE_AVX2)

namespace native {

// Registers 0-11: accumulators by row; 12-14: unpacked weights; 15: activation.
#define NATIVE_MULTIPLY(row, offset, c0, c1, c2)             \
  "vbroadcastss " offset "(%[row" row "]), %%ymm15\n\t"      \
  "vfmadd231ps %%ymm12, %%ymm15, %%ymm" c0 "\n\t"            \
  "vfmadd231ps %%ymm13, %%ymm15, %%ymm" c1 "\n\t"            \
  "vfmadd231ps %%ymm14, %%ymm15, %%ymm" c2 "\n\t"
#define NATIVE_MULTIPLY_ROWS(offset)                         \
  NATIVE_MULTIPLY("0", offset, "0", "1", "2")                \
  NATIVE_MULTIPLY("1", offset, "3", "4", "5")                \
  NATIVE_MULTIPLY("2", offset, "6", "7", "8")                \
  NATIVE_MULTIPLY("3", offset, "9", "10", "11")
// First halves: shift them up. Second halves: blend them over the (already zero) low halves.
#define NATIVE_FIRST(offset, target) \
  "vmovdqu " offset "(%[weights]), %%ymm" target "\n\tvpslld $16, %%ymm" target ", %%ymm" target "\n\t"
#define NATIVE_SECOND(offset, target) \
  "vpblendw $0xaa, " offset "(%[weights]), %%ymm" target ", %%ymm" target "\n\t"
#define NATIVE_FOR_ACCUMULATORS(move)                                                                          \
  move("0", "0") move("32", "1") move("64", "2") move("96", "3") move("128", "4") move("160", "5")             \
  move("192", "6") move("224", "7") move("256", "8") move("288", "9") move("320", "10") move("352", "11")
#define NATIVE_LOAD(offset, target) "vmovups " offset "(%[sums]), %%ymm" target "\n\t"
#define NATIVE_STORE(offset, source) "vmovups %%ymm" source ", " offset "(%[sums])\n\t"

inline void tile_bf16_4x3(const float* rows, ptrdiff_t row_stride, const uint32_t* weights, ptrdiff_t words,
                          float* accumulators, const char* ahead, ptrdiff_t ahead_step) {
  const float *row0 = rows, *row1 = rows + row_stride, *row2 = row1 + row_stride, *row3 = row2 + row_stride;
  asm volatile(NATIVE_FOR_ACCUMULATORS(NATIVE_LOAD)
               ".p2align 5\n"
               "1:\n\t" NATIVE_FIRST("0", "12") NATIVE_FIRST("32", "13") NATIVE_FIRST("64", "14")
               "prefetcht0 (%[ahead])\n\t" NATIVE_MULTIPLY_ROWS("0")
               NATIVE_SECOND("0", "12") NATIVE_SECOND("32", "13") NATIVE_SECOND("64", "14")
               "prefetcht0 48(%[ahead])\n\t" NATIVE_MULTIPLY_ROWS("4")
               "add $96, %[weights]\n\tadd %[step], %[ahead]\n\t"
               "add $8, %[row0]\n\tadd $8, %[row1]\n\tadd $8, %[row2]\n\tadd $8, %[row3]\n\t"
               "dec %[words]\n\tjnz 1b\n\t" NATIVE_FOR_ACCUMULATORS(NATIVE_STORE)
               : [weights] "+r"(weights), [ahead] "+r"(ahead), [words] "+r"(words), [row0] "+r"(row0),
                 [row1] "+r"(row1), [row2] "+r"(row2), [row3] "+r"(row3)
               : [sums] "r"(accumulators), [step] "r"(ahead_step)
               : "memory", "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9",
                 "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15");
}

#undef NATIVE_MULTIPLY
#undef NATIVE_MULTIPLY_ROWS
#undef NATIVE_FIRST
#undef NATIVE_SECOND
#undef NATIVE_FOR_ACCUMULATORS
#undef NATIVE_LOAD
#undef NATIVE_STORE

}  // namespace native
#endif
