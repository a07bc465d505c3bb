/* ref_check_test.c: what no implementation can do is refused with the parameter's name; which keys are visible;
 * the roofline's counts. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "attention_fixture.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

static void start(fixture *f, const assay_op *op, int layout, assay_dtype kv) {
  fixture_spec spec = fixture_default(op);
  spec.layout = layout;
  spec.kv_dtype = kv;
  spec.ragged = true;
  spec.slopes = spec.lse = spec.sink = true;
  fixture_make(&spec, f);
  fixture_fill(f);
}

static void legal(fixture *f) {
  assay_error error = {0};
  cr_assert(f->spec.op->check(&f->call, &error) == ASSAY_OK, "%s", error.text);
}

static void refused(fixture *f, const char *name) {
  assay_error error = {0};
  cr_assert(f->spec.op->check(&f->call, &error) == ASSAY_ERR_INPUT, "%s was let through", name);
  cr_assert(strncmp(error.text, name, strlen(name)) == 0 && strstr(error.text, "found") != NULL &&
                strstr(error.text, "allowed") != NULL,
            "%s: '%s'", name, error.text);
}

/* Each line breaks one thing, expects its name, and repairs it. */
#define BREAKS(place, value, name)                                                                                     \
  do {                                                                                                                 \
    const __typeof__(place) kept = (place);                                                                            \
    (place) = (value);                                                                                                 \
    refused(&f, name);                                                                                                 \
    (place) = kept;                                                                                                    \
    legal(&f);                                                                                                         \
  } while (0)

Test(ref_check, shapes_types_and_strides) {
  for (int layout = 0; layout < 3; ++layout) {
    fixture f;
    start(&f, assay_op_gate_attention(), layout, ASSAY_E4M3);
    legal(&f);
    assay_tensor *q = fixture_arg(&f, "q"), *k = fixture_arg(&f, "k_cache"), *v = fixture_arg(&f, "v_cache");
    assay_tensor *table = fixture_arg(&f, "block_table"), *out = fixture_arg(&f, "out");
    BREAKS(q->data, NULL, "q");
    BREAKS(q->data, (char *)q->data + 1, "q");
    BREAKS(q->dtype, ASSAY_E4M3, "q");
    BREAKS(q->rank, 2, "q");
    BREAKS(q->stride[2], 2, "q");
    BREAKS(q->stride[1], q->shape[2] + 8, "q");
    BREAKS(q->stride[0], q->shape[1] * q->shape[2] - 1, "q");
    BREAKS(q->stride[0], INT64_MAX, "q");
    BREAKS(q->stride[0], INT64_MAX / assay_dtype_size(q->dtype), "q");
    BREAKS(k->stride[0], INT64_MAX, "k_cache");
    BREAKS(v->stride[0], INT64_MAX, "v_cache");
    BREAKS(q->shape[1], 257, "H");
    BREAKS(q->shape[1], 0, "H");
    BREAKS(q->shape[2], 12, "D");
    BREAKS(q->shape[2], 264, "D");
    BREAKS(k->dtype, ASSAY_I32, "k_cache");
    BREAKS(k->dtype, ASSAY_F16, "k_cache");
    BREAKS(v->dtype, ASSAY_E5M2, "v_cache");
    BREAKS(k->rank, 3, "k_cache");
    BREAKS(k->data, NULL, "k_cache");
    BREAKS(k->stride[k->rank - 1], 2, "k_cache");
    BREAKS(v->stride[0], 0, "v_cache");
    BREAKS(v->shape[0], v->shape[0] + 1, "v_cache");
    BREAKS(k->shape[layout == 0 ? 2 : 1], 3, "H_kv");
    BREAKS(k->shape[layout == 0 ? 1 : layout == 1 ? 2 : 3], 24, "block_size");
    BREAKS(fixture_arg(&f, "k_scale")->data, NULL, "k_scale");
    BREAKS(fixture_arg(&f, "v_scale")->shape[0], 2, "v_scale");
    BREAKS(table->dtype, ASSAY_I64, "block_table");
    BREAKS(table->shape[0], 2, "block_table");
    BREAKS(table->stride[0], table->shape[1] - 1, "block_table");
    BREAKS(fixture_arg(&f, "kv_len")->dtype, ASSAY_F32, "kv_len");
    BREAKS(fixture_arg(&f, "cu_q")->shape[0], 3, "cu_q");
    BREAKS(fixture_arg(&f, "cu_q")->data, NULL, "q");
    BREAKS(fixture_arg(&f, "taps")->shape[0], 9, "F");
    BREAKS(fixture_arg(&f, "taps")->shape[0], 0, "F");
    BREAKS(fixture_arg(&f, "gamma")->shape[0], 3, "gamma");
    BREAKS(out->shape[0], out->shape[0] - 1, "out");
    BREAKS(out->stride[0], out->stride[0] + 8, "out");
    BREAKS(out->dtype, ASSAY_BF16, "out");
    BREAKS(out->data, NULL, "out");
    fixture_free(&f);
  }
}

