/* judge_dir_test.c: results of another engine in a folder: right ones pass, wrong ones fail, and a manifest that lies
 * is refused before anything is judged. */
#include <criterion/criterion.h>

#include "conformance/judge_dir.h"
#include "conformance/npy.h"
#include "core/dtype.h"
#include "core/registry_add.h"
#include "files_fixture.h"

#define ASSAY_OP(stem) const assay_op *assay_op_##stem(void);
#include "assay/ops.def"
#undef ASSAY_OP

enum { N = 3, C = 40 };

static assay_error error;

static void start(void) {
#define ASSAY_OP(stem) cr_assert_eq(assay_registry_add_op(assay_op_##stem(), &error), ASSAY_OK, "%s", error.text);
#include "assay/ops.def"
#undef ASSAY_OP
}

TestSuite(judge_dir, .init = start, .fini = files_gone, .timeout = 60);

static void put_npy(const char *name, int type, int32_t rank, const int64_t *shape, const void *data) {
  cr_assert_eq(npy_write(files_path(name), type, rank, shape, data, &error), ASSAY_OK, "%s", error.text);
}

static void put_text(const char *name, const char *text) {
  (void)files_put(name, text, strlen(text));
}

static assay_status judged(truth_log *log, test_output *lines) {
  output_open(lines);
  *log = (truth_log){.to = lines->stream};
  error.text[0] = '\0';
  const assay_status status = judge_dir(files_folder(), log, &error);
  output_close(lines);
  return status;
}

static void expect(int64_t passed, int64_t wrong, const char *says) {
  truth_log log;
  test_output lines;
  cr_assert_eq(judged(&log, &lines), ASSAY_OK, "%s", error.text);
  cr_expect(log.passed == passed && log.failed == wrong, "%s", lines.text);
  if (says != NULL) cr_expect_not_null(strstr(lines.text, says), "wanted %s: %s", says, lines.text);
  output_free(&lines);
}

static void refused(const char *says) {
  truth_log log;
  test_output lines;
  cr_expect_eq(judged(&log, &lines), ASSAY_ERR_INPUT, "%s: taken: %s", says, lines.text);
  cr_expect_not_null(strstr(error.text, says), "wanted %s: %s", says, error.text);
  cr_expect_eq(lines.size, 0, "nothing is judged");
  output_free(&lines);
}

/* ---- one plain operator ------------------------------------------------------------------------------ */

static float x[N * C], g[C], y[N * C];

/* As a good f32 kernel computes it. */
static void make_norm(void) {
  const int64_t shape[2] = {N, C}, width = C;
  for (int i = 0; i < N * C; ++i)
    x[i] = (float)((i * 37 % 101) - 50) / 16;
  for (int i = 0; i < C; ++i)
    g[i] = 1 + (float)(i % 5) / 8;
  for (int n = 0; n < N; ++n) {
    float sum = 0;
    for (int i = 0; i < C; ++i)
      sum += x[n * C + i] * x[n * C + i];
    const float factor = 1 / sqrtf(sum / C + 1e-6f);
    for (int i = 0; i < C; ++i)
      y[n * C + i] = x[n * C + i] * factor * g[i];
  }
  put_npy("x.npy", ASSAY_F32, 2, shape, x);
  put_npy("g.npy", ASSAY_F32, 1, &width, g);
  put_npy("y.npy", ASSAY_F32, 2, shape, y);
}

#define NORM                                                                                                           \
  "{\"name\": \"layer 8\", \"operator\": \"rms_norm\", \"params\": {\"eps\": 1e-6}, "                                  \
  "\"inputs\": {\"x\": \"x.npy\", \"g\": \"g.npy\"}, \"outputs\": {\"y\": \"y.npy\"}}"

Test(judge_dir, right_and_wrong) {
  const int64_t shape[2] = {N, C};
  make_norm();
  put_text("manifest.json", NORM);
  expect(1, 0, "PASS        layer 8, y: 120 elements");
  put_text("manifest.json", "{\"cases\": [" NORM ", " NORM "]}");
  expect(2, 0, NULL);
  put_text("manifest.json", NORM);
  const float kept = y[77];
  y[77] *= 1 + 0x1p-18f;
  put_npy("y.npy", ASSAY_F32, 2, shape, y);
  expect(0, 1, "y[1, 37]: got");
  y[77] = (float)NAN;
  put_npy("y.npy", ASSAY_F32, 2, shape, y);
  expect(0, 1, "y[1, 37]: got nan");
  y[77] = kept;
}

/* Raw bytes, types by name. */
Test(judge_dir, raw_bytes) {
  make_norm();
  (void)files_put("x.bin", x, sizeof x);
  (void)files_put("y.bin", y, sizeof y);
  put_text("manifest.json",
           "{\"operator\": \"rms_norm\", \"inputs\": {\"x\": {\"file\": \"x.bin\", \"dtype\": \"f32\", \"shape\": "
           "[3, 40]}, \"g\": \"g.npy\"}, \"outputs\": {\"y\": {\"file\": \"y.bin\", \"dtype\": \"f32\", "
           "\"shape\": [3, 40]}}}");
  expect(1, 0, NULL);
  (void)files_put("y.bin", y, sizeof y - 1);
  refused("y: ");
  cr_expect_not_null(strstr(error.text, "too short, expected 480 bytes"), "%s", error.text);
}

