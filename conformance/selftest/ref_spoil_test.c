/* ref_spoil_test.c: planted errors of the attention references do what their names say, and nothing else. */
#include <criterion/criterion.h>
#include <math.h>

#include "attention_fixture.h"

const assay_op *assay_op_gate_attention(void);
const assay_op *assay_op_softmax_attention(void);

static const assay_contract contract = {.qk_lanes = 4, .pv_lanes = 1, .exp_ulp = 2, .keys_per_split = 16};

static int32_t number_of(const assay_op *op, const char *name) {
  int32_t index = 0;
  for (const char *at = op->spoils;; ++index) {
    const size_t length = strcspn(at, ",");
    if (strlen(name) == length && strncmp(at, name, length) == 0) return index;
    cr_assert(at[length] == ',', "%s has no %s", op->name, name);
    at += length + 1;
  }
}

static void reference(fixture *f) {
  assay_error error = {0};
  cr_assert_eq(fixture_reference(f, &contract, false, &error), ASSAY_OK, "%s", error.text);
}

/* Returns the spoiled result, with its lse after it. */
static double *spoiled(fixture *f, const char *name) {
  static double value[1 << 16];
  assay_error error = {0};
  const int64_t out = f->N * f->spec.H * f->spec.D;
  assay_expected expected[2] = {{value, NULL}, {value + out, NULL}};
  const assay_rows rows = {f->N, NULL};
  cr_assert(out + f->N * f->spec.H <= 1 << 16);
  /* A planted error changes the reference's values where it acts. */
  assay_status status = f->spec.op->reference(&f->call, &contract, &rows, false, expected, NULL, &error);
  cr_assert_eq(status, ASSAY_OK, "%s: %s", name, error.text);
  status = f->spec.op->spoil(&f->call, &contract, &rows, number_of(f->spec.op, name), expected, &error);
  cr_assert_eq(status, ASSAY_OK, "%s: %s", name, error.text);
  return value;
}

static bool same(const double *a, const double *b, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!(fabs(a[i] - b[i]) <= 1e-12 * (1 + fabs(a[i])))) return false;
  return true;
}

static const assay_op *op_at(int i) {
  return i == 0 ? assay_op_gate_attention() : assay_op_softmax_attention();
}

static fixture_spec decode(const assay_op *op) {
  fixture_spec spec = fixture_default(op);
  spec.ragged = false;
  spec.batch = 2;
  spec.kv_len[0] = 37;
  spec.kv_len[1] = 21;
  spec.H = 4;
  spec.H_kv = 2;
  spec.values = ASSAY_NORMAL;
  spec.density = 0.5;
  return spec;
}

/* Without a window a decode row that does not see its last key is one of a request that is shorter by it. */
Test(spoil, last_key_dropped) {
  for (int i = 0; i < 2; ++i) {
    const fixture_spec spec = decode(op_at(i));
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    const double *value = spoiled(&f, "last_key_dropped");
    reference(&f);
    cr_expect(!same(value, f.out, f.N * spec.H * spec.D));
    int32_t *length = fixture_arg(&f, "kv_len")->data;
    --length[0], --length[1];
    reference(&f);
    cr_expect(same(value, f.out, f.N * spec.H * spec.D), "%s", spec.op->name);
    fixture_free(&f);
  }
}

/* The row before in the same prompt sees what the next one does not, when it sees one key too many. */
Test(spoil, causal_one_off_moves_keys_not_queries) {
  for (int i = 0; i < 2; ++i) {
    fixture_spec spec = decode(op_at(i));
    spec.ragged = true;
    spec.new_len[0] = 3;
    spec.new_len[1] = 1;
    spec.density = 1;
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    const int64_t row = spec.H * spec.D;
    reference(&f);
    const double *value = spoiled(&f, "causal_one_off");
    cr_expect(!same(value, f.out, row), "row 0 of 3");
    cr_expect(!same(value + row, f.out + row, row), "row 1 of 3");
    cr_expect(same(value + 2 * row, f.out + 2 * row, 2 * row), "there is no key behind a request's last");
    fixture_free(&f);
  }
}

Test(spoil, rows_and_heads_change_places) {
  for (int i = 0; i < 2; ++i) {
    const fixture_spec spec = decode(op_at(i));
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    const int64_t row = spec.H * spec.D;
    reference(&f);
    const double *value = spoiled(&f, "row_swapped");
    cr_expect(same(value, f.out + row, row) && same(value + row, f.out, row));
    /* a request whose heads all have the same q reads, in reverse, what it read */
    double query[256];
    for (int64_t d = 0; d < spec.D; ++d)
      query[d] = 0.1 * (double)(d % 5);
    for (int64_t h = 0; h < spec.H; ++h)
      fixture_set_q(&f, 0, h, query);
    float *gamma = i == 0 ? fixture_arg(&f, "gamma")->data : NULL;
    for (int64_t h = 0; gamma != NULL && h < spec.H; ++h)
      gamma[h] = 1;
    reference(&f);
    value = spoiled(&f, "wrong_kv_head");
    cr_expect(same(value, f.out + 2 * spec.D, 2 * spec.D) && same(value + 2 * spec.D, f.out, 2 * spec.D));
    fixture_free(&f);
  }
}

/* Rows within one split have nothing to lose to splits; the longer one has. */
Test(spoil, splits) {
  for (int i = 0; i < 2; ++i) {
    fixture_spec spec = decode(op_at(i));
    spec.kv_len[1] = 16;
    spec.density = 1;
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    const int64_t row = spec.H * spec.D;
    reference(&f);
    const char *const names[2][3] = {{"split_first_doubled", "split_skipped", "split_halo_lost"},
                                     {"split_first_doubled", "split_skipped", "lse_not_merged"}};
    for (int n = 0; n < 3; ++n) {
      const double *value = spoiled(&f, names[i][n]);
      cr_expect(!same(value, f.out, row), "%s", names[i][n]);
      cr_expect(same(value + row, f.out + row, row), "%s", names[i][n]);
    }
    fixture_free(&f);
  }
}

