/* expand_test.c: suites to cases: what a bad suite is told, what draws may depend on, what sets must hold. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "conformance/case/keys.h"
#include "conformance/suite/trace.h"
#include "core/registry.h"
#include "suite_fixture.h"

#define SUITES ASSAY_SOURCE_DIR "/conformance/suites"

TestSuite(expand, .init = suite_fixture_ops);

static void expand_text(const char *text, uint64_t seed, case_list *list) {
  assay_error error = {""};
  cr_assert(expand_suite(suite_fixture_write("good.yaml", text, -1), seed, list, &error) == ASSAY_OK, "%s", error.text);
}

/* ---- bad input -------------------------------------------------------------------------------------------- */

typedef struct bad_suite {
  const char *text, *message; /* message: its beginning, after the path */
} bad_suite;

/* Lines 1 and 2 are the same in most: item keys stand from line 3 on, column 5. */
#define ITEM "op: gate_attention\ncheck:\n  - name: a\n    kv_len: 3\n"

static const bad_suite bad_suites[] = {
    {"op: gate_atention\ncheck: [{name: a, kv_len: 1}]\n",
     ":1:5: op: found 'gate_atention', allowed gate_attention, softmax_attention"},
    {"op: [gate_attention, 3]\n", ":1:22: op: found '3', allowed gate_attention, softmax_attention"},
    {"op: [gate_attention, gate_attention]\n", ":1:22: op: found gate_attention twice, allowed once"},
    {"op: []\n", ":1:5: op: found an empty list, allowed one operator or more"},
    {"check: []\n", ":1:1: op: missing"},
    {"op: gate_attention\n", ":1:1: found no case, allowed items in check, edge, refuse or bench"},
    {"op: gate_attention\nchecks: []\n",
     ":2:1: checks: found an unknown key (nearest: check), allowed are op, check, edge, refuse, bench"},
    {"op: gate_attention\ncheck: 3\n", ":2:8: check: found a value, allowed a list"},
    {"op: gate_attention\ncheck: [3]\n", ":2:9: check: found a value or a list, allowed a map with name, kv_len, ..."},
    {"op: gate_attention\ncheck: [{kv_len: 3}]\n", ":2:9: name: missing"},
    {"op: gate_attention\ncheck: [{name: a}]\n", ":2:9: kv_len: missing"},
    {ITEM "  - name: a\n    kv_len: 4\n", ":5:11: name: found 'a' twice, allowed once in a section"},
    {ITEM "    lenght: 3\n",
     ":5:5: lenght: found an unknown key (nearest: night), allowed are name, cases, devices, expect, seed, own_draws, "
     "thin, night, whole, tier,"},
    {ITEM "    widnow: 3\n", ":5:5: widnow: found an unknown key (nearest: window), allowed are name, cases"},
    {ITEM "    softcap: 3\n", ":5:5: softcap: found an unknown key, allowed are name, cases"},
    {ITEM "    whole: some\n", ":5:12: whole: found 'some', allowed true, false"},
    {ITEM "    thin: 0\n", ":5:11: thin: found '0', allowed 1 to 64"},
    {ITEM "    thin: '2'\n", ":5:11: thin: found the text \"2\", allowed 1 to 64"},
    {ITEM "    night: split_keys\n", ":5:12: night: found a value, allowed a list"},
    {ITEM "    night: []\n", ":5:12: night: found an empty list, allowed one variant or more"},
    {ITEM "    night: [split_keys, 'two words']\n", ":5:25: night: found 'two words', allowed the name of a variant"},
    {ITEM "    seed: 0xzz\n", ":5:11: seed: found '0xzz', allowed 0 to 18446744073709551615, or 0x"},
    {ITEM "    seed: [1, 2]\n", ":5:11: seed: found a list"},
    {ITEM "    device: simt\n", ":5:5: device: found an unknown key"},
    {ITEM "    variant: split_keys\n", ":5:5: variant: found an unknown key"},
    {ITEM "    D: 64\n    D: 128\n", ":6:5: D: found twice, allowed once"},
    {ITEM "    D: twelve\n", ":5:8: D: found 'twelve', allowed 8 to 256, multiples of 8"},
    {ITEM "    D: 12\n", ":5:8: D: found '12', allowed 8 to 256, multiples of 8"},
    {ITEM "    D: '64'\n", ":5:8: D: found the text \"64\", allowed 8 to 256, multiples of 8"},
    {ITEM "    D:\n", ":5:7: D: found '', allowed 8 to 256, multiples of 8"},
    {ITEM "    D: [64, 12]\n", ":5:13: D: found '12', allowed 8 to 256, multiples of 8"},
    {ITEM "    D: []\n", ":5:8: D: found a list of 0, allowed 1 to 1024 values"},
    {ITEM "    D: [[64]]\n", ":5:9: D: found a list or a map, allowed a value"},
    {ITEM "    D: {oneof: [64]}\n",
     ":5:9: oneof: found an unknown key (nearest: one_of), allowed are one_of, uniform, boundary, fixed"},
    {ITEM "    D: {one_of: 64}\n", ":5:17: one_of: found a value, allowed a list"},
    {ITEM "    D: {one_of: [64], uniform: [8, 64]}\n", ":5:8: D: found 2 forms of drawing, allowed one"},
    {ITEM "    D: {}\n", ":5:8: D: found 0 forms of drawing, allowed one"},
    {ITEM "    D: {uniform: [64]}\n", ":5:18: D: uniform: found 1 values, allowed [low, high] with low <= high"},
    {ITEM "    D: {uniform: [128, 64]}\n", ":5:18: D: uniform: found 2 values, allowed [low, high] with low <= high"},
    {ITEM "    D: {uniform: [60, 64]}\n", ":5:19: D: found '60', allowed 8 to 256, multiples of 8"},
    {ITEM "    D: {boundary: {max: 64}}\n", ":5:19: D: found boundary, allowed for lengths and integers only"},
    {ITEM "    dtype: {uniform: [f16, f32]}\n", ":5:22: dtype: found uniform, allowed a value, a list, one_of"},
    {ITEM "    dtype: fp16\n", ":5:12: dtype: found 'fp16', allowed f32, f16, bf16"},
    {ITEM "    relu_pre: yes\n", ":5:15: relu_pre: found 'yes', allowed true, false"},
    {ITEM "    cases: 0\n", ":5:12: cases: found '0', allowed 1 to 100000"},
    {ITEM "    cases: [3]\n", ":5:12: cases: found a list, allowed a value"},
    {ITEM "    cases: \"3\"\n", ":5:12: cases: found the text \"3\", allowed 1 to 100000"},
    {ITEM "    devices: [simt, gpu]\n", ":5:21: devices: found 'gpu', allowed simt, cuda"},
    {ITEM "    devices: []\n", ":5:14: devices: found none, allowed simt, cuda"},
    {ITEM "    batch: 200000\n", ":5:12: batch: found '200000', allowed 1 to 131072"},
    {ITEM "    G: 2\n    H: 4\n", ":5:8: G: found beside H, allowed one of them"},
    {ITEM "    G: 100\n    H_kv: 4\n", ":5:8: H: found '400', allowed 1 to 256"},
    {ITEM "    H: 6\n    H_kv: 4\n", ":3:5: H: found 6, allowed multiples of H_kv = 4"},
    {ITEM "    tier: exact\n", ":3:5: scale: found 0, allowed a power of two in tier exact"},
    {ITEM "    expect: D\n", ":3:5: expect: found outside section refuse"},
    {ITEM "    share: 50\n", ":5:12: share: found a value, allowed a map"},
    {ITEM "    share: {chance: 101}\n", ":5:21: chance: found '101', allowed 0 to 100"},
    {ITEM "    share: {list: [x]}\n", ":5:20: share: found 'x', allowed - or EARLIER:TOKENS"},
    {ITEM "    batch: 2\n    share: {list: [-]}\n", ":6:12: list: found 1 values, allowed 2, one for each request"},
    {"op: gate_attention\nrefuse:\n  - name: a\n    kv_len: 3\n    D: 12\n",
     ":3:5: expect: missing, needed in section refuse"},
    {"op: gate_attention\nrefuse:\n  - {name: a, kv_len: 3, expect: D, D: 0}\n",
     ":3:40: D: found '0', allowed 1 to 4096 (section refuse)"},
    {"op: gate_attention\nrefuse:\n  - {name: a, kv_len: 3, break: null, argument: [q, x]}\n",
     ":3:53: argument: found 'x', allowed usual, q, k_cache,"},
    {"op: gate_attention\nrefuse:\n  - {name: a, kv_len: 3, break: dtype, argument: [q, cu_q]}\n",
     ":3:5: argument: found cu_q, allowed one that the case gives"},
    {"op: gate_attention\nrefuse:\n  - {name: a, kv_len: 3, expect: q, argument: q}\n",
     ":3:5: argument: found q with break nothing, allowed with null,"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {trace: azure_2025}\n",
     ":4:21: trace: found 'azure_2025', allowed azure_conv, azure_code, mooncake"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {trace: mooncake, cap: 0}\n",
     ":4:36: cap: found '0', allowed 1 to 1048576"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {trace: mooncake, scale: big}\n",
     ":4:38: scale: found 'big', allowed 1e-06 to 16"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {fixed: 3, cap: 9}\n",
     ":4:13: kv_len: found 1 forms of drawing, allowed one (cap and scale belong to trace)"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {trace: mooncake}\n    share: {chance: 5}\n",
     ":5:12: share: found beside a trace, which says itself what is shared"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {boundary: {block: true}}\n", ":4:24: max: missing"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {boundary: {max: 9, split: 1}}\n",
     ":4:40: split: found '1', allowed 2 to 1048576"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {boundary: {max: 9, min: 10}}\n",
     ":4:24: min: found 10, allowed at most max = 9"},
    {"op: gate_attention\ncheck:\n  - name: a\n    kv_len: {list: [3, 40]}\n    mode: mixed\n    new: {list: [1, "
     "41]}\n",
     ":3:5: new: found 41 for request 1 of 40 tokens, allowed 0 to 40 in mode mixed"},
};