Test(judge_dir, manifest_that_lies) {
  static const struct {
    const char *old, *fresh, *says;
  } bad[] = {
      {"\"rms_norm\"", "\"rms\"", "layer 8: operator: found 'rms', allowed: "},
      {"\"operator\"", "\"operater\"", "found key 'operater', allowed: name, case, operator"},
      {"\"operator\": \"rms_norm\", ", "", "operator: found none"},
      {"\"eps\"", "\"epsilon\"", "params: found 'epsilon', allowed for rms_norm: eps, round_inner"},
      {"1e-6", "-1", "eps: found -1"},
      {"1e-6", "\"small\"", "eps: found 'small', allowed: a number"},
      {"1e-6", "[1]", "params: eps: found no number"},
      {"{\"eps\": 1e-6}", "7", "params: found no object"},
      {"\"x\": \"x.npy\", ", "", "x: found"},
      {"\"x\": \"x.npy\"", "\"x\": \"g.npy\"", "x: found rank 1, allowed 2"},
      {"\"x\": \"x.npy\"", "\"x\": \"nowhere.npy\"", "inputs: x: "},
      {"\"x\": \"x.npy\"", "\"x\": \"../x.npy\"", "inputs: x: file: found '../x.npy'"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.bin\", \"dtype\": \"f32\"}", "inputs: x: shape: x.bin: found none"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.bin\", \"shape\": [3]}", "inputs: x: dtype: x.bin: found none"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"dtype\": \"f33\"}", "inputs: x: dtype: found 'f33'"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"dtype\": \"f16\"}", "inputs: x: "},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"shape\": [3, 41]}", "inputs: x: "},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"shape\": [3, -40]}", "inputs: x: shape: found '-40'"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"size\": 480}", "inputs: x: found key 'size'"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"first_block\": 1}", "inputs: x: x: first_block: found one"},
      {"\"x\": \"x.npy\"", "\"z\": \"x.npy\"", "inputs: z: tensors: found 'z', allowed for rms_norm: x, g, y"},
      {"\"x\": \"x.npy\"", "\"y\": \"x.npy\"", "inputs: found 'y', which is an output"},
      {"\"x\": \"x.npy\"", "\"x\": \"x.npy\", \"x\": \"x.npy\"", "inputs: found 'x' twice"},
      {"\"y\": \"y.npy\"", "\"g\": \"y.npy\"", "outputs: found 'g', which is an input"},
      {"\"y\": \"y.npy\"", "", "outputs: found none"},
      {"\"y\": \"y.npy\"", "\"y\": \"g.npy\"", "y: found rank 1, allowed 2"},
      {"\"inputs\"", "\"tier\": \"rough\", \"inputs\"", "tier: found 'rough', allowed exact, calibrated"},
      {"\"inputs\"", "\"contract\": {\"exp\": 2}, \"inputs\"", "contract: found 'exp', allowed: k, v, score"},
      {"\"inputs\"", "\"contract\": {\"p\": \"f12\"}, \"inputs\"", "contract: p: found 'f12'"},
      {"\"inputs\"", "\"contract\": {\"lanes\": -1}, \"inputs\"", "contract: lanes: found '-1'"},
      {"\"inputs\"", "\"contract\": {\"exp_ulp\": -1}, \"inputs\"", "contract: exp_ulp: found '-1'"},
      {"\"inputs\"", "\"contract\": 1, \"inputs\"", "contract: found no object"},
      {"{\"name\"", "{\"cases\": 4, \"name\"", "cases: found no list"},
      {"}}", "}", "JSON: column"},
  };
  make_norm();
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    test_bytes text = {malloc(sizeof NORM), sizeof NORM - 1};
    memcpy(text.at, NORM, sizeof NORM);
    cr_assert(files_replace(&text, bad[i].old, bad[i].fresh), "%s", bad[i].old);
    (void)files_put("manifest.json", text.at, text.size);
    refused(bad[i].says);
    files_free(&text);
  }
}

/* ---- a cache that a call writes ---------------------------------------------------------------------- */

enum { BLOCKS = 3, BLOCK = 8, H = 2, D = 8, ROW = H * D, POOL = BLOCKS * BLOCK * ROW };

static float k_new[2 * ROW], before[POOL], after[POOL];
static int64_t slots[2] = {5, 17};

