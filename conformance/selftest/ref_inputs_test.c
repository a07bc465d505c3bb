/* ref_inputs_test.c: the operators' recipes and the exact tier's admission: every lattice is admitted, nothing else;
 * wanted densities are met; clean f32 sums stay inside the error model. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "attention_fixture.h"
#include "core/dtype.h"
#include "ref/lib/lattice.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

static const assay_contract contract = {.k = ASSAY_F32, .v = ASSAY_F32, .qk_lanes = 1, .pv_lanes = 1, .exp_ulp = 2};

static fixture_spec exact_spec(const assay_op *op) {
  fixture_spec spec = fixture_default(op);
  spec.dtype = spec.kv_dtype = ASSAY_BF16;
  spec.values = ASSAY_LATTICE;
  return spec;
}

static void make(const fixture_spec *spec, fixture *f) {
  fixture_make(spec, f);
  fixture_param(f, "scale", 0.125);
}

static void refused(fixture *f, const char *with) {
  assay_error error = {0};
  const assay_status status = fixture_reference(f, &contract, true, &error);
  cr_assert(status == ASSAY_ERR_INPUT, "admitted, although %s", with);
  cr_assert(strncmp(error.text, "exact tier: ", 12) == 0 && strstr(error.text, with) != NULL, "%s", error.text);
}

Test(lattice, low_bits_and_widths) {
  cr_assert(lattice_low(1) == 0 && lattice_low(-12) == 2 && lattice_low(0.375) == -3 && lattice_low(0) == LATTICE_ZERO);
  cr_assert(lattice_low(0x1p-1074) == -1074 && lattice_low(0x1.8p-1073) == -1074 && lattice_low(0x1.8p1000) == 999);
  cr_assert(lattice_low(NAN) == -LATTICE_ZERO && lattice_low(INFINITY) == -LATTICE_ZERO);
  cr_assert(lattice_bits(0) == 0 && lattice_bits(8) == 1 && lattice_bits(-0.375) == 2 && lattice_bits(255) == 8);
  cr_assert(lattice_admits(0x1p24, 0, 24) && !lattice_admits(0x1.000002p24, 0, 24) && !lattice_admits(NAN, 0, 24));
  cr_assert(lattice_admits(0, -LATTICE_ZERO, 24) && !lattice_admits(0x1p-140, -140, 24), "below f32's normal range");
}

/* Every head size, type, layout and batch form, with windows and block-sparse masks. */
Test(lattice, is_admitted) {
  int64_t counts[4] = {0}; /* gate: p zero, inside, at lo = 1/16, at hi */
  for (int turn = 0; turn < 32 * 12; ++turn) {
    const bool softmax = turn % 2 != 0;
    fixture_spec spec = exact_spec(softmax ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.D = 8 * (1 + turn / 12);
    spec.dtype = turn % 3 == 0 && !softmax ? ASSAY_F32 : turn % 3 == 1 ? ASSAY_F16 : ASSAY_BF16;
    spec.kv_dtype = turn / 2 % 3 == 0 ? spec.dtype : turn / 2 % 3 == 1 ? ASSAY_E4M3 : ASSAY_E5M2;
    spec.layout = spec.D % 16 == 0 ? turn / 4 % 3 : turn / 4 % 2;
    spec.per_head = turn % 5 < 2;
    spec.ragged = turn % 4 > 1;
    spec.seed = (uint64_t)turn;
    spec.kv_len[2] = turn % 6 == 5 ? 200 : 41;
    spec.important = turn % 3 == 0 ? 16 : 0;
    spec.density = turn % 7 == 6 ? 0.3 : -1;
    fixture f;
    make(&spec, &f);
    if (turn % 5 == 4) fixture_param(&f, "window", 1 + turn % 17);
    if (turn % 8 == 3 && softmax) {
      fixture_param(&f, "sparse_block", 16);
      fixture_param(&f, "sparse_stride", 3);
      fixture_param(&f, "sparse_slide", 1);
    }
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, &contract, true, &error) == ASSAY_OK, "turn %d, D %d: %s", turn, (int)spec.D,
              error.text);
    counts[softmax] += f.seen.visible_keys;
    counts[2 + softmax] += f.seen.live_keys;
    for (int64_t e = 0; e < f.N * spec.H * spec.D; ++e)
      cr_assert(!softmax || f.out[e] > 0 || f.N == 0);
    fixture_free(&f);
  }
  const double gate = (double)counts[2] / (double)counts[0];
  cr_assert(gate > 0.2 && gate < 0.6, "share of live keys %g", gate);
}