/* Keys that are 8 or more before the row are no longer those before its chunk of 8. */
Test(spoil, chunk_from_row) {
  const fixture_spec spec = decode(assay_op_softmax_attention());
  fixture f;
  fixture_make(&spec, &f);
  fixture_param(&f, "chunk", 8);
  fixture_fill(&f);
  const double *value = spoiled(&f, "chunk_from_row");
  reference(&f);
  cr_expect(!same(value, f.out, f.N * spec.H * spec.D));
  fixture_param(&f, "chunk", 0);
  fixture_param(&f, "window", 8);
  reference(&f);
  cr_expect(same(value, f.out, f.N * spec.H * spec.D));
  fixture_free(&f);
}

/* A lost sink is none, and a scaled one is another. Rows within one split count it once. With V of its only key, a row
 * that sees one key is that V. */
Test(spoil, sinks) {
  fixture_spec spec = decode(assay_op_softmax_attention());
  spec.sink = true;
  spec.kv_len[1] = 1;
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  const int64_t row = spec.H * spec.D;
  assay_tensor *sink = fixture_arg(&f, "sink");
  float *const own = sink->data, scaled[8];
  reference(&f);
  const double *value = spoiled(&f, "sink_per_split");
  cr_expect(!same(value, f.out, row));
  cr_expect(same(value + row, f.out + row, row));
  value = spoiled(&f, "sink_on_key_0");
  cr_expect(!same(value, f.out, row));
  for (int64_t h = 0; h < spec.H; ++h)
    cr_expect(same(value + row + h * spec.D, fixture_v(&f, 1, 0, h / 2), spec.D));
  value = spoiled(&f, "sink_lost");
  cr_expect(!same(value, f.out, row));
  sink->data = NULL;
  reference(&f);
  cr_expect(same(value, f.out, 2 * row));
  sink->data = own;
  value = spoiled(&f, "sink_scaled");
  cr_expect(!same(value, f.out, row));
  for (int64_t h = 0; h < spec.H; ++h)
    scaled[h] = (float)((double)own[h] * (double)(float)(1 / sqrt((double)spec.D)));
  sink->data = scaled;
  reference(&f);
  cr_expect(same(value, f.out, 2 * row));
  sink->data = own;
  fixture_free(&f);
}

/* The first row of all has no row before it. */
Test(spoil, filter_across_rows) {
  fixture_spec spec = decode(assay_op_gate_attention());
  spec.density = 1;
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  const int64_t row = spec.H * spec.D;
  reference(&f);
  const double *value = spoiled(&f, "filter_across_rows");
  cr_expect(same(value, f.out, row));
  cr_expect(!same(value + row, f.out + row, row));
  fixture_free(&f);
}

/* A row without a key hands no scores to the next. */
Test(spoil, filter_after_a_row_without_keys) {
  fixture_spec spec = decode(assay_op_gate_attention());
  spec.density = 1;
  spec.batch = 3;
  spec.kv_len[1] = 0;
  spec.kv_len[2] = 21;
  fixture f;
  fixture_make(&spec, &f);
  fixture_fill(&f);
  reference(&f);
  cr_expect(same(spoiled(&f, "filter_across_rows"), f.out, f.N * spec.H * spec.D));
  fixture_free(&f);
}

/* A spoil of something that a case does not have is void. */
Test(spoil, void_where_there_is_nothing) {
  const char *const names[2][11] = {
      {"k_scale_lost", "v_scale_lost", "head_scale_lost", "window_one_short", "causal_one_off", NULL},
      {"k_scale_lost", "v_scale_lost", "head_scale_lost", "window_one_short", "causal_one_off", "softcap_lost",
       "slopes_lost", "sink_lost", "sink_scaled", "sink_per_split", "sink_on_key_0"}};
  for (int i = 0; i < 2; ++i) {
    const fixture_spec spec = decode(op_at(i));
    fixture f;
    fixture_make(&spec, &f);
    fixture_fill(&f);
    reference(&f);
    for (int n = 0; n < 11 && names[i][n] != NULL; ++n)
      cr_expect(same(spoiled(&f, names[i][n]), f.out, f.N * spec.H * spec.D), "%s", names[i][n]);
    fixture_free(&f);
  }
}

/* The other way round: where a case has it, losing it changes the result, to that of the call without it. */
Test(spoil, parameters_are_lost) {
  const struct {
    int op;
    const char *spoil, *param;
    double value, lost;
  } row[] = {{0, "window_one_short", "window", 9, 8}, {1, "window_one_short", "window", 9, 8},
             {0, "scale_lost", "scale", 0.125, 1},    {1, "scale_lost", "scale", 0.125, 1},
             {0, "relu_lost", "relu_pre", 1, 0},      {1, "softcap_lost", "softcap", 1, 0}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    const fixture_spec spec = decode(op_at(row[i].op));
    fixture f;
    fixture_make(&spec, &f);
    fixture_param(&f, row[i].param, row[i].value);
    fixture_fill(&f);
    reference(&f);
    const double *value = spoiled(&f, row[i].spoil);
    cr_expect(!same(value, f.out, f.N * spec.H * spec.D), "%s", row[i].spoil);
    fixture_param(&f, row[i].param, row[i].lost);
    reference(&f);
    cr_expect(same(value, f.out, f.N * spec.H * spec.D), "%s", row[i].spoil);
    fixture_free(&f);
  }
}