Test(expand, says_what_is_wrong_and_takes_nothing) {
  case_list list = {0};
  expand_text(ITEM, 1, &list);
  for (size_t i = 0; i < sizeof bad_suites / sizeof bad_suites[0]; ++i) {
    const bad_suite *bad = &bad_suites[i];
    assay_error error = {""};
    const char *path = suite_fixture_write("bad.yaml", bad->text, -1);
    cr_expect(expand_suite(path, 1, &list, &error) == ASSAY_ERR_INPUT, "%s", bad->text);
    cr_expect(strncmp(error.text, path, strlen(path)) == 0 &&
                  strncmp(error.text + strlen(path), bad->message, strlen(bad->message)) == 0,
              "\n  got      %s\n  expected %s", error.text, bad->message);
    cr_assert(list.count == 1);
  }
  case_list_free(&list);
  assay_error error = {""};
  cr_assert(expand_suite(suite_fixture_write("bad.yaml", ITEM "  - {name: b, kv_len: 3, H: 6}\n", -1), 1, &list,
                         &error) == ASSAY_ERR_INPUT);
  cr_assert(list.count == 0 && list.cases == NULL);
}

Test(expand, refuses_files_that_are_no_suites) {
  char folder[256], path[300], expected[400];
  case_list list = {0};
  assay_error error = {""};
  (void)snprintf(folder, sizeof folder, "%s", suite_fixture_folder());
  cr_assert(expand_suite(folder, 1, &list, &error) == ASSAY_ERR_INPUT);
  (void)snprintf(expected, sizeof expected, "%s: found no suite, allowed a folder with *.yaml", folder);
  cr_expect(strcmp(error.text, expected) == 0, "%s", error.text);
  error.text[0] = '\0';
  (void)snprintf(path, sizeof path, "%snone.yaml", folder);
  cr_assert(expand_suite(path, 1, &list, &error) == ASSAY_ERR_INPUT);
  (void)snprintf(expected, sizeof expected, "%s: cannot be read: No such file or directory", path);
  cr_expect(strcmp(error.text, expected) == 0, "%s", error.text);
  error.text[0] = '\0';
  const char *odd = suite_fixture_write("a b.yaml", ITEM, -1);
  cr_assert(expand_suite(odd, 1, &list, &error) == ASSAY_ERR_INPUT);
  (void)snprintf(expected, sizeof expected,
                 "%s: found the file name 'a b.yaml', allowed NAME.yaml with up to 47 letters, digits, _ and -", odd);
  cr_expect(strcmp(error.text, expected) == 0, "%s", error.text);
  cr_assert(list.count == 0 && list.cases == NULL);
}

