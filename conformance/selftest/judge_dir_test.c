/* judge_dir_test.c: results of another engine in a folder: right ones pass, wrong ones fail, and a manifest that lies
 * is refused before anything is judged. */
#include <criterion/criterion.h>

#include "conformance/truth/truth.h"
#include "conformance/text/npy.h"
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

/* Judges the folder with a JSONL and with the reference's results beside the files; returns the JSONL's text. */
static void judged_in_full(test_output *lines, test_output *figures) {
  truth_log log;
  output_open(lines);
  output_open(figures);
  log = (truth_log){.to = lines->stream, .jsonl = figures->stream, .expected = true};
  error.text[0] = '\0';
  cr_assert_eq(judge_dir(files_folder(), &log, &error), ASSAY_OK, "%s", error.text);
  output_close(lines);
  output_close(figures);
}

Test(judge_dir, figures_and_expected) {
  const int64_t shape[2] = {N, C};
  test_output lines, figures;
  npy_tensor values, sigma;
  make_norm();
  put_text("manifest.json", NORM);
  judged_in_full(&lines, &figures);
  cr_expect_not_null(strstr(figures.text, "\"output\":\"y\",\"elements\":120,\"wrong_elements\":0,\"first\":-1"), "%s",
                     figures.text);
  cr_expect_not_null(strstr(figures.text, "\"first_got\":null"), "%s", figures.text);
  cr_assert_eq(npy_read(files_path("y.expected.f64.npy"), NULL, NULL, &values, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(npy_read(files_path("y.sigma.f64.npy"), NULL, NULL, &sigma, &error), ASSAY_OK, "%s", error.text);
  cr_assert(values.type == NPY_F64 && values.rank == 2 && values.count == N * C && sigma.count == N * C);
  for (int i = 0; i < N * C; ++i)
    cr_expect(fabs(((const double *)values.data)[i] - (double)y[i]) < 1e-5 &&
                  (((const double *)sigma.data)[i] > 0) == (x[i] != 0),
              "%d", i);
  npy_free(&values);
  npy_free(&sigma);
  output_free(&lines);
  output_free(&figures);
  y[77] = NAN;
  put_npy("y.npy", ASSAY_F32, 2, shape, y);
  judged_in_full(&lines, &figures);
  cr_expect_not_null(strstr(figures.text, "\"wrong_elements\":1,\"first\":77,\"first_got\":null,\"first_expected\":"),
                     "%s", figures.text);
  cr_expect_not_null(strstr(figures.text, "\"ratio_element\":null"), "%s", figures.text);
  output_free(&lines);
  output_free(&figures);
}

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

#define PRODUCT                                                                                                        \
  "{\"operator\": \"gemm\", \"contract\": {\"lanes\": 1, \"start\": \"zero\"}, \"inputs\": {\"a\": \"x.npy\", "        \
  "\"b\": \"b.npy\", \"bias\": \"g.npy\", \"c\": \"y.npy\"}, \"outputs\": {\"c\": \"y.npy\"}}"

/* One sum starts from a bias that is far larger than its terms. The contract's start is read: it decides. */
Test(judge_dir, start_of_a_sum) {
  enum { K = 512 };
  static float a[K], b[K * C];
  const int64_t wide[2] = {1, K}, weights[2] = {C, K}, out[2] = {1, C}, width = C;
  for (int k = 0; k < K; ++k)
    a[k] = (float)((k * 37 % 101) - 50) / 37;
  for (int n = 0; n < C; ++n) {
    g[n] = 1000 + 71 * (float)n;
    y[n] = g[n];
    for (int k = 0; k < K; ++k) {
      b[n * K + k] = (float)(((k + 7 * n) * 41 % 103) - 50) / 41;
      y[n] += a[k] * b[n * K + k];
    }
  }
  put_npy("x.npy", ASSAY_F32, 2, wide, a);
  put_npy("b.npy", ASSAY_F32, 2, weights, b);
  put_npy("g.npy", ASSAY_F32, 1, &width, g);
  put_npy("y.npy", ASSAY_F32, 2, out, y);
  put_text("manifest.json", PRODUCT);
  expect(0, 1, NULL);
  test_bytes text = {malloc(sizeof PRODUCT), sizeof PRODUCT - 1};
  memcpy(text.at, PRODUCT, sizeof PRODUCT);
  cr_assert(files_replace(&text, "zero", "bias"));
  (void)files_put("manifest.json", text.at, text.size);
  files_free(&text);
  expect(1, 0, "PASS");
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
      {"\"x\": \"x.npy\", ", "", "manifest.json:1: layer 8: inputs: x: missing, rms_norm needs x, g"},
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
      {"\"x\": \"x.npy\"", "\"xx\": \"x.npy\"", "inputs: found 'xx', allowed for rms_norm: x, g"},
      {"\"x\": \"x.npy\"", "\"y\": \"x.npy\"", "inputs: found 'y', which is an output, allowed for rms_norm: x, g"},
      {"\"x\": \"x.npy\"", "\"x\": \"x.npy\", \"x\": \"x.npy\"", "found key \"x\" twice in one object"},
      /* Values of another kind than the key's are no values that are left out. */
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"dtype\": 4}", "x: dtype: found a number, allowed a text"},
      {"\"x\": \"x.npy\"", "\"x\": {\"file\": \"x.npy\", \"dtype\": \"i32\"}",
       "inputs: x: dtype: found i32, the header of "},
      {"\"inputs\"", "\"tier\": 5, \"inputs\"", "tier: found a number, allowed a text"},
      {"{\"name\"", "{\"cases\": [], \"cases\": [], \"name\"", "found key \"cases\" twice in one object"},
      {"{\"name\"", "{\"cases\": [{}], \"name\"", "found key 'name' beside cases, allowed in a case"},
      {"\"y\": \"y.npy\"", "\"g\": \"y.npy\"", "outputs: found 'g', which is an input"},
      {"\"y\": \"y.npy\"", "", "outputs: found none"},
      {"\"y\": \"y.npy\"", "\"y\": \"g.npy\"", "y: found rank 1, allowed 2"},
      {"\"inputs\"", "\"tier\": \"rough\", \"inputs\"", "tier: found 'rough', allowed exact, calibrated"},
      {"\"inputs\"", "\"contract\": {\"exp\": 2}, \"inputs\"", "contract: found 'exp', allowed: k, v, score"},
      {"\"inputs\"", "\"contract\": {\"p\": \"f12\"}, \"inputs\"", "contract: p: found 'f12'"},
      {"\"inputs\"", "\"contract\": {\"lanes\": -1}, \"inputs\"",
       "contract: lanes: found -1, allowed a whole number from 0 to 1048576"},
      {"\"inputs\"", "\"contract\": {\"exp_ulp\": -1}, \"inputs\"", "contract: exp_ulp: found -1, allowed a number"},
      {"\"inputs\"", "\"contract\": {\"exp_ulp\": 1e9}, \"inputs\"",
       "exp_ulp: found 1e+09, allowed a number from 0 to 65536"},
      {"\"inputs\"", "\"contract\": {\"exp_ulp\": \"two\"}, \"inputs\"", "contract: exp_ulp: found 'two'"},
      {"\"inputs\"", "\"contract\": {\"cut\": 65}, \"inputs\"", "contract: cut: found 65"},
      {"\"inputs\"", "\"contract\": {\"cut\": 1.5}, \"inputs\"", "contract: cut: found 1.5"},
      {"\"inputs\"", "\"contract\": {\"ftz\": 2}, \"inputs\"", "contract: ftz: found 2"},
      {"\"inputs\"", "\"contract\": {\"partial\": \"e4m3\"}, \"inputs\"", "contract: partial: found 'e4m3'"},
      {"\"inputs\"", "\"contract\": {\"start\": \"scale\"}, \"inputs\"",
       "contract: start: found 'scale', allowed zero, bias"},
      {"\"inputs\"", "\"contract\": {\"start\": 2}, \"inputs\"", "contract: start: found '2', allowed zero, bias"},
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

/* A folder without cases is no folder in which all is right. */
Test(judge_dir, no_cases) {
  put_text("manifest.json", "{\"cases\": []}");
  refused("cases: found none, allowed one or more");
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
    after[17 * ROW + 3] = 0; /* in a new row */
    put_npy("after.npy", ASSAY_F32, 4, pool, after);
    expect(0, 2, "expected exactly -20");
    make_cache(first);
    after[16 * ROW + 3] += 1; /* in another request's row */
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

/* The rows of each request, where no argument tells them: their sum is that of the outputs. */
Test(judge_dir, requests) {
  static const struct {
    const char *list, *says;
  } bad[] = {{"[1, 2]", "requests: found 3 rows in all, allowed 2"},
             {"[2.5]", "requests: found '2.5'"},
             {"[-1, 3]", "requests: found '-1'"},
             {"[]", "requests: found no list"},
             {"7", "requests: found no list"}};
  for (size_t i = 0; i <= sizeof bad / sizeof *bad; ++i) {
    char fresh[80];
    make_cache(0);
    test_bytes text = files_read(files_path("manifest.json"));
    (void)snprintf(fresh, sizeof fresh, "\"requests\": %s, \"inputs\"", i > 0 ? bad[i - 1].list : "[2, 0]");
    cr_assert(files_replace(&text, "\"inputs\"", fresh));
    (void)files_put("manifest.json", text.at, text.size);
    files_free(&text);
    if (i == 0)
      expect(2, 0, NULL);
    else
      refused(bad[i - 1].says);
  }
  make_norm();
  test_bytes plain = {malloc(sizeof NORM), sizeof NORM - 1};
  memcpy(plain.at, NORM, sizeof NORM);
  cr_assert(files_replace(&plain, "\"inputs\"", "\"requests\": [3], \"inputs\""));
  (void)files_put("manifest.json", plain.at, plain.size);
  refused("requests: found a list");
  files_free(&plain);
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
  /* Slots of blocks before the first one given. */
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

/* ---- files that others write --------------------------------------------------------------------------- */

/* One file of tensors with more in it than is needed; names as in the manifest, or those of the arguments. */
static void put_safetensors(const char *name, const char *x_name) {
  static unsigned char all[1 << 14];
  char header[1000];
  const int size = snprintf(header, sizeof header,
                            "{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
                            "\"%s\":{\"dtype\":\"F32\",\"shape\":[3,40],\"data_offsets\":[3,483]},"
                            "\"g\":{\"dtype\":\"F32\",\"shape\":[40],\"data_offsets\":[483,643]},"
                            "\"y\":{\"dtype\":\"F32\",\"shape\":[3,40],\"data_offsets\":[643,1123]}}",
                            x_name);
  memset(all, 0, 8);
  all[0] = (unsigned char)(size & 0xFF);
  all[1] = (unsigned char)(size >> 8);
  memcpy(all + 8, header, (size_t)size);
  memcpy(all + 8 + size + 3, x, sizeof x);
  memcpy(all + 8 + size + 483, g, sizeof g);
  memcpy(all + 8 + size + 643, y, sizeof y);
  (void)files_put(name, all, (size_t)size + 8 + 1123);
}

Test(judge_dir, safetensors) {
  static const char by_argument[] = "{\"operator\": \"rms_norm\",\n \"inputs\": {\"x\": \"t.safetensors\", "
                                    "\"g\": \"t.safetensors\"}, \"outputs\": {\"y\": \"t.safetensors\"}}";
  static const char by_name[] =
      "{\"operator\": \"rms_norm\",\n \"inputs\": {\"x\": {\"file\": \"t.safetensors\", \"tensor\": \"layer.0.in\"}, "
      "\"g\": \"t.safetensors\"}, \"outputs\": {\"y\": \"t.safetensors\"}}";
  make_norm();
  put_safetensors("t.safetensors", "x");
  put_text("manifest.json", by_argument);
  expect(1, 0, "120 elements");
  put_safetensors("t.safetensors", "layer.0.in");
  put_text("manifest.json", by_name);
  expect(1, 0, "120 elements");
  put_text("manifest.json", by_argument);
  refused("manifest.json:2: rms_norm: inputs: x: ");
  cr_expect_not_null(strstr(error.text, "t.safetensors: x: found no such tensor"), "%s", error.text);
  y[77] *= 2;
  put_safetensors("t.safetensors", "x");
  expect(0, 1, "y[1, 37]: got");
}

/* f64 is refused in the same words whether a type is named or not. */
Test(judge_dir, f64) {
  static double wide[N * C];
  static char bare[400], named[400];
  const int64_t shape[2] = {N, C};
  make_norm();
  put_npy("x64.npy", NPY_F64, 2, shape, wide);
  put_text("manifest.json", "{\"operator\": \"rms_norm\", \"inputs\": {\"x\": \"x64.npy\", \"g\": \"g.npy\"}, "
                            "\"outputs\": {\"y\": \"y.npy\"}}");
  refused("inputs: x: dtype: found f64 in ");
  (void)snprintf(bare, sizeof bare, "%.399s", error.text);
  put_text("manifest.json",
           "{\"operator\": \"rms_norm\", \"inputs\": {\"x\": {\"file\": \"x64.npy\", \"dtype\": \"f32\"}, "
           "\"g\": \"g.npy\"}, \"outputs\": {\"y\": \"y.npy\"}}");
  refused("inputs: x: dtype: found f64 in ");
  (void)snprintf(named, sizeof named, "%.399s", error.text);
  cr_expect_str_eq(bare, named);
}

/* Several folders: all are read before the first line, and a line names its folder. */
Test(judge_dir, folders) {
  char again[400];
  truth_log log;
  test_output lines;
  make_norm();
  put_text("manifest.json", NORM);
  (void)snprintf(again, sizeof again, "%s/.", files_folder());
  const char *const both[] = {files_folder(), again};
  output_open(&lines);
  log = (truth_log){.to = lines.stream};
  error.text[0] = '\0';
  cr_assert_eq(judge_dirs(both, 2, &log, &error), ASSAY_OK, "%s", error.text);
  output_close(&lines);
  cr_expect_eq(log.passed, 2);
  cr_expect_not_null(strstr(lines.text, "/.: layer 8, y: 120 elements"), "%s", lines.text);
  output_free(&lines);
  const char *const one_is_none[] = {files_folder(), "/nowhere"};
  output_open(&lines);
  log = (truth_log){.to = lines.stream};
  cr_expect_eq(judge_dirs(one_is_none, 2, &log, &error), ASSAY_ERR_INPUT);
  output_close(&lines);
  cr_expect_eq(lines.size, 0, "nothing is judged");
  cr_expect_not_null(strstr(error.text, "/nowhere/manifest.json: cannot be read"), "%s", error.text);
  output_free(&lines);
}

/* Experts 0 and 1 have the same b up to rounding. Each id may stand in both places, and not in both at once. */
Test(judge_dir, results_of_a_row_fit_together) {
  const int64_t experts = 3, wide[2] = {1, 3}, narrow[2] = {1, 2};
  const float logits[] = {0, logf(3), 0}, bias[] = {0.25f, 0, 0}, weights[] = {0.5f, 0.75f}, same[] = {0.5f, 0.5f};
  const int32_t ids[] = {0, 1}, twice[] = {0, 0};
  put_text("manifest.json", "{\"name\": \"route\", \"operator\": \"moe_router\", \"params\": {\"score\": \"sigmoid\", "
                            "\"renormalise\": 0}, \"inputs\": {\"x\": \"x.npy\", \"bias\": \"b.npy\"}, "
                            "\"outputs\": {\"ids\": \"i.npy\", \"weights\": \"w.npy\"}}");
  put_npy("x.npy", ASSAY_F32, 2, wide, logits);
  put_npy("b.npy", ASSAY_F32, 1, &experts, bias);
  put_npy("i.npy", ASSAY_I32, 2, narrow, ids);
  put_npy("w.npy", ASSAY_F32, 2, narrow, weights);
  expect(2, 0, NULL);
  put_npy("i.npy", ASSAY_I32, 2, narrow, twice);
  put_npy("w.npy", ASSAY_F32, 2, narrow, same);
  expect(2, 1, "row 0: each result may stand there, but not all together: expert 0 stands in places 0 and 1");
}
