/* sums_explain_test.c: the search for a sum contract, over products that an H100 made and over changed ones. */
#include <criterion/criterion.h>
#include <string.h>

#include "assay/sums.h"
#include "conformance/explain/explain.h"
#include "conformance/text/npy.h"
#include "files_fixture.h"

#define BITS ASSAY_SOURCE_DIR "/fixtures/bits/"

static assay_error error;

TestSuite(sums_explain, .fini = files_gone, .timeout = 100);

static explain_log explained(const char *folder, test_output *output) {
  output_open(output);
  explain_log log = {.to = output->stream};
  cr_assert_eq(explain_dir(folder, &log, &error), ASSAY_OK, "%s", error.text);
  output_close(output);
  return log;
}

Test(sums_explain, every_product_of_an_h100) {
  static const char *const lines[] = {
      "bf16_512x4096x4096: parts=1 promote=0 unit=wgmma_16;",
      "bf16_32x1024x3072: parts=2 promote=0 unit=wgmma_16;",
      "bf16_16x2048x8192: parts=4 promote=0 unit=wgmma_16 join=ascending;",
      "f16_64x4096x4096: parts=1 promote=0 unit=wgmma_16;",
      "e4m3_64x7168x2048_fast: parts=1 promote=0 unit=wgmma_8;",
      "e4m3_64x7168x2048_promoted: parts=1 promote=128 unit=wgmma_8;",
      "e5m2_e4m3_64x256x1024_fast: parts=1 promote=0 unit=wgmma_8;",
      "block_128x256x512: parts=1 promote=128 unit=wgmma_8 scale=fma_product;",
      "mma_sync_e5m2_e4m3_16x8x512: parts=1 promote=0 unit=mma_8;",
  };
  test_output output;
  const explain_log log = explained(ASSAY_SOURCE_DIR "/fixtures/bits", &output);
  cr_expect(log.explained == 16 && log.unexplained == 0, "%s", output.text);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i)
    cr_expect_not_null(strstr(output.text, lines[i]), "no '%s' in: %s", lines[i], output.text);
  output_free(&output);
}

/* Their contracts have a scale of each row for both factors, scales beside two parts, and parts that are not equal. */
Test(sums_explain, products_of_an_h200) {
  test_output output;
  const explain_log log = explained(ASSAY_SOURCE_DIR "/fixtures/bits_h200", &output);
  cr_expect(log.explained == 3 && log.unexplained == 0, "%s", output.text);
  cr_expect_str_eq(output.text,
                   "row_block_scaled_128x256x512: parts=1 promote=128 unit=wgmma_8 scale=product_then_fma; "
                   "all of 128 elements\n"
                   "block_scaled_16x4096x7168: parts=2 promote=128 unit=wgmma_8 scale=fma_product; all of "
                   "8 elements\n"
                   "cublas_bf16_16x2048x8192: parts=3 promote=0 unit=wgmma_16 tile=32 join=ascending; all "
                   "of 4 elements\n");
  output_free(&output);
}

/* Copies one product, as `manifest` names it. */
static void copy_product(const char *manifest) {
  (void)files_copy(BITS "bf16_32x1024x3072.a.npy", "a.npy");
  (void)files_copy(BITS "bf16_32x1024x3072.b.npy", "b.npy");
  (void)files_put("manifest.json", manifest, strlen(manifest));
}

#define PRODUCT                                                                                                        \
  "\"operator\": \"gemm\", \"inputs\": {\"a\": {\"file\": \"a.npy\", \"dtype\": \"bf16\"}, "                           \
  "\"b\": {\"file\": \"b.npy\", \"dtype\": \"bf16\"}}, \"outputs\": {\"c\": \"c.npy\"}"

Test(sums_explain, one_other_bit_is_not_explained) {
  copy_product("{\"name\": \"changed\", " PRODUCT "}");
  test_bytes c = files_read(BITS "bf16_32x1024x3072.c.npy");
  c.at[c.size - 16] ^= 1;
  (void)files_put("c.npy", c.at, c.size);
  test_output output;
  const explain_log log = explained(files_folder(), &output);
  cr_expect(log.explained == 0 && log.unexplained == 1, "%s", output.text);
  cr_expect_not_null(strstr(output.text, "changed: not explained (75.0 % by parts=2 promote=0 unit=wgmma_16)"), "%s",
                     output.text);
  output_free(&output);
  files_free(&c);
}