Test(expand, says_which_fixture_is_missing) {
  case_list list = {0};
  assay_error error = {""};
  cr_assert(setenv("ASSAY_FIXTURES", "/nowhere", 1) == 0);
  const char *path =
      suite_fixture_write("t.yaml", "op: gate_attention\ncheck:\n  - name: a\n    kv_len: {trace: azure_conv}\n", -1);
  cr_assert(expand_suite(path, 1, &list, &error) == ASSAY_ERR_INPUT);
  cr_expect(strcmp(error.text + strlen(path),
                   ":4:13: trace: /nowhere/traces/azure2023/AzureLLMInferenceTrace_conv.csv: cannot be read: No such "
                   "file or directory") == 0,
            "%s", error.text);
}

/* ---- draws ------------------------------------------------------------------------------------------------ */

Test(expand, product_and_draws) {
  case_list list = {0};
  expand_text(
      "op: [gate_attention, softmax_attention]\ncheck:\n  - name: a\n    cases: 3\n    dtype: [f32, f16]\n"
      "    layout: [nhd, x]\n    H_kv: {one_of: [1, 2]}\n    G: {one_of: [1, 3]}\n    batch: {uniform: [2, 5]}\n"
      "    kv_len: {uniform: [4, 9]}\n    devices: cuda\n",
      5, &list);
  cr_assert(list.count == 2 * 2 * 2 * 3);
  for (int64_t i = 0; i < list.count; ++i) {
    const assay_case *c = &list.cases[i];
    cr_assert(c->devices == CASE_ON_CUDA && c->batch >= 2 && c->batch <= 5);
    cr_assert(strcmp(c->op->name, i < 12 ? "gate_attention" : "softmax_attention") == 0);
    cr_assert(c->dtype == (i / 6 % 2 == 0 ? ASSAY_F32 : ASSAY_F16));
    cr_assert(strcmp(case_axis(c, "layout"), i / 3 % 2 == 0 ? "nhd" : "x") == 0);
    for (int32_t r = 0; r < c->batch; ++r)
      cr_assert(c->kv_len[r] >= 4 && c->kv_len[r] <= 9 && c->new_len[r] == 1);
  }
  case_list_free(&list);
}

