/* mutants_test.c: the manifest of mutants, lists with commas, and the four judges by tolerance. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/kill/kill.h"
#include "core/registry_add.h"

const assay_op *assay_op_gate_attention(void);

static void setup(void) {
  assay_error error = {""};
  (void)assay_registry_add_op(assay_op_gate_attention(), &error);
}

static assay_status read_manifest(const char *text, mutant_list *list, assay_error *error) {
  char path[] = "/tmp/assay-mutants-XXXXXX";
  const int fd = mkstemp(path);
  cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  (void)close(fd);
  const assay_status status = mutants_read(path, list, error);
  (void)unlink(path);
  return status;
}

Test(mutants, manifest, .init = setup) {
  mutant_list list;
  assay_error error = {""};
  cr_assert_eq(read_manifest("a\tp.so\tgate_attention\tv,w\t-\tcheck\t-\t-\texact,guard\tSP1,L2\twhy\tsimt\t-\n"
                             "c\tp.so\tgate_attention\tv\t-\t-\t-\t-\tpass\t-\twhy\tsimt\t-",
                             &list, &error),
               ASSAY_OK, "%s", error.text);
  cr_assert_eq(list.count, 2);
  cr_expect_str_eq(list.items[0].section, "check");
  cr_expect_str_eq(list.items[0].suite, "");
  cr_expect(mutants_list_has(list.items[0].ids, "L2") && !mutants_list_has(list.items[0].ids, "SP"));
  cr_expect(!mutant_is_control(&list.items[0]) && mutant_is_control(&list.items[1]));
  mutants_free(&list);
  cr_expect_eq(read_manifest("a\tp.so\n", &list, &error), ASSAY_ERR_INPUT);
  error.text[0] = '\0'; /* a message once written stays */
  cr_expect_eq(read_manifest("a\tp.so\tnone\tv\t-\t-\t-\t-\texact\t-\tw\tsimt\t-\n", &list, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "operator 'none'"), "%s", error.text);
  cr_expect_eq(read_manifest("a\tp.so\tgate_attention\tv\t-\t-\t-\t-\t-\t-\tw\tsimt\t-\n", &list, &error),
               ASSAY_ERR_INPUT);
  cr_expect_eq(read_manifest("", &list, &error), ASSAY_ERR_INPUT);
  cr_expect_eq(mutants_read("/none/there", &list, &error), ASSAY_ERR_INPUT);
}

/* Which judges see one element off by `error`, or by NaN? */
static unsigned seen(double error, assay_dtype dtype, bool decode, double low_error) {
  double expected[64], got[64];
  bool caught[ALLCLOSE_COUNT] = {false};
  for (int i = 0; i < 64; ++i)
    expected[i] = got[i] = i % 2 == 0 ? 0.05 : -0.05;
  got[7] += error;
  allclose_compare(got, expected, 64, dtype, decode, low_error, caught);
  unsigned bits = 0;
  for (int j = 0; j < ALLCLOSE_COUNT; ++j)
    bits |= (unsigned)caught[j] << j;
  return bits;
}

Test(mutants, judges_by_tolerance) {
  const unsigned vllm = 1u << ALLCLOSE_VLLM, flashinfer = 1u << ALLCLOSE_FLASHINFER,
                 flash = 1u << ALLCLOSE_FLASH_ATTENTION, ggml = 1u << ALLCLOSE_GGML;
  cr_expect_eq(seen(0, ASSAY_BF16, true, 0), 0);
  cr_expect_eq(seen((double)NAN, ASSAY_BF16, true, 1), vllm | flashinfer | flash | ggml);
  /* atol 1e-3 and rtol 1e-5, both 1e-3, 3 * 4e-4 + 1e-5, and squares 5e-4 * 64 * 0.05^2 = (8.9e-3)^2 */
  cr_expect_eq(seen(0.00099, ASSAY_F16, true, 4e-4), 0);
  cr_expect_eq(seen(0.00103, ASSAY_F16, true, 4e-4), vllm);
  cr_expect_eq(seen(0.00110, ASSAY_F16, true, 4e-4), vllm | flashinfer);
  cr_expect_eq(seen(0.00130, ASSAY_F16, true, 4e-4), vllm | flashinfer | flash);
  cr_expect_eq(seen(0.00910, ASSAY_F16, true, 4e-4), vllm | flashinfer | flash | ggml);
  cr_expect_eq(seen(0.00880, ASSAY_BF16, true, 4e-2), vllm);
  cr_expect_eq(seen(0.01040, ASSAY_BF16, true, 4e-2), vllm | ggml);
  cr_expect_eq(seen(0.01040, ASSAY_BF16, false, 4e-2), ggml);
}
