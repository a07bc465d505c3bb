/* sums_explain_test.c: the search for a sum contract, over products that an H100 made and over changed ones. */
#include <criterion/criterion.h>
#include <string.h>

#include "conformance/explain/explain.h"
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