/* One head's p, read through one-hot values: zeros, both edges and what lies between must occur. */
Test(lattice, gate_values_cover_the_clip) {
  fixture_spec spec = exact_spec(assay_op_gate_attention());
  spec.D = 64;
  spec.batch = 1;
  spec.kv_len[0] = 64;
  int zero = 0, inside = 0, top = 0;
  for (int turn = 0; turn < 20; ++turn) {
    spec.seed = (uint64_t)turn;
    fixture f;
    make(&spec, &f);
    fixture_fill(&f);
    double v[64];
    for (int64_t t = 0; t < 64; ++t)
      for (int64_t h = 0; h < spec.H_kv; ++h) {
        for (int64_t d = 0; d < 64; ++d)
          v[d] = d == t;
        fixture_set_v(&f, 0, t, h, v);
      }
    assay_error error = {0};
    cr_assert(fixture_reference(&f, &contract, true, &error) == ASSAY_OK, "%s", error.text);
    for (int64_t d = 0; d < 64; ++d) { /* head 0 has gamma 1 */
      zero += f.out[d] == 0;
      top += f.out[d] == 1;
      inside += f.out[d] > 0 && f.out[d] < 1;
    }
    fixture_free(&f);
  }
  cr_assert(zero > 300 && inside > 200 && top > 30, "%d at 0, %d inside, %d at 1", zero, inside, top);
}

Test(lattice, real_values_are_refused) {
  for (int which = 0; which < 2; ++which) {
    fixture_spec spec = exact_spec(which == 0 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.values = ASSAY_NORMAL;
    fixture f;
    make(&spec, &f);
    fixture_fill(&f);
    refused(&f, "found");
    fixture_free(&f);
  }
}

Test(lattice, conditions_of_the_gate) {
  fixture_spec spec = exact_spec(assay_op_gate_attention());
  spec.dtype = ASSAY_F32;
  spec.kv_dtype = ASSAY_E4M3;
  fixture f;
  make(&spec, &f);
  fixture_fill(&f);
  assay_error error = {0};
  cr_assert(fixture_reference(&f, &contract, true, &error) == ASSAY_OK, "%s", error.text);
  fixture_param(&f, "scale", 0.1);
  refused(&f, "scale");
  fixture_param(&f, "scale", 0.125);
  float *tap = f.arg[9].data, *gamma = f.arg[10].data, *k_scale = f.arg[3].data;
  tap[1] = -1.0F / 3;
  refused(&f, "filter");
  tap[1] = -0.25F;
  gamma[0] = 0.3F;
  refused(&f, "bits of p");
  gamma[0] = 1;
  k_scale[0] = 0.3F;
  refused(&f, "k_scale");
  k_scale[0] = 0.25F;
  fixture_param(&f, "hi", 0.7);
  refused(&f, "bits of p");
  fixture_param(&f, "hi", 1);
  assay_contract narrow = contract;
  narrow.partial = ASSAY_E5M2;
  cr_assert(fixture_reference(&f, &narrow, true, &error) == ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "sum |p v|") != NULL, "%s", error.text);
  fixture_free(&f);
}

