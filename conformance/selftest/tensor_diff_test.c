/* tensor_diff_test.c: .npy files come back as they were written, and distances are what they are by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/text/npy.h"
#include "conformance/report/tensor_diff.h"
#include "core/dtype.h"

static char folder[64], path[128];

static const char *in_folder(const char *name) {
  if (folder[0] == '\0') {
    (void)snprintf(folder, sizeof folder, "/tmp/assay-npy-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
  }
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void write_bytes(const char *name, const void *bytes, size_t size) {
  FILE *to = fopen(in_folder(name), "wb");
  cr_assert_not_null(to);
  cr_assert_eq(fwrite(bytes, 1, size, to), size);
  (void)fclose(to);
}

static const char *refusal(const char *name, const char *dtype, const char *shape) {
  static assay_error error;
  npy_tensor t;
  error.text[0] = '\0';
  cr_assert_eq(npy_read(in_folder(name), dtype, shape, &t, &error), ASSAY_ERR_INPUT, "%s", name);
  return error.text;
}

static void tidy(void) {
  char command[128];
  if (folder[0] == '\0') return;
  (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
  cr_expect_eq(system(command), 0);
}

Test(npy, round_trip, .fini = tidy) {
  static const int types[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16, ASSAY_E4M3, ASSAY_E5M2, ASSAY_I32, ASSAY_I64, NPY_F64};
  const int64_t shape[3] = {2, 3, 4};
  unsigned char bytes[24 * 8];
  for (size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = (unsigned char)(i * 37 + 5);
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    assay_error error = {""};
    npy_tensor t;
    char name[32];
    (void)snprintf(name, sizeof name, "t.%s.npy", npy_type_name(types[i]));
    cr_assert_eq(npy_write(in_folder(name), types[i], 3, shape, bytes, &error), ASSAY_OK, "%s", error.text);
    cr_assert_eq(npy_read(in_folder(name), NULL, NULL, &t, &error), ASSAY_OK, "%s", error.text);
    cr_expect_eq(t.type, types[i]);
    cr_expect_eq(t.rank, 3);
    cr_expect_eq(t.shape[0] * 100 + t.shape[1] * 10 + t.shape[2], 234);
    cr_expect_eq(memcmp(t.data, bytes, (size_t)(24 * npy_size(types[i]))), 0);
    npy_free(&t);
  }
}

Test(npy, version_2_and_raw, .fini = tidy) {
  static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  const float value[2] = {1.5f, -2.0f};
  unsigned char file[12 + sizeof header - 1 + sizeof value] = {0x93, 'N', 'U', 'M', 'P', 'Y', 2, 0};
  assay_error error = {""};
  npy_tensor t;
  file[8] = (unsigned char)(sizeof header - 1);
  memcpy(file + 12, header, sizeof header - 1);
  memcpy(file + 12 + sizeof header - 1, value, sizeof value);
  write_bytes("v2.npy", file, sizeof file);
  cr_assert_eq(npy_read(in_folder("v2.npy"), NULL, NULL, &t, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(npy_load(&t, 1), -2.0);
  npy_free(&t);
  write_bytes("raw.bin", value, sizeof value);
  cr_assert_eq(npy_read(in_folder("raw.bin"), "bf16", "2,2", &t, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(npy_load(&t, 1), 1.5);
  npy_free(&t);
  cr_expect_not_null(strstr(refusal("raw.bin", NULL, "4"), "--dtype"));
  cr_expect_not_null(strstr(refusal("raw.bin", "bf17", "4"), "allowed"));
  cr_expect_not_null(strstr(refusal("raw.bin", "bf16", "5"), "too short"));
  cr_expect_not_null(strstr(refusal("raw.bin", "bf16", "3"), "too long"));
  cr_expect_not_null(strstr(refusal("raw.bin", "f32", "99999999,99999999"), "too many"));
  cr_expect_not_null(strstr(refusal("none.npy", NULL, NULL), "cannot be read"));
  write_bytes("cut.npy", file, sizeof file - 1);
  cr_expect_not_null(strstr(refusal("cut.npy", NULL, NULL), "too short"));
  write_bytes("head.npy", file, 20);
  cr_expect_not_null(strstr(refusal("head.npy", NULL, NULL), "header"));
  file[6] = 4;
  write_bytes("v4.npy", file, sizeof file);
  cr_expect_not_null(strstr(refusal("v4.npy", NULL, NULL), "version: found 4.0, allowed 1.0, 2.0, 3.0"));
  write_bytes("none.npy", "GIF89a....", 10);
  cr_expect_not_null(strstr(refusal("none.npy", NULL, NULL), "not a .npy"));
}

static tensor_diff diff_of(int type_a, const void *a, int type_b, const void *b, int64_t count) {
  assay_error error = {""};
  tensor_diff d;
  npy_tensor x = {.type = type_a, .rank = 1, .shape = {count}, .count = count};
  npy_tensor y = {.type = type_b, .rank = 1, .shape = {count}, .count = count};
  x.data = (unsigned char *)(uintptr_t)a;
  y.data = (unsigned char *)(uintptr_t)b;
  cr_assert_eq(tensor_diff_make(&x, &y, &d, &error), ASSAY_OK);
  return d;
}

Test(tensor_diff, distances) {
  const float one = 1.0f, up = nextafterf(1.0f, 2.0f);
  const float a[6] = {0.0f, one, -1e-45f, NAN, NAN, 5.0f}, b[6] = {-0.0f, up, 1e-45f, NAN, 1.0f, 5.0f};
  const tensor_diff d = diff_of(ASSAY_F32, a, ASSAY_F32, b, 6);
  cr_expect_eq(d.different, 3);
  cr_expect_eq(d.one_nan, 1);
  cr_expect_eq(d.both_nan, 1);
  cr_expect_eq(d.first, 1);
  cr_expect_eq(d.worst, 4, "a NaN on one side is worse than any number");
  cr_expect_eq(d.bin[0], 3, "two zeros, two NaN, 5 and 5");
  cr_expect_eq(d.bin[2], 1, "one step");
  cr_expect_eq(d.bin[3], 1, "from the smallest subnormal to its negative: two steps");
  cr_expect_eq(d.bin[DIFF_BINS], 1);
}

Test(tensor_diff, other_types_are_counted_in_the_coarser) {
  const uint16_t bf16[3] = {assay_bf16_from_f64(1.0), assay_bf16_from_f64(3.0), assay_bf16_from_f64(INFINITY)};
  const double f64[3] = {1.0 + 0x1p-8, 3.0, 1e300};
  const tensor_diff d = diff_of(ASSAY_BF16, bf16, NPY_F64, f64, 3);
  cr_expect_eq(d.type, ASSAY_BF16);
  cr_expect_eq(d.bin[1], 1, "half an ulp of bf16");
  cr_expect_eq(d.bin[DIFF_BINS - 1], 1, "Inf and a number are as far apart as can be");
  cr_expect_eq(d.one_nan, 0);
  const int32_t i[2] = {7, INT32_MIN}, j[2] = {9, INT32_MIN};
  cr_expect_eq(diff_of(ASSAY_I32, i, ASSAY_I32, j, 2).worst_ulp, 2.0);
}

Test(tensor_diff, shapes) {
  assay_error error = {""};
  tensor_diff d;
  const npy_tensor x = {.type = ASSAY_F32, .rank = 2, .shape = {0, 4}},
                   y = {.type = ASSAY_F32, .rank = 1, .shape = {0}};
  cr_expect_eq(tensor_diff_make(&x, &y, &d, &error), ASSAY_ERR_INPUT);
  cr_expect_not_null(strstr(error.text, "0,4 and 0"), "%s", error.text);
  cr_expect_eq(tensor_diff_make(&x, &x, &d, &error), ASSAY_OK, "nothing differs in nothing");
  cr_expect_eq(d.different, 0);
}