Test(ref_check, free_strides_are_legal) {
  fixture f;
  start(&f, assay_op_softmax_attention(), 0, ASSAY_F32);
  assay_tensor *q = fixture_arg(&f, "q"), *k = fixture_arg(&f, "k_cache"), *table = fixture_arg(&f, "block_table");
  q->stride[0] += 40;
  k->stride[0] *= 2;
  table->stride[0] += 3;
  legal(&f);
  fixture_free(&f);
}

Test(ref_check, parameters) {
  fixture f;
  start(&f, assay_op_gate_attention(), 0, ASSAY_F32);
  BREAKS(f.param[0], 3, "layout");
  BREAKS(f.param[0], 0.5, "layout");
  BREAKS(f.param[1], -1, "scale");
  BREAKS(f.param[1], (double)NAN, "scale");
  BREAKS(f.param[2], 2.5, "window");
  BREAKS(f.param[2], -1, "window");
  BREAKS(f.param[3], 2, "scale_per_head");
  BREAKS(f.param[4], 1.5, "lo");
  BREAKS(f.param[4], -0.5, "lo");
  BREAKS(f.param[5], (double)INFINITY, "hi");
  BREAKS(f.param[6], 0.5, "relu_pre");
  float scale = 1;
  BREAKS(f.arg[3].data, &scale, "k_scale");
  fixture_free(&f);
  start(&f, assay_op_softmax_attention(), 0, ASSAY_F32);
  BREAKS(f.param[4], -1, "softcap");
  BREAKS(f.param[5], 12, "sparse_block");
  BREAKS(f.param[7], 0, "sparse_stride");
  BREAKS(f.param[9], -1, "tp_rank");
  BREAKS(fixture_arg(&f, "slopes")->shape[0], 5, "slopes");
  BREAKS(fixture_arg(&f, "lse")->shape[1], 5, "lse");
  BREAKS(fixture_arg(&f, "lse")->dtype, ASSAY_BF16, "lse");
  BREAKS(fixture_arg(&f, "sink")->shape[0], 5, "sink");
  BREAKS(fixture_arg(&f, "sink")->dtype, ASSAY_F16, "sink");
  BREAKS(fixture_arg(&f, "sink")->stride[0], 2, "sink");
  fixture_free(&f);
}

/* Rows of requests with 13, 1 and 5 new tokens. A chain is the causal mask. A root sees its own key and no other new
 * one: so does the first row. Parents that are no earlier rows are refused. */