/* Same seed: same cases. Items after a case, and other files, change nothing of it; another seed does. */
Test(expand, draws_depend_on_seed_and_index_only) {
  static const char item[] =
      "op: gate_attention\ncheck:\n  - name: a\n    cases: 40\n    mode: [decode, mixed]\n    batch: "
      "{uniform: [1, 4]}\n    kv_len: {boundary: {block: true, max: 80}}\n";
  char longer[1000];
  case_list first = {0}, second = {0}, other = {0};
  (void)snprintf(longer, sizeof longer, "%s  - name: b\n    cases: 9\n    kv_len: 7\n", item);
  expand_text(item, 1, &first);
  expand_text(longer, 1, &second);
  expand_text(item, 2, &other);
  cr_assert(first.count == 80 && second.count == 89);
  int32_t same = 0;
  for (int64_t i = 0; i < first.count; ++i) {
    cr_assert(suite_fixture_same(&first.cases[i], &second.cases[i]));
    same += suite_fixture_same(&first.cases[i], &other.cases[i]);
    for (int64_t k = 0; k < i; ++k)
      cr_assert(first.cases[i].seed != first.cases[k].seed);
  }
  cr_assert(same == 0);
  case_list_free(&first);
  case_list_free(&second);
  case_list_free(&other);
}

/* A thinned run has one of each `thin` draws in a row, of every value of an axis, as the whole run has it. It leaves
 * the draws of other items as they are. */