static void make_cache(int64_t first_block) {
  static char text[1000];
  const int64_t fresh[3] = {2, H, D}, pool[4] = {BLOCKS, BLOCK, H, D}, two = 2;
  int64_t moved[2] = {slots[0], slots[1]};
  for (int i = 0; i < POOL; ++i)
    before[i] = (float)i;
  for (int i = 0; i < 2 * ROW; ++i)
    k_new[i] = -1 - (float)i;
  memcpy(after, before, sizeof after);
  for (int n = 0; n < 2; ++n) {
    if (slots[n] >= 0 && slots[n] < BLOCKS * BLOCK)
      memcpy(after + slots[n] * ROW, k_new + n * ROW, ROW * sizeof *after);
    if (slots[n] >= 0) moved[n] += first_block * BLOCK;
  }
  put_npy("k.npy", ASSAY_F32, 3, fresh, k_new);
  put_npy("slots.npy", ASSAY_I64, 1, &two, moved);
  put_npy("before.npy", ASSAY_F32, 4, pool, before);
  put_npy("after.npy", ASSAY_F32, 4, pool, after);
  (void)snprintf(
      text, sizeof text,
      "{\"operator\": \"kv_append\", \"params\": {\"layout\": \"nhd\"}, \"inputs\": {\"k\": \"k.npy\", \"v\": "
      "\"k.npy\", \"slots\": \"slots.npy\", \"k_cache\": {\"file\": \"before.npy\", \"first_block\": %lld}, "
      "\"v_cache\": {\"file\": \"before.npy\", \"first_block\": %lld}}, \"outputs\": {\"k_cache\": "
      "\"after.npy\", \"v_cache\": \"after.npy\"}}",
      (long long)first_block, (long long)first_block);
  put_text("manifest.json", text);
}

Test(judge_dir, caches) {
  const int64_t pool[4] = {BLOCKS, BLOCK, H, D}, fresh[3] = {2, H, D};
  for (int64_t first = 0; first < 100; first += 99) {
    make_cache(first);
    expect(2, 0, NULL);
    after[17 * ROW + 3] = 0; /* of a new row */
    put_npy("after.npy", ASSAY_F32, 4, pool, after);
    expect(0, 2, "expected exactly -20");
    make_cache(first);
    after[16 * ROW + 3] += 1; /* of another's */
    put_npy("after.npy", ASSAY_F32, 4, pool, after);
    expect(0, 2, "k_cache[2, 0, 0, 3]: got");
    make_cache(first);
    put_npy("after.npy", ASSAY_F32, 3, fresh, k_new); /* the new rows alone */
    expect(2, 0, NULL);
    k_new[ROW] += 1;
    put_npy("after.npy", ASSAY_F32, 3, fresh, k_new);
    expect(0, 2, "k_cache, new row 1, head 0, channel 0: got");
  }
}

Test(judge_dir, slots_that_lie) {
  slots[1] = 5;
  make_cache(0);
  refused("slot");
  slots[1] = BLOCKS * BLOCK;
  make_cache(0);
  refused("slot");
  slots[1] = -2;
  make_cache(0);
  refused("slot");
  slots[1] = 17;
  make_cache(0);
  /* Slots of blocks before the first that is there. */
  test_bytes text = files_read(files_path("manifest.json"));
  cr_assert(files_replace(&text, "\"first_block\": 0", "\"first_block\": 1"));
  cr_assert(files_replace(&text, "\"first_block\": 0", "\"first_block\": 1"));
  (void)files_put("manifest.json", text.at, text.size);
  refused("slots: found 5 at 0, allowed 8 and more: first_block is 1");
  files_free(&text);
  slots[1] = -1; /* writes nothing */
  make_cache(0);
  expect(2, 0, NULL);
}

/* ---- lengths and tables --------------------------------------------------------- */

static void make_attention(int32_t length, int32_t entry) {
  static float q[16], pool[2 * 8 * 8 * 2];
  const int64_t q_shape[3] = {1, 1, 16}, shape[4] = {2, 8, 1, 16}, table[2] = {1, 2}, one = 1;
  const int32_t blocks[2] = {0, entry};
  put_npy("q.npy", ASSAY_F32, 3, q_shape, q);
  put_npy("pool.npy", ASSAY_F32, 4, shape, pool);
  put_npy("table.npy", ASSAY_I32, 2, table, blocks);
  put_npy("length.npy", ASSAY_I32, 1, &one, &length);
  put_text(
      "manifest.json",
      "{\"operator\": \"softmax_attention\", \"inputs\": {\"q\": \"q.npy\", \"k_cache\": \"pool.npy\", \"v_cache\": "
      "\"pool.npy\", \"block_table\": \"table.npy\", \"kv_len\": \"length.npy\"}, \"outputs\": {\"out\": \"q.npy\"}}");
}

Test(judge_dir, lengths_and_tables_that_lie) {
  make_attention(12, 1);
  expect(1, 0, NULL);
  make_attention(-1, 1);
  refused("kv_len: found -1");
  make_attention(17, 1);
  refused("kv_len: found 17");
  make_attention(12, 2);
  refused("block_table: found 2 at [0, 1]");
  make_attention(12, -1);
  refused("block_table: found -1 at [0, 1]");
  make_attention(8, 99); /* past the last block: dead */
  expect(1, 0, NULL);
}