Test(ref_check, trees) {
  static const int32_t wrong[] = {4, 5, -2};
  fixture f;
  start(&f, assay_op_softmax_attention(), 0, ASSAY_F32);
  const int64_t row = f.spec.H * f.spec.D, first = f.first_row[2];
  int32_t parent[32];
  double causal[1 << 12], value[256];
  assay_error error = {0};
  for (int64_t d = 0; d < f.spec.D; ++d)
    value[d] = 0.25 * (double)(d % 3);
  cr_assert(f.N * row <= 1 << 12);
  for (int64_t i = 0; i < f.spec.batch; ++i)
    for (int64_t n = f.first_row[i]; n < f.first_row[i + 1]; ++n)
      parent[n] = (int32_t)(n - f.first_row[i]) - 1;
  for (int64_t h = 0; h < f.spec.H; ++h)
    fixture_set_q(&f, first, h, value), fixture_set_q(&f, first + 4, h, value);
  free(fixture_arg(&f, "slopes")->data);
  fixture_arg(&f, "slopes")->data = NULL;
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  memcpy(causal, f.out, (size_t)(f.N * row) * sizeof *causal);
  *fixture_arg(&f, "parent") =
      (assay_tensor){.data = parent, .dtype = ASSAY_I32, .rank = 1, .shape = {f.N}, .stride = {1}};
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  cr_expect(memcmp(causal, f.out, (size_t)(f.N * row) * sizeof *causal) == 0, "a chain");
  parent[first + 4] = -1;
  for (int64_t h = 0; h < f.spec.H_kv; ++h) {
    fixture_set_k(&f, 2, 23, h, fixture_k(&f, 2, 19, h));
    fixture_set_v(&f, 2, 23, h, fixture_v(&f, 2, 19, h));
  }
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  cr_expect(memcmp(f.out + first * row, f.out + (first + 4) * row, (size_t)row * sizeof(double)) == 0, "a root");
  for (int i = 0; i < 3; ++i) {
    parent[first + 4] = wrong[i];
    legal(&f);
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_ERR_INPUT);
    cr_assert(strncmp(error.text, "parent: found", 13) == 0, "%s", error.text);
  }
  fixture_arg(&f, "parent")->data = NULL;
  fixture_free(&f);
}

/* A sink is a number or none: -inf. */
Test(ref_check, sinks) {
  static const float wrong[] = {(float)NAN, (float)INFINITY};
  fixture f;
  start(&f, assay_op_softmax_attention(), 0, ASSAY_F32);
  float *sink = fixture_arg(&f, "sink")->data;
  assay_error error = {0};
  sink[2] = -(float)INFINITY;
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  for (int i = 0; i < 2; ++i) {
    sink[2] = wrong[i];
    legal(&f);
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_ERR_INPUT);
    cr_assert(strncmp(error.text, "sink: found", 11) == 0, "%s", error.text);
  }
  fixture_free(&f);
}

/* Lengths and tables: the reference reads them, check() does not. */
Test(ref_check, contents) {
  fixture f;
  start(&f, assay_op_gate_attention(), 0, ASSAY_F32);
  int32_t *length = fixture_arg(&f, "kv_len")->data, *cu = fixture_arg(&f, "cu_q")->data;
  int32_t *table = fixture_arg(&f, "block_table")->data;
  int32_t *const place[] = {&length[1], &length[1], &cu[0], &cu[1], &cu[3], &table[0], &table[0]};
  static const int32_t value[] = {-1, 1000, 1, 15, 18, -1, 99};
  static const char *const name[] = {"kv_len", "kv_len", "cu_q", "cu_q", "cu_q", "block_table", "block_table"};
  for (int i = 0; i < 7; ++i) {
    const int32_t kept = *place[i];
    *place[i] = value[i];
    legal(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_ERR_INPUT, "%s was let through", name[i]);
    cr_assert(strncmp(error.text, name[i], strlen(name[i])) == 0, "%s: '%s'", name[i], error.text);
    *place[i] = kept;
  }
  assay_error error = {0};
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  fixture_free(&f);
}