Test(expand, a_thinned_list_is_a_part_of_the_whole) {
  case_list whole = {0}, thinned = {0};
  static const char item[] =
      "op: gate_attention\ncheck:\n  - name: a\n    cases: 2\n    thin: 3\n    mode: [decode, mixed, prefill]\n"
      "    dtype: [f32, f16, bf16]\n    kv_len: {uniform: [1, 80]}\n  - {name: b, kv_len: {uniform: [1, 80]}, cases: "
      "5}\n";
  expand_text(item, 1, &whole);
  expand_text(item, 1, &thinned);
  case_list_thin(&thinned);
  cr_assert(whole.count == 23 && thinned.count == 11);
  int64_t at = 0;
  int32_t modes[4] = {0}, dtypes[ASSAY_DTYPE_COUNT] = {0}, places[3] = {0};
  for (int64_t i = 0; i < whole.count; ++i) {
    if (whole.cases[i].thinned) continue;
    cr_assert(suite_fixture_same(&whole.cases[i], &thinned.cases[at]));
    cr_assert(i >= 18 || i / 3 == at, "one of each three");
    if (i < 18) ++modes[i / 6], ++dtypes[whole.cases[i].dtype], ++places[i % 3];
    ++at;
  }
  cr_assert_eq(at, thinned.count);
  cr_assert(modes[0] == 2 && modes[1] == 2 && modes[2] == 2);
  cr_assert(dtypes[ASSAY_F32] > 0 && dtypes[ASSAY_F16] > 0 && dtypes[ASSAY_BF16] > 0);
  cr_assert(places[0] == 2 && places[1] == 2 && places[2] == 2);
  case_list_free(&whole);
  case_list_free(&thinned);
}

/* A thinned run leaves the variants of `night` to the night, and a mutant's copy of one too. A name that is a part of
 * such a name stays. Draws are as they are without the key. */
Test(expand, variants_are_left_to_the_night) {
  static const char plain[] = "op: gate_attention\ncheck:\n  - {name: a, kv_len: {uniform: [1, 80]}, cases: 3}\n"
                              "  - {name: b, kv_len: 3}\n";
  static const char left[] = "op: gate_attention\ncheck:\n  - {name: a, night: [split_keys, tile], kv_len: {uniform: "
                             "[1, 80]}, cases: 3}\n  - {name: b, kv_len: 3}\n";
  case_list one = {0}, other = {0};
  expand_text(plain, 1, &one);
  expand_text(left, 1, &other);
  cr_assert(one.count == 4 && other.count == 4);
  for (int64_t i = 0; i < 4; ++i) {
    cr_assert(suite_fixture_same(&one.cases[i], &other.cases[i]));
    cr_assert(!other.cases[i].thinned && !case_leaves(&one.cases[i], "split_keys"));
    cr_assert(case_leaves(&other.cases[i], "split_keys") == (i < 3));
    cr_assert(case_leaves(&other.cases[i], "tile@some_mutant") == (i < 3));
    cr_assert(!case_leaves(&other.cases[i], "split") && !case_leaves(&other.cases[i], "tiles"));
    cr_assert(!case_leaves(&other.cases[i], "query_tile") && !case_leaves(&other.cases[i], "split_keys_2@tile"));
  }
  assay_error error = {""};
  cr_assert_eq(case_list_check_night(&one, &error), ASSAY_OK);
  cr_assert_eq(case_list_check_night(&other, &error), ASSAY_ERR_INPUT);
  cr_assert(strstr(error.text, "/check/a: night: found 'split_keys', allowed the variants of gate_attention") != NULL ||
                strstr(error.text, "/check/a: night: found 'tile', allowed the variants of gate_attention") != NULL,
            "%s", error.text);
  case_list_free(&one);
  case_list_free(&other);
}

/* A seed that the item gives is the case's, whatever the run's. */
Test(expand, a_given_seed_is_kept) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    case_list list = {NULL, 0};
    expand_text("op: gate_attention\ncheck:\n  - name: a\n    kv_len: {list: [3, 16]}\n    seed: 0xabc\n", seed, &list);
    cr_assert_eq(list.count, 1);
    cr_assert_eq(list.cases[0].seed, 0xabc);
    cr_assert_eq(list.cases[0].kv_len[1], 16);
    case_list_free(&list);
  }
}

/* The first draws for seed 1, so that a change of the generator or of the order of draws does not pass unseen. */
Test(expand, draws_are_the_same_everywhere) {
  static char text[CASE_MAX_LINE];
  assay_error error = {""};
  case_list list = {0};
  expand_text("op: gate_attention\ncheck:\n  - name: a\n    mode: mixed\n    batch: {uniform: [3, 5]}\n"
              "    block_size: 8\n    kv_len: {boundary: {block: true, min: 20, max: 80}}\n    share: {chance: 90}\n",
              1, &list);
  cr_assert(case_print(&list.cases[0], text, sizeof text, &error) == ASSAY_OK);
  cr_expect(strcmp(text,
                   "gate_attention suite=good section=check name=a tier=calibrated mode=mixed dtype=bf16 kv_dtype=same"
                   " values=normal H=8 H_kv=4 D=128 block_size=8 F=3 layout=nhd kv_len=20,20,48 new=1,20,34 "
                   "share=-,0:16,0:8 seed=0xe50a0ebce3e80670") == 0,
            "%s", text);
  case_list_free(&list);
}

