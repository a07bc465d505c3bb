/* golden_plain_test.c: what a user sees of failures of plain and appending operators, of two runs compared, and of two
 * tensors compared (golden_fixture.h). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/report/compare.h"
#include "conformance/report/tensor_diff.h"
#include "fake_plain.h"
#include "golden_fixture.h"

static void broken(const char *kind, const char *descriptor, plain_fault fault) {
  assay_case one = plain_case(descriptor);
  plain_broken = fault;
  golden_case(kind, one, 20);
  plain_broken = PLAIN_NONE;
}

#define MIX    "fake_mix suite=selftest section=check name=plain variant=loops device=simt "
#define CODE   "fake_code suite=selftest section=check name=plain variant=loops device=simt "
#define APPEND "fake_append suite=selftest section=check name=paged variant=loops device=simt "

Test(golden_plain, gain_lost) {
  broken("plain_gain_lost", MIX "dtype=bf16 N=33 C=64 M=7 y_out=true top=true row_pad=24 dead=inf seed=7",
         PLAIN_GAIN_LOST);
}
Test(golden_plain, last_dropped) {
  broken("plain_last_dropped", MIX "tier=exact dtype=f16 N=12 C=20 negate=true seed=7", PLAIN_LAST_DROPPED);
}
Test(golden_plain, wide_only) {
  broken("plain_wide_only", MIX "dtype=f32 N=9 C=256 seed=7", PLAIN_WIDE_ONLY);
}
Test(golden_plain, between_rows) {
  broken("plain_between_rows", MIX "dtype=f16 N=9 C=64 row_pad=96 seed=7", PLAIN_BETWEEN_ROWS);
}
Test(golden_plain, moved) {
  broken("plain_moved", MIX "dtype=f16 N=9 C=64 M=33 row_pad=5 seed=7", PLAIN_MOVES_NEIGHBOUR);
}
Test(golden_plain, unchanged) {
  broken("plain_unchanged", MIX "dtype=f16 N=9 C=64 y_out=true seed=7", PLAIN_CHANGES_X);
}
Test(golden_plain, special) {
  broken("plain_special", CODE "dtype=f16 values=special N=9 C=64 seed=7", PLAIN_NUMBER_FOR_NAN);
}
Test(golden_plain, other_row) {
  broken("plain_other_row", CODE "dtype=f16 values=normal N=9 C=64 row_pad=4 seed=7", PLAIN_ROW_BEFORE);
}
Test(golden_plain, appended_twice) {
  broken("append_second_slot", APPEND "mode=chunked dtype=f16 kv_dtype=same kv_len=40,9,70 new=3,9,20 seed=7",
         PLAIN_SECOND_SLOT);
}
Test(golden_plain, keys_as_values) {
  broken("append_keys_as_values", APPEND "mode=mixed dtype=f16 kv_dtype=same kv_len=40,9,0 new=3,9,1 seed=7",
         PLAIN_KEYS_AS_VALUES);
}

/* ---- two runs ---------------------------------------------------------------------------------------- */

static void read_run(const char *commit, double factor, const char *third, results *r) {
  char path[] = "/tmp/assay-golden-XXXXXX";
  assay_error error = {""};
  const int file = mkstemp(path);
  cr_assert_geq(file, 0);
  FILE *to = fdopen(file, "w");
  (void)fprintf(to, "{\"assay\":\"1\",\"device\":\"simt\",\"commit\":\"%s\",\"seed\":1,\"cases\":40,\"whole\":false}\n",
                commit);
  for (int i = 0; i < 40; ++i)
    (void)fprintf(
        to,
        "{\"case\":\"fake_mix variant=loops dtype=f32 N=%d seed=%d\",\"op\":\"fake_mix\",\"variant\":\"loops\","
        "\"device\":\"simt\",\"verdict\":\"%s\",\"check\":\"%s\",\"ratio_element\":%.6g,\"seed\":%d}\n",
        i + 1, i, i == 3 ? third : "PASS", i == 3 && strcmp(third, "PASS") != 0 ? "element" : "",
        (0.2 + 0.01 * i) * factor, i);
  (void)fprintf(to, "{\"end\":40,\"seconds\":1}\n");
  cr_assert_eq(fclose(to), 0);
  *r = (results){NULL};
  cr_assert_eq(results_read(path, r, &error), ASSAY_OK, "%s", error.text);
  (void)unlink(path);
}

static void print_comparison(void *context, FILE *to) {
  compare_print(context, to);
}

static void compared(const char *kind, double factor, const char *before, const char *after) {
  results a, b;
  comparison c;
  assay_error error = {""};
  plain_register();
  read_run("a", 1, before, &a);
  read_run("b", factor, after, &b);
  cr_assert_eq(compare_make(&a, &b, &c, &error), ASSAY_OK, "%s", error.text);
  golden_print(kind, print_comparison, &c);
  compare_free(&c);
  results_free(&a);
  results_free(&b);
}

Test(golden_plain, two_runs) {
  compared("compare_same", 1.0, "PASS", "PASS");
  compared("compare_worse", 1.3, "PASS", "FAIL");
  compared("compare_better", 0.5, "FAIL", "PASS");
}

/* ---- two tensors ------------------------------------------------------------------------------------- */

typedef struct tensors {
  const npy_tensor *a, *b;
  const tensor_diff *d;
} tensors;

static void print_diff(void *context, FILE *to) {
  const tensors *t = context;
  tensor_diff_print(t->d, t->a, t->b, 8, to);
}

static void raw(const void *bytes, size_t size, const char *dtype, npy_tensor *tensor) {
  char path[] = "/tmp/assay-tensor-XXXXXX";
  assay_error error = {""};
  const int file = mkstemp(path);
  cr_assert_geq(file, 0);
  cr_assert_eq(write(file, bytes, size), (ssize_t)size);
  (void)close(file);
  cr_assert_eq(npy_read(path, dtype, "3,4", tensor, &error), ASSAY_OK, "%s", error.text);
  (void)unlink(path);
}

Test(golden_plain, two_tensors) {
  float x[12] = {0}, y[12] = {0};
  npy_tensor a = {0}, b = {0};
  tensor_diff d;
  assay_error error = {""};
  for (int i = 0; i < 12; ++i)
    x[i] = y[i] = 0.5f + (float)i;
  y[1] = nextafterf(y[1], 9);
  y[5] += 0.25f;
  y[7] = NAN;
  y[11] = -y[11];
  raw(x, sizeof x, "f32", &a);
  raw(y, sizeof y, "f32", &b);
  cr_assert_eq(tensor_diff_make(&a, &b, &d, &error), ASSAY_OK, "%s", error.text);
  golden_print("diff_some", print_diff, &(tensors){&a, &b, &d});
  cr_assert_eq(tensor_diff_make(&a, &a, &d, &error), ASSAY_OK, "%s", error.text);
  golden_print("diff_none", print_diff, &(tensors){&a, &a, &d});
  npy_free(&a);
  npy_free(&b);
}