Test(lattice, conditions_of_the_softmax) {
  fixture_spec spec = exact_spec(assay_op_softmax_attention());
  fixture f;
  make(&spec, &f);
  fixture_fill(&f);
  assay_error error = {0};
  cr_assert(fixture_reference(&f, &contract, true, &error) == ASSAY_OK, "%s", error.text);
  fixture_param(&f, "softcap", 30);
  refused(&f, "softcap");
  fixture_param(&f, "softcap", 0);
  double v[256] = {0};
  fixture_set_v(&f, 0, 3, 1, v);
  refused(&f, "least V");
  for (int d = 0; d < 256; ++d)
    v[d] = 1;
  fixture_set_v(&f, 0, 3, 1, v);
  for (int64_t d = 0; d < spec.D; ++d)
    v[d] = f.q[d] / 1024;
  fixture_set_q(&f, 0, 0, v);
  refused(&f, "below the largest");
  v[0] += 0.5;
  fixture_set_q(&f, 0, 0, v);
  refused(&f, "largest score");
  fixture_free(&f);
  spec.sink = true;
  make(&spec, &f);
  fixture_fill(&f);
  float *sink = fixture_arg(&f, "sink")->data;
  refused(&f, "sink");
  for (int64_t h = 0; h < spec.H; ++h)
    sink[h] = 900; /* above all scores */
  cr_assert(fixture_reference(&f, &contract, true, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(f.out[0] == 0);
  fixture_free(&f);
  spec.sink = false;
  spec.slopes = true;
  make(&spec, &f);
  fixture_fill(&f);
  refused(&f, "slopes");
  fixture_free(&f);
  spec.slopes = false;
  spec.dtype = spec.kv_dtype = ASSAY_F32;
  make(&spec, &f);
  fixture_fill(&f);
  refused(&f, "allowed f16, bf16");
  fixture_free(&f);
}

Test(inputs, gate_density_is_met) {
  static const double wanted[] = {0, 0.1, 0.3, 0.5, 0.9, 1};
  static const int64_t widths[] = {16, 64, 128, 256};
  for (int i = 0; i < 24; ++i) {
    fixture_spec spec = fixture_default(assay_op_gate_attention());
    spec.D = widths[i % 4];
    spec.density = wanted[i / 4];
    spec.kv_dtype = i % 3 == 0 ? ASSAY_E4M3 : ASSAY_F32;
    spec.k_scale = 0.11;
    spec.batch = 2;
    spec.kv_len[0] = 600;
    spec.kv_len[1] = 300;
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, &contract, false, &error) == ASSAY_OK, "%s", error.text);
    const double live = (double)f.seen.live_keys / (double)f.seen.visible_keys;
    cr_assert(fabs(live - spec.density) < 0.04, "D %d: %g live, %g wanted", (int)spec.D, live, spec.density);
    fixture_free(&f);
  }
}

/* Important keys are live for every head; needles carry nearly all of the weight. */
Test(inputs, important_keys_matter) {
  fixture_spec spec = fixture_default(assay_op_gate_attention());
  spec.batch = 1;
  spec.kv_len[0] = 64;
  spec.important = 8;
  for (int turn = 0; turn < 12; ++turn) {
    spec.values = turn % 3 == 0 ? ASSAY_NEEDLES : turn % 3 == 1 ? ASSAY_NORMAL : ASSAY_LATTICE;
    spec.density = turn % 2 ? 0.1 : -1;
    spec.seed = (uint64_t)turn;
    fixture f;
    make(&spec, &f);
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, &contract, false, &error) == ASSAY_OK, "%s", error.text);
    const int32_t *table = f.call.arg[5].data;
    for (int64_t t = 8; t < 64; t += 8)
      for (int64_t h = 0; h < spec.H_kv; ++h)
        cr_assert(f.seen.v_needed[(table[t / 8] * 8 + t % 8) * spec.H_kv + h] || spec.values == ASSAY_LATTICE,
                  "turn %d token %d", turn, (int)t);
    fixture_free(&f);
  }
  spec.op = assay_op_softmax_attention();
  spec.values = ASSAY_NEEDLES;
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  for (int64_t t = 0; t < 64; ++t) {
    double v[256];
    for (int d = 0; d < 256; ++d)
      v[d] = t % 8 == 0;
    for (int64_t h = 0; h < spec.H_kv; ++h)
      fixture_set_v(&f, 0, t, h, v);
  }
  assay_error error = {0};
  cr_assert(fixture_reference(&f, &contract, false, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t e = 0; e < spec.H * spec.D; ++e)
    cr_assert(f.out[e] > 0.99, "weight of the needles: %g", f.out[e]);
  fixture_free(&f);
}