Test(expand, boundary_sets_hold_the_boundaries) {
  static const int32_t wanted[] = {0, 1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  bool seen[601] = {false};
  case_list list = {0};
  expand_text("op: gate_attention\ncheck:\n  - name: a\n    cases: 3000\n    block_size: 16\n"
              "    kv_len: {boundary: {block: true, split: 256, tile: 128, max: 600}}\n",
              1, &list);
  for (int64_t i = 0; i < list.count; ++i) {
    cr_assert(list.cases[i].kv_len[0] >= 0 && list.cases[i].kv_len[0] <= 600);
    seen[list.cases[i].kv_len[0]] = true;
  }
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i)
    cr_expect(seen[wanted[i]], "%d", wanted[i]);
  case_list_free(&list);
}

Test(expand, modes_keep_their_promise) {
  case_list list = {0};
  bool empty = false, pad = false, chunk = false, whole = false, one_row = false;
  expand_text("op: gate_attention\ncheck:\n  - name: a\n    cases: 200\n    mode: [decode, prefill, chunked, mixed]\n"
              "    batch: {uniform: [1, 4]}\n    kv_len: {boundary: {block: true, max: 20}}\n",
              1, &list);
  for (int64_t i = 0; i < list.count; ++i) {
    const assay_case *c = &list.cases[i];
    assay_error error = {""};
    cr_assert(case_check(c, &error) == ASSAY_OK, "%s", error.text);
    for (int32_t r = 0; r < c->batch && c->mode == MODE_MIXED; ++r) {
      const int32_t L = c->kv_len[r], T = c->new_len[r];
      empty = empty || T == 0;
      pad = pad || (L == 0 && T == 1);
      one_row = one_row || (T == 1 && L > 1);
      whole = whole || (T == L && L > 1);
      chunk = chunk || (T > 1 && T < L);
    }
  }
  cr_assert(empty && pad && chunk && whole && one_row);
  case_list_free(&list);
}

/* ---- traces ----------------------------------------------------------------------------------------------- */

/* Which requests were drawn is found again by their lengths; what they share is then counted token by token. */
static int32_t find_start(const trace *t, const assay_case *c) {
  for (int32_t start = 0; start + c->batch <= t->count; ++start) {
    bool fits = true;
    for (int32_t i = 0; i < c->batch && fits; ++i)
      fits = t->request[start + i].prompt == c->kv_len[i];
    if (fits) return start;
  }
  return -1;
}

Test(expand, mooncake_shares_what_the_ids_say) {
  case_list list = {0};
  trace t;
  assay_error error = {""};
  int64_t shared = 0;
  expand_text(
      "op: gate_attention\ncheck:\n  - name: a\n    cases: 60\n    mode: prefill\n    block_size: 64\n    batch: 8\n"
      "    kv_len: {trace: mooncake}\n",
      3, &list);
  cr_assert(trace_load("mooncake", ASSAY_SOURCE_DIR "/fixtures", &t, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t n = 0; n < list.count; ++n) {
    const assay_case *c = &list.cases[n];
    const int32_t start = find_start(&t, c);
    cr_assert(start >= 0);
    for (int32_t i = 0; i < c->batch; ++i) {
      int32_t with = -1, most = 0;
      for (int32_t j = 0; j < i; ++j) {
        const trace_request *x = &t.request[start + j], *y = &t.request[start + i];
        int32_t tokens = 0;
        while (tokens < x->prompt && tokens < y->prompt &&
               t.hash[x->first_hash + tokens / 512] == t.hash[y->first_hash + tokens / 512])
          ++tokens;
        if (tokens / 64 * 64 <= most) continue;
        most = tokens / 64 * 64;
        with = j;
      }
      cr_assert(c->share_with[i] == with && c->share_tokens[i] == most, "request %d: %d:%d, ids say %d:%d", i,
                c->share_with[i], c->share_tokens[i], with, most);
      shared += most;
    }
  }
  cr_assert(shared > 0);
  trace_free(&t);
  case_list_free(&list);
}

Test(expand, traces_are_capped_and_scaled) {
  case_list list = {0};
  expand_text("op: gate_attention\ncheck:\n  - name: a\n    cases: 50\n    mode: [decode, prefill, chunked, mixed]\n   "
              " batch: 4\n"
              "    kv_len: {trace: azure_conv, cap: 50, scale: 0.02}\n",
              3, &list);
  int32_t capped = 0, below = 0;
  for (int64_t n = 0; n < list.count; ++n)
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t L = list.cases[n].kv_len[i];
      cr_assert(L >= 1 && L <= 50);
      capped += L == 50;
      below += L < 50;
    }
  cr_assert(capped > 0 && below > 0);
  case_list_free(&list);
}

