/* results_power_test.c: planted errors over shards: what one run says of them, its shards say together, or nothing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/report/power_sum.h"
#include "conformance/report/results_group.h"
#include "conformance/report/results_power.h"
#include "fake.h"

enum { CASES = 60, SHARDS = 3, FIRST = 1, SECOND = 2 };

static assay_op op; /* with spoils: fake_gate has none */
static char folder[] = "/tmp/assay-shards-XXXXXX";
static char text[1 << 14], joined[1 << 14], gaps[1 << 14];

static const char *path_of(int32_t shard) {
  static char path[128];
  (void)snprintf(path, sizeof path, "%s/%d.jsonl", folder, (int)shard);
  return path;
}

static void begin(void) {
  assay_error error = {""};
  fake_register();
  op = fake_op;
  op.name = "fake_power";
  op.spoils = "first,second";
  op.spoil = (assay_status(*)(const assay_call *, const assay_contract *, const assay_rows *, int32_t, assay_expected *,
                              assay_error *))abort;
  cr_assert_eq(assay_registry_add_op(&op, &error), ASSAY_OK, "%s", error.text);
  cr_assert_not_null(mkdtemp(folder));
}

static void end(void) {
  for (int32_t s = 0; s <= SHARDS; ++s)
    (void)unlink(path_of(s));
  (void)rmdir(folder);
}

typedef struct plan {
  int effective, unseen; /* first error: cases that it changes; those unseen by their twins too */
  const char *power;
  uint64_t plan, seed;
  bool whole;
} plan;

static const plan usual = {.effective = 30, .power = "all", .plan = 0x77, .seed = 5, .whole = true};

