/* simt_stream_test.cpp: fp8 on its way into the streamed decode, and results on their way out. Every pair of codes is
 * compared with the reference's decoding, and the factor of a score with wider arithmetic. */
#include <criterion/criterion.h>

#include <math.h>

#include "simt/cuda.h"

#include "gpu/lib/softmax_stream_end.cuh"
#include "gpu/lib/stream.cuh"

extern "C" {
#include "core/dtype.h"
}

using namespace ASSAY_NS;

template <class KV> static void decode_all(assay_dtype dtype) {
  for (uint32_t codes = 0; codes < 65536; ++codes) {
    const uint8_t code[2] = {static_cast<uint8_t>(codes), static_cast<uint8_t>(codes >> 8)};
    const uint32_t pair = stream_decode<KV>(codes);
    for (int i = 0; i < 2; ++i) {
      const double wanted = assay_load_f64(code, dtype, i);
      const float found = to_float(bf16{static_cast<uint16_t>(pair >> 16 * i)});
      cr_assert_eq(isnan(wanted) != 0, isnan(found) != 0, "codes %04x, number %d", codes, i);
      if (isnan(wanted)) continue;
      const float exact = static_cast<float>(wanted);
      cr_assert_eq(bits_of(exact), bits_of(found), "codes %04x, number %d: %g, not %g", codes, i,
                   static_cast<double>(found), wanted);
    }
  }
}

Test(simt_stream, every_pair_of_codes_is_decoded_exactly) {
  decode_all<e4m3>(ASSAY_E4M3);
  decode_all<e5m2>(ASSAY_E5M2);
}

/* scale and k_scale are two factors, and a score is rounded once. */
Test(simt_stream, the_factor_of_a_score_rounds_once) {
  uint64_t state = 1;
  for (int turn = 0; turn < 100000; ++turn) {
    float number[3];
    for (float &x : number) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = float_of(0x3F800000u | static_cast<uint32_t>(state >> 41)); /* 1 to 2 */
    }
    attention_params a = attention_params();
    a.cache.k_scale = &number[1];
    stream_factor<e4m3> factor;
    factor.begin(number[0], a, 0);
    const long double exact = static_cast<long double>(number[0]) * number[1] * number[2];
    const double off = static_cast<double>(fabsl(exact - static_cast<long double>(factor.times(number[2]))));
    const double ulp = exact < 2 ? 0x1p-23 : exact < 4 ? 0x1p-22 : 0x1p-21;
    cr_assert(off <= 0.501 * ulp, "%a · %a · %a: %g ulp", static_cast<double>(number[0]),
              static_cast<double>(number[1]), static_cast<double>(number[2]), off / ulp);
  }
}

Test(simt_stream, the_factor_of_a_score_keeps_infinities) {
  const float k_scale = 0.3f;
  attention_params a = attention_params();
  a.cache.k_scale = &k_scale;
  stream_factor<e5m2> factor;
  for (float base : {0.125f, 0.3f, 0.7f}) {
    factor.begin(base, a, 0);
    cr_assert_eq(factor.times(INFINITY), INFINITY);
    cr_assert_eq(factor.times(-INFINITY), -INFINITY);
  }
}

/* Results go to out one by one where it is no multiple of 8 bytes, and together elsewhere. */
Test(simt_stream, four_results_are_written_at_any_place) {
  for (int32_t place = 0; place < 4; ++place) {
    alignas(8) bf16 out[12] = {};
    softmax_put_four(out + 4 + place, make_float4(1.0f, 2.0f, 3.0f, 4.0f), place == 0);
    for (int32_t i = 0; i < 12; ++i) {
      const int32_t number = i - 4 - place + 1;
      cr_assert_eq(to_float(out[i]), number >= 1 && number <= 4 ? static_cast<float>(number) : 0.0f, "place %d, %d",
                   place, i);
    }
  }
}