/* Arguments are an axis; where nothing else is said, the one that is broken must be named. */
Test(expand, broken_arguments_are_named) {
  static const char *const expect[] = {"q", "v_cache", "q", "v_cache", "out"};
  static const case_break broken[] = {BREAK_NULL, BREAK_NULL, BREAK_OVERFLOW, BREAK_OVERFLOW, BREAK_SHAPE};
  assay_error error = {""};
  case_list list = {0};
  char text[2048];
  expand_text("op: gate_attention\nrefuse:\n"
              "  - {name: a, kv_len: 3, break: [null, overflow], argument: [q, v_cache]}\n"
              "  - {name: b, kv_len: 3, break: shape, argument: q, expect: out}\n",
              3, &list);
  cr_assert_eq(list.count, 5);
  for (int64_t n = 0; n < list.count; ++n) {
    const assay_case *c = &list.cases[n];
    assay_case back;
    cr_expect_str_eq(c->expect, expect[n]);
    cr_expect_eq(c->broken, broken[n]);
    cr_expect_str_eq(c->op->args[c->argument - 1].name, n == 4 ? "q" : expect[n]);
    cr_assert(case_print(c, text, sizeof text, &error) == ASSAY_OK, "%s", error.text);
    cr_expect_not_null(strstr(text, n % 2 == 0 ? " argument=q " : " argument=v_cache "), "%s", text);
    cr_assert(case_parse(text, &back, &error) == ASSAY_OK, "%s\n%s", error.text, text);
    cr_expect(suite_fixture_same(c, &back), "%s", text);
    case_free(&back);
  }
  case_list_free(&list);
}

/* ---- the suites of the repository ------------------------------------------------------------------------- */

Test(expand, suites_of_the_repository) {
  static const char *const axes[] = {"dtype", "kv_dtype", "layout", "mode"};
  static char text[CASE_MAX_LINE];
  assay_error error = {""};
  case_list list = {0};
  int64_t on_simt = 0;
  int32_t met[2][2][3][3][3][4] = {0}; /* [op][tier][dtype][kv_dtype][layout][mode] */
  suite_fixture_all_ops();
  cr_assert(expand_suite(SUITES, 1, &list, &error) == ASSAY_OK, "%s", error.text);
  for (int64_t i = 0; i < list.count; ++i) {
    const assay_case *c = &list.cases[i];
    assay_case back;
    cr_assert(case_print(c, text, sizeof text, &error) == ASSAY_OK, "%s", error.text);
    cr_assert(case_parse(text, &back, &error) == ASSAY_OK, "%s\n%s", error.text, text);
    cr_assert(suite_fixture_same(c, &back), "%s", text);
    case_free(&back);
    if (!case_runs_on(c, "simt") || c->section == SECTION_BENCH) continue;
    ++on_simt;
    if (c->section == SECTION_REFUSE || strstr("gate_attention softmax_attention", c->op->name) == NULL) continue;
    static const char *const names[4][4] = {{"f32", "f16", "bf16"},
                                            {"same", "e4m3", "e5m2"},
                                            {"nhd", "hnd", "x"},
                                            {"decode", "prefill", "chunked", "mixed"}};
    int32_t at[4] = {0};
    for (int32_t a = 0; a < 4; ++a)
      while (strcmp(names[a][at[a]], case_axis(c, axes[a])) != 0)
        ++at[a];
    ++met[strcmp(c->op->name, "softmax_attention") == 0][c->tier][at[0]][at[1]][at[2]][at[3]];
  }
  cr_expect(on_simt >= 2000, "%lld cases on simt", (long long)on_simt);
  for (int32_t op = 0; op < 2; ++op)
    for (int32_t tier = 0; tier < 2; ++tier)
      for (int32_t d = 0; d < 3; ++d)
        for (int32_t k = 0; k < 27 * 4; ++k)
          cr_expect((&met[op][tier][d][0][0][0])[k % 36] > 0 || (op == 1 && tier == 0 && d == 0),
                    "op %d tier %d dtype %d combination %d has no case", op, tier, d, k % 36);
  case_list_free(&list);
}