/* Shard `shard` of a run, 0: all of it, into its file; its text is left in `text`. */
static int run(const plan *p, int32_t shard) {
  report *r = NULL;
  power_sum *sum = NULL;
  assay_error error = {""};
  FILE *to = fmemopen(text, sizeof text, "w");
  const report_options options = {.text = to,
                                  .jsonl = path_of(shard),
                                  .device = "simt",
                                  .seed = p->seed,
                                  .shard = shard,
                                  .shards = shard > 0 ? SHARDS : 0,
                                  .whole = p->whole,
                                  .power = p->power,
                                  .every_variant = true,
                                  .total = shard > 0 ? CASES / SHARDS : CASES,
                                  .plan = p->plan};
  cr_assert_eq(report_open(&options, &r, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(power_sum_open(&sum, &error), ASSAY_OK);
  for (int i = 0; i < CASES; ++i) {
    if (shard > 0 && i % SHARDS != shard - 1) continue;
    assay_case one = fake_case(TIER_EXACT);
    one.op = &op;
    one.seed = (uint64_t)(900 - i);
    (void)snprintf(one.suite, sizeof one.suite, "%s", op.name);
    case_result result = {.verdict = VERDICT_PASS, .spoils_seen = SECOND};
    if (i >= p->effective)
      result.spoils_void = FIRST;
    else if (i < p->effective - p->unseen)
      result.spoils_seen |= FIRST;
    else
      result.spoils_unseen = result.spoils_weak = FIRST;
    report_add(r, &one, &result);
    power_sum_note(sum, &one, &result);
    case_free(&one);
  }
  power_sum_report(sum, POWER_ALL, shard == 0, r);
  power_sum_close(sum);
  const int code = report_close(r, &error);
  (void)fclose(to);
  return code;
}

/* Only what is said of planted errors. */
static void keep_power(char *all) {
  char *to = all;
  for (char *line = all, *next; *line != '\0'; line = next) {
    next = strchr(line, '\n') + 1;
    const bool power = strncmp(line, "power ", 6) == 0 || strncmp(line, "  ", 2) == 0 || strncmp(line, "WEAK ", 5) == 0;
    if (power) memmove(to, line, (size_t)(next - line)), to += next - line;
  }
  *to = '\0';
}

/* The files of these shards together: number of gaps; what is said is in `joined`, notes of failures are counted. */
static int32_t join(const int32_t *shard, int count, int64_t *notes) {
  results all = {0};
  assay_error error = {""};
  report *out = NULL;
  for (int i = 0; i < count; ++i)
    cr_assert_eq(results_read(path_of(shard[i]), &all, &error), ASSAY_OK, "%s", error.text);
  const int32_t found = groups_gaps(&all, gaps, sizeof gaps);
  FILE *to = fmemopen(joined, sizeof joined, "w");
  const report_options options = {.text = to};
  cr_assert_eq(report_open(&options, &out, &error), ASSAY_OK);
  if (found == 0) cr_assert_eq(results_power_join(&all, out, &error), ASSAY_OK, "%s", error.text);
  report_print(out, false);
  (void)report_close(out, &error);
  (void)fclose(to);
  *notes = all.note_count;
  results_free(&all);
  return found;
}

static const int32_t whole[] = {0}, three[] = {3, 1, 2};

static void run_all(const plan *p) {
  for (int32_t s = 0; s <= SHARDS; ++s)
    (void)run(p, s);
}

/* Changes the first occurrence of a text in a shard's file; `line`: takes out every line that has it. */
static void edit(int32_t shard, const char *from, const char *by, bool line) {
  static char all[1 << 18];
  FILE *file = fopen(path_of(shard), "rb");
  cr_assert_not_null(file);
  all[fread(all, 1, sizeof all - 1, file)] = '\0';
  (void)fclose(file);
  file = fopen(path_of(shard), "wb");
  char *at = strstr(all, from);
  cr_assert_not_null(at, "%s is not there", from);
  if (!line) {
    (void)fprintf(file, "%.*s%s%s", (int)(at - all), all, by, at + strlen(from));
  } else {
    for (char *now = all, *next; *now != '\0'; now = next) {
      next = strchr(now, '\n') + 1;
      at = strstr(now, from);
      if (at == NULL || at >= next) (void)fwrite(now, 1, (size_t)(next - now), file);
    }
  }
  (void)fclose(file);
}

TestSuite(results_power, .init = begin, .fini = end);

Test(results_power, shards_say_what_one_run_says) {
  const plan plans[] = {usual,
                        {.effective = 20, .power = "all", .plan = 1, .whole = true},
                        {.effective = 19, .power = "all", .plan = 1, .whole = true},
                        {.effective = 0, .power = "all", .plan = 1, .whole = true},
                        {.effective = 40, .unseen = 1, .power = "all", .plan = 1, .whole = true},
                        {.effective = 40, .unseen = 7, .power = "all", .plan = 1, .whole = true},
                        {.effective = 12, .unseen = 7, .power = "all", .plan = 1, .whole = false}};
  for (size_t i = 0; i < sizeof plans / sizeof *plans; ++i) {
    const plan *p = &plans[i];
    int64_t notes = 0;
    const bool weak = p->whole && (p->effective < 20 || p->unseen > 0);
    for (int32_t s = 1; s <= SHARDS; ++s)
      cr_expect_eq(run(p, s), 0, "a shard alone judges nothing");
    const int code = run(p, 0);
    if (p->whole) cr_expect_eq(code, weak, "%s", text);
    const bool said_weak = strstr(text, "WEAK suite") != NULL, said_power = strstr(text, "\n  first ") != NULL;
    cr_expect_eq(strstr(text, "    WEAK: a kernel with this error would pass the suite") != NULL, said_weak, "%s",
                 text);
    cr_expect_eq(strstr(text, "    A spoil is an error planted in the expected result") != NULL, said_power, "%s",
                 text);
    if (!p->whole) continue;
    keep_power(text);
    cr_expect_eq(join(three, 3, &notes), 0, "%s", gaps);
    cr_expect_str_eq(joined, text);
    cr_expect_eq(notes, weak, "the verdict over all files");
    cr_expect_eq(join(whole, 1, &notes), 0, "%s", gaps);
    cr_expect_str_eq(joined, text);
    cr_expect_eq(notes, weak, "said by the run, and not once more");
  }
}

Test(results_power, a_part_of_a_suite_is_not_judged) {
  plan p = usual;
  int64_t notes = 0;
  p.effective = 3;
  p.whole = false;
  run_all(&p);
  cr_expect_eq(join(three, 3, &notes), 0, "%s", gaps);
  cr_expect_eq(notes, 0);
  cr_expect_null(strstr(joined, "WEAK"));
}

static void expect_gap(const int32_t *shard, int count, const char *says) {
  int64_t notes = 0;
  cr_expect_gt(join(shard, count, &notes), 0, "not found: %s", says);
  cr_expect_not_null(strstr(gaps, says), "says %s, not %s", gaps, says);
  cr_expect_str_eq(joined, "");
}

Test(results_power, shards_that_do_not_fit) {
  const int32_t two[] = {1, 3}, twice[] = {1, 2, 3, 2}, only_2[] = {2};
  run_all(&usual);
  expect_gap(two, 2, "campaign: shard 2/3 is missing (seed 5 on simt)");
  expect_gap(only_2, 1, "campaign: shard 1/3 is missing");
  int64_t notes = 0;
  cr_expect_eq(join(twice, 4, &notes), 0, "the same lines count once: %s", gaps);
  joined[0] = '\0';
  plan other = usual;
  other.plan = 0x78;
  (void)run(&other, 2);
  expect_gap(three, 3, "2.jsonl: shard of other suites or variants than ");
  other = usual;
  other.power = "sample";
  (void)run(&other, 2);
  expect_gap(three, 3, "2.jsonl: ran with --power sample, ");
  other = usual;
  other.seed = 6;
  (void)run(&other, 2);
  expect_gap(three, 3, "campaign: shard 2/3 is missing (seed 5 on simt)");
  (void)run(&usual, 2);
  edit(2, "\"commit\":\"", "\"commit\":\"x", false);
  expect_gap(three, 3, "of another commit");
}

Test(results_power, counts_that_were_taken_out) {
  run_all(&usual);
  edit(2, "{\"power\":\"fake_power\",\"spoil\":\"first\"", "", true);
  expect_gap(three, 3, "2.jsonl: planted error first of fake_power: by its cases seen in 10");
  (void)run(&usual, 2);
  edit(2, "\"spoils_seen\":[\"first\",\"second\"]", "\"spoils_seen\":[\"second\"]", false);
  expect_gap(three, 3, "its own sum is 10, 0, 0, 10");
  (void)run(&usual, 2);
  edit(2, "\"spoils_", "\"no_", true); /* the cases and, with them, their number */
  expect_gap(three, 3, "2.jsonl: lacks 20 cases: it has 0 of 20");
  (void)run(&usual, 2);
  for (int i = 0; i < CASES / SHARDS; ++i)
    edit(2, "\"spoils_seen\":", "\"was_seen\":", false);
  for (int i = 0; i < 10; ++i)
    edit(2, "\"spoils_void\":", "\"was_void\":", false);
  expect_gap(three, 3, "planted errors: its cases name 0 of 0 kinds, its sums are of 2 kinds, its end says 40");
  edit(2, "{\"power\":\"fake_power\"", "", true);
  expect_gap(three, 3, "planted errors: its cases name 0 of 0 kinds, its sums are of 0 kinds, its end says 40");
}
