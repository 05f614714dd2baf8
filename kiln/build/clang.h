// What the kernels use of GCC and Clang does not have, by the intrinsics that both have. Included before a kernel that
// Clang compiles.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kiln_clang {

template <class V, class I> static inline __attribute__((always_inline)) V shuffle(V a, V b, I from) {
  constexpr unsigned n = sizeof(a) / sizeof(a[0]);
  V made;
  for (unsigned k = 0; k < n; ++k) made[k] = from[k] & n ? b[from[k] & (n - 1)] : a[from[k] & (n - 1)];
  return made;
}

}  // namespace kiln_clang

#define __builtin_shuffle(...) kiln_clang::shuffle(__VA_ARGS__)

// 512 bits. The mask is all ones wherever a kernel passes one that is not used here.
#define __builtin_ia32_blendmq_512_mask(no, yes, mask) _mm512_mask_blend_epi64(mask, (__m512i)(no), (__m512i)(yes))
#define __builtin_ia32_maxps512_mask(a, b, rest, mask, rounding) _mm512_max_ps((__m512)(a), (__m512)(b))
#define __builtin_ia32_minps512_mask(a, b, rest, mask, rounding) _mm512_min_ps((__m512)(a), (__m512)(b))
#define __builtin_ia32_permvarsf512_mask(table, at, rest, mask) _mm512_permutexvar_ps((__m512i)(at), (__m512)(table))
#define __builtin_ia32_pmovsxbd512_mask(x, rest, mask) _mm512_cvtepi8_epi32((__m128i)(x))
#define __builtin_ia32_pmovzxbd512_mask(x, rest, mask) _mm512_cvtepu8_epi32((__m128i)(x))
#define __builtin_ia32_pmovsxwd512_mask(x, rest, mask) _mm512_cvtepi16_epi32((__m256i)(x))
#define __builtin_ia32_pmovzxwd512_mask(x, rest, mask) _mm512_cvtepu16_epi32((__m256i)(x))
#define __builtin_ia32_pmuludq512_mask(a, b, rest, mask) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define __builtin_ia32_ptestmd512(a, b, mask) _mm512_mask_test_epi32_mask(mask, (__m512i)(a), (__m512i)(b))
#define __builtin_ia32_sqrtps512_mask(x, rest, mask, rounding) _mm512_sqrt_ps((__m512)(x))
#define __builtin_ia32_sqrtpd512_mask(x, rest, mask, rounding) _mm512_sqrt_pd((__m512d)(x))

// 128 and 256 bits.
#define __builtin_ia32_packssdw128(a, b) _mm_packs_epi32((__m128i)(a), (__m128i)(b))
#define __builtin_ia32_packsswb128(a, b) _mm_packs_epi16((__m128i)(a), (__m128i)(b))
#define __builtin_ia32_packusdw128(a, b) _mm_packus_epi32((__m128i)(a), (__m128i)(b))
#define __builtin_ia32_pmovsxbd256(x) _mm256_cvtepi8_epi32((__m128i)(x))
#define __builtin_ia32_pmovzxbd256(x) _mm256_cvtepu8_epi32((__m128i)(x))
#define __builtin_ia32_pmuludq256(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define __builtin_ia32_sqrtps256(x) _mm256_sqrt_ps((__m256)(x))
#define __builtin_ia32_vcvtph2ps256(x) _mm256_cvtph_ps((__m128i)(x))
#define __builtin_ia32_vfmaddps256(a, b, c) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