/* visible() against the union of what the rows see: poison what it calls invisible, and nothing changes. */
Test(ref_check, visible_keys_are_those_that_matter) {
  for (int turn = 0; turn < 40; ++turn) {
    const bool softmax = turn % 2;
    fixture_spec spec = fixture_default(softmax ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.ragged = turn % 3 != 0;
    spec.kv_len[0] = 60;
    spec.new_len[0] = 1 + turn % 7;
    spec.new_len[1] = 0;
    fixture f;
    fixture_make(&spec, &f);
    if (turn % 4 < 2) fixture_param(&f, "window", 1 + turn % 13);
    if (softmax) {
      fixture_param(&f, "sparse_block", 8 * (turn % 3));
      fixture_param(&f, "sparse_stride", 1 + turn % 5);
      fixture_param(&f, "sparse_slide", turn % 3 - 1);
    }
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
    double nan[256], before[32 * 4 * 32];
    for (int d = 0; d < 256; ++d)
      nan[d] = NAN;
    const size_t bytes = (size_t)(f.N * spec.H * spec.D) * sizeof *before;
    cr_assert(bytes <= sizeof before);
    memcpy(before, f.out, bytes);
    int64_t seen = 0;
    for (int64_t i = 0; i < spec.batch; ++i) {
      const int64_t L = spec.kv_len[i], T = f.first_row[i + 1] - f.first_row[i];
      for (int64_t t = 0; t < L; ++t) {
        if (spec.op->visible(&f.call, i, L, L - T, t)) {
          ++seen;
          continue;
        }
        for (int64_t h = 0; h < spec.H_kv; ++h) {
          fixture_set_k(&f, i, t, h, nan);
          fixture_set_v(&f, i, t, h, nan);
        }
      }
      cr_assert(!spec.op->visible(&f.call, i, L, L - T, L) && !spec.op->visible(&f.call, i, L, L - T, -1));
    }
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
    cr_assert(memcmp(before, f.out, bytes) == 0, "turn %d", turn);
    if (softmax) { /* exactly the needed slots */
      int64_t needed = 0;
      for (int64_t s = 0; s < f.seen.slots; ++s) {
        int any = 0;
        for (int64_t h = 0; h < spec.H_kv; ++h)
          any |= f.seen.v_needed[s * spec.H_kv + h];
        needed += any;
      }
      cr_assert(needed == seen, "turn %d: %d needed, %d visible", turn, (int)needed, (int)seen);
    }
    fixture_free(&f);
  }
}

/* Decode, H = 4, H_kv = 2, D = 32, f32, lengths 13, 1, 24: q·k and p·v of 38 · 4 keys, each K and V row once. */
/* A long prompt is judged by some rows. Those of one at the end see more keys than the others on average. */
Test(ref_check, cost_does_not_depend_on_which_rows_were_seen) {
  for (int turn = 0; turn < 12; ++turn) {
    fixture_spec spec = fixture_default(turn % 2 ? assay_op_softmax_attention() : assay_op_gate_attention());
    spec.ragged = true;
    spec.kv_len[0] = 60;
    spec.new_len[0] = 7 + turn;
    fixture f;
    fixture_make(&spec, &f);
    if (turn % 3 == 1) fixture_param(&f, "window", 9);
    fixture_fill(&f);
    assay_error error = {0};
    cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
    assay_seen some = f.seen;
    const assay_cost whole = spec.op->cost(&f.call, &f.seen);
    cr_assert(whole.flops > 4.0 * (double)spec.D * (double)f.seen.live_keys, "%g", whole.flops);
    some.visible_keys = 2 * f.seen.visible_keys, some.live_keys = 2 * f.seen.live_keys;
    cr_assert_float_eq(spec.op->cost(&f.call, &some).flops, whole.flops, 1e-9 * whole.flops);
    fixture_free(&f);
  }
}

Test(ref_check, cost_counts_what_must_move) {
  fixture_spec spec = fixture_default(assay_op_softmax_attention());
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  assay_error error = {0};
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  const assay_cost cost = spec.op->cost(&f.call, &f.seen);
  const double keys = 13 + 1 + 24, small = 3 * 4 + 3 * 4 * 4; /* kv_len, block_table [3, 4] */
  cr_assert(cost.flops == keys * 4 * (4 * 32 + 5), "%g", cost.flops);
  cr_assert(cost.bytes == 2 * 3 * 4 * 32 * 4 + keys * 2 * 2 * 32 * 4 + small, "%g", cost.bytes);
  fixture_free(&f);

  spec.op = assay_op_gate_attention();
  spec.density = 0;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  cr_assert(fixture_reference(&f, NULL, false, &error) == ASSAY_OK, "%s", error.text);
  const assay_cost gate = spec.op->cost(&f.call, &f.seen);
  cr_assert(gate.flops == keys * 4 * (2 * 32 + 6), "%g", gate.flops);
  cr_assert(gate.bytes == 2 * 3 * 4 * 32 * 4 + keys * 2 * 32 * 4 + small + 3 * 4 + 4 * 4, "no V at all: %g",
            gate.bytes);
  fixture_free(&f);
}