/* Writes a .npy of f32 whose values are all the same. */
static void put_same(const char *name, int rows, int columns, float value) {
  unsigned char file[128 + 64 * sizeof value] = "\x93NUMPY\x01";
  char *const header = (char *)file + 10;
  memset(header, ' ', 118);
  file[8] = 118;
  const int used =
      snprintf(header, 118, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", rows, columns);
  header[used] = ' ';
  header[117] = '\n';
  for (int i = 0; i < rows * columns; ++i)
    memcpy(file + 128 + (size_t)i * sizeof value, &value, sizeof value);
  (void)files_put(name, file, 128 + (size_t)(rows * columns) * sizeof value);
}

/* Whole numbers are summed exactly in any order. The line says that another contract gives their bits too. */
Test(sums_explain, bits_that_decide_nothing_are_said_to) {
  static const char manifest[] = "{\"name\": \"whole\", \"operator\": \"gemm\", \"inputs\": {\"a\": \"a.npy\", "
                                 "\"b\": \"b.npy\"}, \"outputs\": {\"c\": \"c.npy\"}}";
  put_same("a.npy", 2, 16, 1);
  put_same("b.npy", 2, 16, 3);
  put_same("c.npy", 2, 2, 48);
  (void)files_put("manifest.json", manifest, strlen(manifest));
  test_output output;
  const explain_log log = explained(files_folder(), &output);
  cr_expect(log.explained == 1 && log.unexplained == 0, "%s", output.text);
  cr_expect_not_null(strstr(output.text, "all of 4 elements; undecided, as also by parts=2 promote=0 unit="), "%s",
                     output.text);
  output_free(&output);
}

Test(sums_explain, what_is_not_covered_is_not_explained) {
  copy_product("{\"cases\": [{\"name\": \"x\", \"operator\": \"rms_norm\"}, {\"name\": \"y\", \"params\": {\"beta\": "
               "1}, " PRODUCT "}]}");
  (void)files_copy(BITS "bf16_32x1024x3072.c.npy", "c.npy");
  test_output output;
  const explain_log log = explained(files_folder(), &output);
  cr_expect(log.explained == 0 && log.unexplained == 2, "%s", output.text);
  cr_expect_not_null(strstr(output.text, "x: not explained (operator: not covered)"), "%s", output.text);
  cr_expect_not_null(strstr(output.text, "y: not explained (alpha and beta: not covered)"), "%s", output.text);
  output_free(&output);
}

Test(sums_explain, refusals) {
  static const struct {
    const char *manifest, *says;
  } cases[] = {
      {"{", "JSON"},
      {"{\"cases\": 3}", "cases: found no list"},
      {"{\"operator\": \"gemm\", \"inputs\": {\"a\": \"../a.npy\"}}", "file: found '../a.npy'"},
      {"{\"operator\": \"gemm\", \"inputs\": {}}", "file: found 'nothing'"},
      {"{" PRODUCT "}", "outputs: c: found [2, 3072], allowed [2, 2]"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    copy_product(cases[i].manifest);
    (void)files_copy(BITS "bf16_32x1024x3072.a.npy", "c.npy");
    test_output output;
    output_open(&output);
    explain_log log = {.to = output.stream};
    error.text[0] = '\0';
    cr_expect_eq(explain_dir(files_folder(), &log, &error), ASSAY_ERR_INPUT, "%s", cases[i].says);
    cr_expect_not_null(strstr(error.text, cases[i].says), "wanted %s: %s", cases[i].says, error.text);
    output_close(&output);
    cr_expect_eq(output.size, 0, "%s: something was printed", cases[i].says);
    output_free(&output);
  }
}

Test(sums_explain, a_part_of_a_larger_product) {
  static const struct {
    const char *member, *says;
  } cases[] = {
      {"\"rows\": 1", "rows: found 1, allowed a whole number from 2"},
      {"\"rows\": 2.5", "rows: found 2.5"},
      {"\"rows\": -3", "rows: found -3"},
      {"\"columns\": 1e30", "columns: found 1e+30, allowed a whole number from 2"},
  };
  char manifest[1000];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    (void)snprintf(manifest, sizeof manifest, "{%s, " PRODUCT "}", cases[i].member);
    copy_product(manifest);
    (void)files_copy(BITS "bf16_32x1024x3072.c.npy", "c.npy");
    explain_log log = {.to = stdout};
    error.text[0] = '\0';
    cr_expect_eq(explain_dir(files_folder(), &log, &error), ASSAY_ERR_INPUT, "%s", cases[i].says);
    cr_expect_not_null(strstr(error.text, cases[i].says), "wanted %s: %s", cases[i].says, error.text);
  }
  copy_product("{\"rows\": 32, \"columns\": 1024, " PRODUCT "}");
  test_output output;
  output_open(&output);
  explain_log log = {.to = output.stream};
  cr_assert_eq(explain_over(&log, "m=1..64", &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(explain_dir(files_folder(), &log, &error), ASSAY_OK, "%s", error.text);
  explain_map(&log);
  output_close(&output);
  cr_expect_not_null(strstr(output.text, "\nbf16 1024 x 3072, M 32 to 32: parts=2"), "%s", output.text);
  explain_free(&log);
  output_free(&output);
}

/* ---- the map over M ------------------------------------------------------------------------------------ */

enum { TERMS = 1024, CHANNELS = 3, ROWS = 6 };

/* Writes products of 1 to 6 rows: up to 3 rows with two parts, then with one. */
static void put_products(void) {
  static uint16_t a[ROWS * TERMS], b[CHANNELS * TERMS];
  static float c[ROWS * CHANNELS];
  char manifest[4000] = "{\"cases\": [";
  uint32_t x = 1;
  for (int i = 0; i < (ROWS + CHANNELS) * TERMS; ++i) {
    x = x * 1664525 + 1013904223;
    *(i < ROWS * TERMS ? &a[i] : &b[i - ROWS * TERMS]) = (uint16_t)(0x3C00 + (x >> 22) + (x >> 16 & 1) * 0x8000);
  }
  const assay_tensor weights = {
      .data = b, .dtype = ASSAY_BF16, .rank = 2, .shape = {CHANNELS, TERMS}, .stride = {TERMS, 1}};
  cr_assert_eq(npy_write(files_path("b.npy"), ASSAY_BF16, 2, weights.shape, b, &error), ASSAY_OK, "%s", error.text);
  for (int64_t m = 1; m <= ROWS; ++m) {
    char name[32];
    const int64_t of_a[] = {m, TERMS}, of_c[] = {m, CHANNELS};
    const assay_sums sums = {.unit = ASSAY_SUM_WGMMA_16, .parts = m <= 3 ? 2 : 1};
    const assay_product product = {
        .a = {.data = a, .dtype = ASSAY_BF16, .rank = 2, .shape = {m, TERMS}, .stride = {TERMS, 1}}, .b = weights};
    cr_assert_eq(assay_sums_predict(&sums, &product, c, &error), ASSAY_OK, "%s", error.text);
    (void)snprintf(name, sizeof name, "a%d.npy", (int)m);
    cr_assert_eq(npy_write(files_path(name), ASSAY_BF16, 2, of_a, a, &error), ASSAY_OK, "%s", error.text);
    (void)snprintf(name, sizeof name, "c%d.npy", (int)m);
    cr_assert_eq(npy_write(files_path(name), ASSAY_F32, 2, of_c, c, &error), ASSAY_OK, "%s", error.text);
    const size_t used = strlen(manifest);
    (void)snprintf(manifest + used, sizeof manifest - used,
                   "%s{\"operator\": \"gemm\", \"inputs\": {\"a\": {\"file\": \"a%d.npy\", \"dtype\": \"bf16\"}, "
                   "\"b\": {\"file\": \"b.npy\", \"dtype\": \"bf16\"}}, "
                   "\"outputs\": {\"c\": {\"file\": \"c%d.npy\"}}}",
                   m > 1 ? ", " : "", (int)m, (int)m);
  }
  strcat(manifest, "]}");
  (void)files_put("manifest.json", manifest, strlen(manifest));
}

Test(sums_explain, classes_over_rows) {
  test_output output;
  put_products();
  output_open(&output);
  explain_log log = {.to = output.stream};
  cr_assert_eq(explain_over(&log, "m=2..5", &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(explain_dir(files_folder(), &log, &error), ASSAY_OK, "%s", error.text);
  explain_map(&log);
  output_close(&output);
  cr_expect_eq(log.count, 2);
  cr_expect_not_null(strstr(output.text, "\nbf16 3 x 1024, M 2 to 3: parts=2 promote=0 unit=wgmma_16\n"
                                         "bf16 3 x 1024, M 4 to 5: parts=1 promote=0 unit=wgmma_16\n"),
                     "%s", output.text);
  explain_free(&log);
  output_free(&output);
}

Test(sums_explain, a_range_that_is_none) {
  static const char *const wrong[] = {"", "m", "m=", "m=1", "m=1..", "m=0..4", "m=5..4", "n=1..4", "m=1..4x"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    explain_log log = {.to = NULL};
    error.text[0] = '\0';
    cr_expect_eq(explain_over(&log, wrong[i], &error), ASSAY_ERR_INPUT, "%s", wrong[i]);
    cr_expect_not_null(strstr(error.text, "allowed m=LEAST..MOST"), "%s", error.text);
  }
}