/* ---- a clean f32 kernel against sigma ---- */

/* One row and head in f32 with fused products, keys in order; exp2 as kernels use it. */
static void clean_row(const fixture *f, int64_t request, int64_t h, float scale, float *out) {
  const int64_t D = f->spec.D, L = f->spec.kv_len[request];
  const bool softmax = f->spec.op == assay_op_softmax_attention();
  const double *q = f->q + (request * f->spec.H + h) * D;
  float *p = malloc((size_t)L * sizeof *p), *r = malloc((size_t)L * sizeof *r), max = -INFINITY, sum = 0;
  for (int64_t t = 0; t < L; ++t) {
    float dot = 0;
    for (int64_t d = 0; d < D; ++d)
      dot = fmaf((float)q[d], (float)fixture_k(f, request, t, h / f->G)[d], dot);
    r[t] = softmax || dot > 0 ? dot * scale : 0;
    max = fmaxf(max, r[t]);
  }
  for (int64_t t = 0; t < L; ++t) {
    if (softmax) {
      p[t] = exp2f((r[t] - max) * 1.44269504F);
      sum += p[t];
      continue;
    }
    float z = 0;
    for (int64_t j = 0; j < f->spec.F && j <= t; ++j)
      z = fmaf(((const float *)f->arg[9].data)[j], r[t - j], z);
    p[t] = ((const float *)f->arg[10].data)[h] * fminf(fmaxf(z, 0), 1);
  }
  for (int64_t d = 0; d < D; ++d) {
    float y = 0;
    for (int64_t t = 0; t < L; ++t)
      if (p[t] != 0) y = fmaf(p[t], (float)fixture_v(f, request, t, h / f->G)[d], y);
    out[d] = softmax ? y / sum : y;
  }
  free(p);
  free(r);
}

Test(error_model, clean_f32_sums_stay_inside) {
  static const assay_dtype types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16};
  static const int64_t widths[] = {8, 64, 128}, lengths[] = {1, 5, 64, 400};
  for (int turn = 0; turn < 72; ++turn) {
    fixture_spec spec = fixture_default(turn % 2 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.dtype = types[turn / 2 % 3];
    spec.kv_dtype = turn % 12 == 0 ? ASSAY_E4M3 : spec.dtype;
    spec.k_scale = 0.0137;
    spec.v_scale = 0.021;
    spec.D = widths[turn / 6 % 3];
    spec.batch = 2;
    spec.kv_len[0] = spec.kv_len[1] = (int32_t)lengths[turn / 18];
    spec.seed = (uint64_t)turn;
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, &contract, false, &error) == ASSAY_OK, "%s", error.text);
    double all_error = 0, all_sigma = 0;
    for (int64_t row = 0; row < f.N * spec.H; ++row) {
      float out[256];
      clean_row(&f, row / spec.H, row % spec.H, 1 / sqrtf((float)spec.D), out);
      for (int64_t d = 0; d < spec.D; ++d) {
        const int64_t e = row * spec.D + d;
        const double miss = assay_round_f64((double)out[d], spec.dtype) - f.out[e];
        cr_assert(!(fabs(miss) > 7 * f.sigma[e] + 0.5 * assay_ulp(0, spec.dtype)), "turn %d: %g, sigma %g", turn, miss,
                  f.sigma[e]);
        all_error += miss * miss;
        all_sigma += f.sigma[e] * f.sigma[e];
      }
    }
    const double ratio = sqrt(all_error / all_sigma);
    /* one key, f32: softmax is exact there, and scores err less than sums of one sign would */
    const bool many = spec.kv_len[0] > 1 && spec.dtype != ASSAY_F32;
    cr_assert(ratio < 1.5 && (!many || ratio > 0.6), "turn %d: RMS ratio %g", turn, ratio);
    fixture_free(&f);
  }
}
