/* golden_fixture.c: see golden_fixture.h. */
#include "golden_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/expand.h"
#include "conformance/shrink/shrink.h"

enum { ROOM = 1 << 16 };

static void read_text(FILE *from, char *text) {
  const size_t n = fread(text, 1, ROOM - 1, from);
  text[n] = '\0';
}

/* The sign of a NaN is the compiler's. */
static void no_signs_of_nan(char *text) {
  for (char *at = strstr(text, "-nan"); at != NULL; at = strstr(at, "-nan"))
    memmove(at, at + 1, strlen(at));
}

/* A suite of its own in a folder of its own; expands to one case. */
static void read_back(const char *yaml, const char *kind, assay_case *one) {
  char folder[] = "/tmp/golden.XXXXXX", path[256];
  assay_error error = {""};
  case_list list = {NULL, 0};
  cr_assert_not_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/%s.yaml", folder, kind);
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file);
  (void)fputs(yaml, file);
  cr_assert_eq(fclose(file), 0);
  cr_assert_eq(expand_suite(path, 99, &list, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(list.count, 1);
  cr_assert_eq(case_copy(&list.cases[0], one, &error), ASSAY_OK);
  case_list_free(&list);
  (void)unlink(path);
  (void)rmdir(folder);
}

static void keep(void *context, int64_t index, const assay_case *one, const case_result *result) {
  (void)index, (void)one;
  *(case_result *)context = *result;
}

void golden_compare(const char *kind, const char *text) {
  static char expected[ROOM];
  char path[512];
  (void)snprintf(path, sizeof path, "%s/conformance/selftest/golden/%s.txt", ASSAY_SOURCE_DIR, kind);
  if (getenv("ASSAY_GOLDEN_WRITE") != NULL) {
    FILE *to = fopen(path, "w");
    cr_assert_not_null(to, "%s", path);
    (void)fputs(text, to);
    cr_assert_eq(fclose(to), 0);
    return;
  }
  FILE *from = fopen(path, "r");
  cr_assert_not_null(from, "%s: ASSAY_GOLDEN_WRITE=1 %s writes it", path, "golden_test");
  read_text(from, expected);
  (void)fclose(from);
  cr_assert_str_eq(text, expected, "%s is not what is printed now:\n%s", path, text);
  /* The comparison itself: one other byte, one less. */
  const size_t n = strlen(expected);
  cr_assert_gt(n, 100);
  expected[n / 2] ^= 1;
  cr_assert_str_neq(text, expected);
  expected[n / 2] ^= 1;
  expected[n - 1] = '\0';
  cr_assert_str_neq(text, expected);
}

void golden_case(const char *kind, assay_case one, double deadline_s) {
  static char text[ROOM], yaml[ROOM];
  static shrink_outcome outcome;
  static case_result again;
  assay_error error = {""};
  assay_case back;
  char name[64], file[80];
  const shrink_options options = {.execution = {.workers = 2, .deadline_s = deadline_s}};
  cr_assert_eq(shrink_case(&one, NULL, &options, &outcome, &error), ASSAY_OK, "%s", error.text);
  cr_assert(outcome.reproduced);
  cr_assert_not(outcome.exhausted);
  shrink_name(&outcome.smallest, outcome.result.check, name, sizeof name);
  (void)snprintf(file, sizeof file, "DIR/%s.yaml", name);
  FILE *to = tmpfile();
  cr_assert_not_null(to);
  shrink_yaml(to, &outcome, NULL);
  rewind(to);
  read_text(to, yaml);
  rewind(to);
  cr_assert_eq(ftruncate(fileno(to), 0), 0);
  shrink_print(to, &outcome, NULL, file);
  (void)fprintf(to, "---- %s\n%s", file, yaml);
  rewind(to);
  read_text(to, text);
  (void)fclose(to);
  no_signs_of_nan(text);
  golden_compare(kind, text);

  read_back(yaml, name, &back);
  (void)snprintf(back.variant, sizeof back.variant, "%s", outcome.smallest.variant);
  (void)snprintf(back.device, sizeof back.device, "%s", outcome.smallest.device);
  cr_assert_eq(back.seed, outcome.smallest.seed);
  cr_assert_eq(execute_cases(&back, 1, &options.execution, keep, &again, &error), ASSAY_OK, "%s", error.text);
  cr_assert(shrink_same_reason(&again, &outcome.result), "%s %s: %s", verdict_name(again.verdict), again.check,
            again.message);
  case_free(&back);
  case_free(&one);
  shrink_free(&outcome);
}

void golden_print(const char *kind, void (*print)(void *context, FILE *to), void *context) {
  static char text[ROOM];
  FILE *to = tmpfile();
  cr_assert_not_null(to);
  print(context, to);
  rewind(to);
  read_text(to, text);
  (void)fclose(to);
  no_signs_of_nan(text);
  golden_compare(kind, text);
}