/* Section refuse breaks every argument of every operator in every way. Required arguments also come without data. */
Test(expand, every_argument_is_broken) {
  static const case_break ways[] = {BREAK_NULL,   BREAK_MISALIGNED, BREAK_DTYPE,
                                    BREAK_STRIDE, BREAK_NEGATIVE,   BREAK_OVERFLOW};
  enum { WAYS = sizeof ways / sizeof ways[0] };
  assay_error error = {""};
  case_list list = {0};
  suite_fixture_all_ops();
  cr_assert(expand_suite(SUITES, 1, &list, &error) == ASSAY_OK, "%s", error.text);
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    const assay_op *op = assay_op_at(o);
    bool met[ASSAY_MAX_ARGS][WAYS] = {{false}};
    for (int64_t i = 0; i < list.count; ++i) {
      const assay_case *c = &list.cases[i];
      if (c->op != op || c->argument == 0 || !case_runs_on(c, "simt")) continue;
      for (int32_t w = 0; w < WAYS; ++w)
        if (c->broken == ways[w]) met[c->argument - 1][w] = true;
    }
    for (int32_t a = 0; a < op->arg_count; ++a)
      for (int32_t w = 0; w < WAYS; ++w)
        cr_expect(met[a][w] || (ways[w] == BREAK_NULL && op->args[a].optional) ||
                      (ways[w] == BREAK_MISALIGNED && strcmp(op->args[a].dtypes, "e4m3") == 0), /* single bytes */
                  "%s: %s is not broken in way %d", op->name, op->args[a].name, w);
  }
  case_list_free(&list);
}

/* Every operator has judged and refused calls on simt, with every type of its own. Each optional argument is present
 * and absent. Every enum and flag among its parameters takes every value. Both tiers occur where it has two. */
Test(expand, every_operator_has_its_suite) {
  assay_error error = {""};
  case_list list = {0};
  suite_fixture_all_ops();
  cr_assert(expand_suite(SUITES, 1, &list, &error) == ASSAY_OK, "%s", error.text);
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    const assay_op *op = assay_op_at(o);
    int32_t judged = 0, refused = 0;
    for (int64_t i = 0; i < list.count; ++i) {
      const assay_case *c = &list.cases[i];
      if (c->op != op || !case_runs_on(c, "simt")) continue;
      judged += c->section == SECTION_CHECK || c->section == SECTION_EDGE;
      refused += c->section == SECTION_REFUSE;
    }
    cr_expect(judged >= 20 && refused >= 4, "%s: %d cases, %d refusals", op->name, judged, refused);
    for (int32_t k = 0; k < key_count(op); ++k) {
      const case_key key = key_at(op, k);
      const bool own = key.store == STORE_PARAM || key.store == STORE_PRESENT || strcmp(key.name, "tier") == 0;
      if (!own || (key.kind != KEY_ENUM && key.kind != KEY_BOOL)) continue;
      for (int32_t v = 0; key.kind == KEY_BOOL ? v < 2 : key_name_of(&key, v) != NULL; ++v) {
        bool met = op->inexact && strcmp(key.name, "tier") == 0 && v == TIER_EXACT;
        for (int64_t i = 0; i < list.count && !met; ++i) {
          const assay_case *c = &list.cases[i];
          met = c->op == op && c->section <= SECTION_EDGE && case_runs_on(c, "simt") && (int32_t)key_get(c, &key) == v;
        }
        cr_expect(met, "%s: %s number %d has no case", op->name, key.name, v);
      }
    }
  }
  case_list_free(&list);
}
