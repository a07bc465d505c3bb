/* case_test.c: descriptors: print and parse are inverse, and whatever is wrong is named. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "conformance/text/words.h"
#include "conformance/case/keys.h"
#include "core/registry.h"
#include "core/rng.h"
#include "suite_fixture.h"

TestSuite(descriptor, .init = suite_fixture_ops);

/* ---- print and parse -------------------------------------------------------------------------------------- */

static int32_t *list_of(int32_t count, int32_t fill) {
  int32_t *list = malloc((size_t)count * sizeof *list);
  cr_assert(list != NULL);
  for (int32_t i = 0; i < count; ++i)
    list[i] = fill;
  return list;
}

static double any_real(assay_rng *rng, double low, double high) {
  const double span = high - low < 1e6 ? high - low : 1e6;
  const double value = low + span * assay_rng_unit(rng);
  return assay_rng_range(rng, 0, 1) == 0 ? value : value * 0x1p-30 >= low ? value * 0x1p-30 : value;
}

static int64_t any_whole(assay_rng *rng, double low, double high, int64_t multiple) {
  const int64_t from = low < -1e6 ? -1000000 : (int64_t)low, to = high > 1e6 ? 1000000 : (int64_t)high;
  return (from + multiple - 1) / multiple * multiple + multiple * assay_rng_range(rng, 0, (to - from) / multiple);
}

/* Every key gets a legal value, most of them not the default; what depends on others is mended. */
static void draw_case(const assay_op *op, uint64_t index, assay_case *one) {
  assay_rng rng = {.seed = 7, .stream = index};
  case_init(one, op);
  (void)snprintf(one->suite, sizeof one->suite, "suite_%d", (int)(index % 7));
  (void)snprintf(one->name, sizeof one->name, "item-%d.a", (int)(index % 11));
  if (index % 3 == 0) (void)snprintf(one->variant, sizeof one->variant, "split_keys@mutant");
  if (index % 3 == 0) (void)snprintf(one->device, sizeof one->device, "simt");
  for (int32_t i = 0; i < key_count(op); ++i) {
    const case_key key = key_at(op, i);
    if (key.kind == KEY_INTEGER) key_set(one, &key, (double)any_whole(&rng, key.min, key.max, key.multiple));
    if (key.kind == KEY_REAL) key_set(one, &key, any_real(&rng, key.min, key.max));
    if (key.kind == KEY_BOOL) key_set(one, &key, (double)assay_rng_range(&rng, 0, 1));
    if (key.kind == KEY_ENUM) {
      int64_t names = 0;
      while (key_name_of(&key, names) != NULL)
        ++names;
      key_set(one, &key, (double)assay_rng_range(&rng, 0, names - 1));
    }
  }
  one->seed = assay_rng_u64(&rng);
  one->batch = (int32_t)assay_rng_range(&rng, 1, 12);
  one->kv_len = list_of(one->batch, 0);
  one->new_len = list_of(one->batch, 1);
  one->share_with = list_of(one->batch, -1);
  one->share_tokens = list_of(one->batch, 0);
  for (int32_t i = 0; i < one->batch; ++i) {
    one->kv_len[i] = (int32_t)assay_rng_range(&rng, 1, 3000);
    if (one->mode == MODE_PREFILL) one->new_len[i] = one->kv_len[i];
    if (one->mode == MODE_CHUNKED || one->mode == MODE_MIXED)
      one->new_len[i] = (int32_t)assay_rng_range(&rng, 1, one->kv_len[i]);
  }
  if (one->broken == BREAK_EXTRA) one->broken = BREAK_NULL;
  if (one->section != SECTION_REFUSE || one->broken == BREAK_NOTHING || one->broken >= BREAK_WORKSPACE ||
      (one->argument > 0 && op->args[one->argument - 1].optional))
    one->argument = 0;
  if (one->section == SECTION_REFUSE) {
    (void)snprintf(one->expect, sizeof one->expect, "window");
    for (int32_t i = 0; i < op->param_count; ++i)
      if (op->params[i].kind == ASSAY_REAL && index % 2 == 0) one->param[i] = index % 4 == 0 ? NAN : -INFINITY;
    return;
  }
  one->broken = BREAK_NOTHING;
  one->tier = TIER_CALIBRATED;
  if (one->kv_dtype == ASSAY_F32 || one->kv_dtype == ASSAY_F16 || one->kv_dtype == ASSAY_BF16)
    one->kv_dtype = one->dtype;
  for (int32_t i = 0; i < op->dim_count; ++i) {
    if (strcmp(op->dims[i].name, "H") == 0) one->dim[i] = 12;
    if (strcmp(op->dims[i].name, "H_kv") == 0) one->dim[i] = 4;
    if (strcmp(op->dims[i].name, "D") == 0) one->dim[i] = 144;
    if (strcmp(op->dims[i].name, "block_size") == 0) one->dim[i] = 8 << (index % 6);
  }
  for (int32_t i = 0; i < op->param_count; ++i) {
    if (strcmp(op->params[i].name, "sparse_block") == 0) one->param[i] = (double)(256 * (index % 3));
    if (strcmp(op->params[i].name, "lo") == 0) one->param[i] = 0.25;
    if (strcmp(op->params[i].name, "hi") == 0) one->param[i] += 0.25;
  }
  for (int32_t i = 0; i < op->param_count && case_is_contiguous(one); ++i)
    if (strcmp(op->params[i].name, "layout") == 0) one->param[i] = (double)(index % 2);
  for (int32_t i = 1; i < one->batch && !case_is_contiguous(one); ++i)
    if (one->kv_len[i] - one->new_len[i] >= 512 && one->kv_len[i - 1] >= 512) {
      one->share_with[i] = i - 1;
      one->share_tokens[i] = 512;
    }
}

Test(descriptor, parse_of_print_is_the_case) {
  static char text[CASE_MAX_LINE], again[CASE_MAX_LINE];
  for (int32_t k = 0; k < assay_op_count(); ++k)
    for (uint64_t i = 0; i < 2000; ++i) {
      assay_error error = {""};
      assay_case one, back;
      draw_case(assay_op_at(k), i, &one);
      cr_assert(case_print(&one, text, sizeof text, &error) == ASSAY_OK, "%s", error.text);
      cr_assert(case_parse(text, &back, &error) == ASSAY_OK, "%s\n%s", error.text, text);
      cr_assert(suite_fixture_same(&one, &back), "%s", text);
      cr_assert(case_print(&back, again, sizeof again, &error) == ASSAY_OK);
      cr_assert(strcmp(text, again) == 0, "%s\n%s", text, again);
      case_free(&one);
      case_free(&back);
    }
}

Test(descriptor, of_the_longest_lists_fits) {
  static char text[CASE_MAX_LINE];
  assay_error error = {""};
  assay_case one, back;
  case_init(&one, suite_fixture_op("gate_attention"));
  one.mode = MODE_CHUNKED;
  one.batch = CASE_LISTED;
  one.kv_len = list_of(CASE_LISTED, 1000000);
  one.new_len = list_of(CASE_LISTED, 100000);
  one.share_with = list_of(CASE_LISTED, 0);
  one.share_tokens = list_of(CASE_LISTED, 16 * 50000);
  one.share_with[0] = -1;
  one.share_tokens[0] = 0;
  cr_assert(case_print(&one, text, sizeof text, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(case_parse(text, &back, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(suite_fixture_same(&one, &back));
  cr_assert(case_print(&one, text, 100, &error) == ASSAY_ERR_INPUT);
  cr_assert(strlen(text) < 100);
  case_free(&one);
  case_free(&back);
}

/* More requests than can be listed: runs of equal lengths. */
Test(descriptor, of_the_largest_batch_is_in_runs) {
  static char text[CASE_MAX_LINE], again[CASE_MAX_LINE];
  assay_error error = {""};
  assay_case one, back;
  case_init(&one, suite_fixture_op("gate_attention"));
  one.mode = MODE_DECODE;
  one.batch = CASE_MAX_BATCH;
  one.kv_len = list_of(CASE_MAX_BATCH, 1);
  one.new_len = list_of(CASE_MAX_BATCH, 1);
  one.share_with = list_of(CASE_MAX_BATCH, -1);
  one.share_tokens = list_of(CASE_MAX_BATCH, 0);
  one.kv_len[70000] = 7;
  cr_assert(case_print(&one, text, sizeof text, &error) == ASSAY_OK, "%s", error.text);
  cr_expect(strstr(text, " kv_len=1*70000,7,1*61071") != NULL, "%s", text);
  cr_assert(case_parse(text, &back, &error) == ASSAY_OK, "%s", error.text);
  cr_assert(suite_fixture_same(&one, &back));
  cr_assert(case_print(&back, again, sizeof again, &error) == ASSAY_OK);
  cr_expect(strcmp(text, again) == 0);
  case_free(&one);
  case_free(&back);
  cr_assert(case_parse("gate_attention kv_len=2*3,5 seed=1", &back, &error) == ASSAY_OK, "%s", error.text);
  cr_expect(back.batch == 4 && back.kv_len[2] == 2 && back.kv_len[3] == 5);
  case_free(&back);
}

Test(descriptor, defaults_and_axes) {
  assay_error error = {""};
  assay_case one;
  cr_assert(case_parse("gate_attention dtype=f16 layout=x kv_len=3,17 seed=31", &one, &error) == ASSAY_OK, "%s",
            error.text);
  cr_assert(strcmp(case_axis(&one, "dtype"), "f16") == 0);
  cr_assert(strcmp(case_axis(&one, "kv_dtype"), "same") == 0);
  cr_assert(strcmp(case_axis(&one, "layout"), "x") == 0);
  cr_assert(strcmp(case_axis(&one, "mode"), "decode") == 0);
  cr_assert(strcmp(case_axis(&one, "section"), "check") == 0);
  cr_assert(case_axis(&one, "H") == NULL && case_axis(&one, "nonsense") == NULL);
  cr_assert(one.batch == 2 && one.new_len[1] == 1 && one.seed == 31 && one.kv_dtype == ASSAY_F16);
  case_free(&one);
  cr_assert(case_parse("softmax_attention tier=exact dtype=bf16 scale=0.125 kv_dtype=e5m2 scale_per_head=true kv_len=3 "
                       "kv_pad=interleaved",
                       &one, &error) == ASSAY_OK,
            "%s", error.text);
  cr_assert(one.values == ASSAY_LATTICE && one.kv_pad == -1 && strcmp(case_axis(&one, "kv_dtype"), "e5m2") == 0);
  cr_assert(one.present == 0);
  case_free(&one);
}

Test(descriptor, copies_are_deep) {
  assay_error error = {""};
  assay_case one, two;
  cr_assert(case_parse("gate_attention mode=mixed kv_len=3,17 new=0,4 seed=1", &one, &error) == ASSAY_OK);
  cr_assert(case_copy(&one, &two, &error) == ASSAY_OK);
  cr_assert(suite_fixture_same(&one, &two) && one.kv_len != two.kv_len && one.share_with != two.share_with);
  case_free(&one);
  cr_assert(two.kv_len[1] == 17);
  case_free(&two);
  case_free(&two); /* twice is harmless */
}

/* ---- what is refused -------------------------------------------------------------------------------------- */

typedef struct bad_line {
  const char *text, *message; /* message: the beginning of it */
} bad_line;

static const bad_line bad_lines[] = {
    {"", "operator: found '', allowed gate_attention, softmax_attention"},
    {"gate_atention kv_len=1", "operator: found 'gate_atention', allowed gate_attention, softmax_attention"},
    {"gate_attention", "kv_len: missing, needed: one length for each request"},
    {"gate_attention kv_len", "descriptor: found 'kv_len', allowed key=value"},
    {"gate_attention =3", "descriptor: found '=3', allowed key=value"},
    {"gate_attention kv_len=3 kv_len=3", "kv_len: given twice, allowed once"},
    {"gate_attention kv_len=3 widnow=3", "widnow: unknown key (nearest: window), allowed are suite, section, name,"},
    {"gate_attention kv_len=3 softcap=3", "softcap: unknown key, allowed are"},
    {"softmax_attention kv_len=3 sigma=1", "sigma: unknown key"},
    {"gate_attention kv_len=3*0",
     "kv_len: found a bad count behind 3*, allowed VALUE*COUNT with a COUNT from 1 to 131072"},
    {"gate_attention kv_len=3*2x", "kv_len: found a bad count behind 3*, allowed VALUE*COUNT"},
    {"gate_attention kv_len=3*", "kv_len: found a bad count behind 3*, allowed VALUE*COUNT"},
    {"gate_attention kv_len=3*131072,1", "kv_len: found 131073 values, allowed 1 to 131072"},
    {"gate_attention kv_len=3 D=twelve", "D: found 'twelve', allowed 8 to 256, multiples of 8"},
    {"gate_attention kv_len=3 D=12", "D: found '12', allowed 8 to 256, multiples of 8"},
    {"gate_attention kv_len=3 D=264", "D: found '264', allowed 8 to 256, multiples of 8"},
    {"gate_attention kv_len=3 D=64.0", "D: found '64.0', allowed"},
    {"gate_attention kv_len=3 D=", "D: found '', allowed"},
    {"gate_attention kv_len=3 D=+64", "D: found '+64', allowed"},
    {"gate_attention kv_len=3 D=0x40", "D: found '0x40', allowed"},
    {"gate_attention kv_len=3 D=99999999999999999999", "D: found '99999999999999999999', allowed"},
    {"gate_attention kv_len=3 block_size=24", "block_size: found 24, allowed 8, 16, 32, 64, 128, 256"},
    {"gate_attention kv_len=3 H=6 H_kv=4", "H: found 6, allowed multiples of H_kv = 4"},
    {"gate_attention kv_len=3 D=24 layout=x kv_dtype=e4m3",
     "D: found 24, allowed multiples of x = 16 in layout x with e4m3"},
    {"gate_attention kv_len=3 layout=hdn", "layout: found 'hdn', allowed nhd, hnd, x"},
    {"gate_attention kv_len=3 dtype=f64", "dtype: found 'f64', allowed f32, f16, bf16"},
    {"gate_attention kv_len=3 dtype=f16 kv_dtype=f32", "kv_dtype: found f32, allowed same (f16), e4m3, e5m2"},
    {"gate_attention kv_len=3 relu_pre=1", "relu_pre: found '1', allowed true, false"},
    {"gate_attention kv_len=3 scale=nan", "scale: found 'nan', allowed"},
    {"gate_attention kv_len=3 scale=inf", "scale: found 'inf', allowed"},
    {"gate_attention kv_len=3 scale=1e999", "scale: found '1e999', allowed"},
    {"gate_attention kv_len=3 scale=1.2.3", "scale: found '1.2.3', allowed"},
    {"gate_attention kv_len=3 lo=0.5 hi=0.25", "lo: found 0.5, allowed at most hi = 0.25"},
    {"gate_attention kv_len=3 density=1.5", "density: found '1.5', allowed -1 to 1"},
    {"gate_attention kv_len=3 window=-1", "window: found '-1', allowed 0 to"},
    {"gate_attention kv_len=3 seed=0x", "seed: found '0x', allowed 0 to 18446744073709551615, or 0x"},
    {"gate_attention kv_len=3 seed=-1", "seed: found '-1', allowed"},
    {"gate_attention kv_len=3 seed=18446744073709551616", "seed: found '18446744073709551616', allowed"},
    {"gate_attention kv_len=3 name=a;b", "name: found 'a;b', allowed 1 to 63 letters, digits and _@.:/+-"},
    {"gate_attention kv_len=-3", "kv_len: found '-3', allowed 0 to 1048576"},
    {"gate_attention kv_len=3,,4", "kv_len: found '', allowed 0 to 1048576"},
    {"gate_attention kv_len=3,4 new=1", "new: found 1 values, allowed 2 (one for each request)"},
    {"gate_attention kv_len=3,4 new=1,2", "new: found 2 for request 1 of 4 tokens, allowed 1 to 1 in mode decode"},
    {"gate_attention mode=prefill kv_len=3 new=2",
     "new: found 2 for request 0 of 3 tokens, allowed 3 to 3 in mode prefill"},
    {"gate_attention mode=chunked kv_len=3", "new: missing, needed in mode chunked"},
    {"gate_attention mode=chunked kv_len=3 new=0",
     "new: found 0 for request 0 of 3 tokens, allowed 1 to 3 in mode chunked"},
    {"gate_attention mode=chunked kv_len=0 new=1",
     "kv_len: found 0 for request 0, allowed 1 to 1048576 in mode chunked"},
    {"gate_attention mode=mixed kv_len=3,4 new=3,5",
     "new: found 5 for request 1 of 4 tokens, allowed 0 to 4 in mode mixed"},
    {"gate_attention mode=mixed kv_len=3 new=0", "new: found no row in the whole batch, allowed 1 or more"},
    {"gate_attention kv_len=40,40 share=-", "share: found 1 values, allowed 2 (one for each request)"},
    {"gate_attention kv_len=40,40 share=-,1:16", "share: request 1 shares with 1, allowed an earlier request"},
    {"gate_attention kv_len=40,40 share=-,0:8",
     "share: found 8 tokens for request 1, allowed whole blocks of 16 up to 39"},
    {"gate_attention kv_len=16,48 share=-,0:32",
     "share: found 32 tokens for request 1, allowed whole blocks of 16 up to 16"},
    {"gate_attention kv_len=32,32 share=-,0:32",
     "share: found 32 tokens for request 1, allowed whole blocks of 16 up to 31"},
    {"gate_attention kv_len=40,40 share=-,0", "share: found '0', allowed - or EARLIER:TOKENS"},
    {"gate_attention kv_len=40,40 share=-,0:16x", "share: found '0:16x', allowed - or EARLIER:TOKENS"},
    {"gate_attention kv_len=3 break=null", "break: found null, allowed in section refuse only"},
    {"gate_attention kv_len=3 argument=q", "argument: found q, allowed in section refuse only"},
    {"gate_attention section=refuse expect=q kv_len=3 argument=q",
     "argument: found q with break nothing, allowed with null, misaligned, dtype, shape, stride, negative, overflow"},
    {"gate_attention section=refuse expect=q kv_len=3 break=workspace argument=q",
     "argument: found q with break workspace, allowed with null,"},
    {"gate_attention section=refuse kv_len=3 break=null argument=y",
     "argument: found 'y', allowed usual, q, k_cache, v_cache, k_scale, v_scale, block_table, kv_len, cu_q, cu_k, "
     "taps, "
     "gamma, "
     "out"},
    {"gate_attention section=refuse kv_len=3 break=dtype argument=cu_q",
     "argument: found cu_q, allowed one that the case gives"},
    {"gate_attention section=refuse kv_len=3 kv_dtype=same break=dtype argument=v_scale",
     "argument: found v_scale, allowed one that the case gives"},
    {"softmax_attention section=refuse kv_len=3 break=dtype argument=slopes",
     "argument: found slopes, allowed one that the case gives"},
    {"gate_attention kv_len=3 expect=D", "expect: found outside section refuse"},
    {"gate_attention section=refuse kv_len=3", "expect: missing, needed in section refuse"},
    {"gate_attention section=refuse expect=D kv_len=3 D=0", "D: found '0', allowed 1 to 4096 (section refuse)"},
    {"gate_attention tier=exact kv_len=3", "scale: found 0, allowed a power of two in tier exact"},
    {"gate_attention tier=exact scale=0.3 kv_len=3", "scale: found 0.3, allowed a power of two in tier exact"},
    {"gate_attention tier=exact scale=0.25 values=normal kv_len=3",
     "values: found normal, allowed lattice in tier exact"},
    {"gate_attention tier=exact scale=0.25 sigma=1 kv_len=3", "sigma: found 1 and tap_skew 0, allowed in tier exact:"},
    {"softmax_attention tier=exact scale=1 softcap=30 kv_len=3", "softcap: found 30, allowed 0 in tier exact"},
    {"softmax_attention tier=exact scale=1 dtype=f32 kv_len=3", "dtype: found f32, allowed f16, bf16 in tier exact"},
    {"softmax_attention tier=exact scale=1 lse=true kv_len=3", "lse: found true, allowed false in tier exact"},
    {"softmax_attention tier=exact scale=1 slopes=true kv_len=3", "slopes: found true, allowed false in tier exact"},
    {"softmax_attention kv_len=3 block_size=16 sparse_block=24",
     "sparse_block: found 24, allowed 0 and multiples of block_size = 16"},
    {"softmax_attention kv_len=3 sparse_stride=0", "sparse_stride: found '0', allowed 1 to"},
};

Test(descriptor, names_what_is_wrong) {
  for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; ++i) {
    assay_error error = {""};
    assay_case one;
    const bad_line *bad = &bad_lines[i];
    cr_assert(case_parse(bad->text, &one, &error) == ASSAY_ERR_INPUT, "%s", bad->text);
    cr_expect(strncmp(error.text, bad->message, strlen(bad->message)) == 0, "%s\n  got      %s\n  expected %s",
              bad->text, error.text, bad->message);
    cr_assert(one.kv_len == NULL && one.new_len == NULL && one.share_with == NULL);
  }
}

Test(descriptor, too_long_is_refused) {
  static char text[CASE_MAX_LINE + 64];
  assay_error error = {""};
  assay_case one;
  memset(text, ' ', sizeof text - 1);
  memcpy(text, "gate_attention kv_len=3", 23);
  cr_assert(case_parse(text, &one, &error) == ASSAY_ERR_INPUT);
  cr_assert(strcmp(error.text, "descriptor: 32831 characters, allowed 32767") == 0, "%s", error.text);
}

/* Any single character changed, dropped or doubled: an answer, never a crash; what is accepted prints again. */
Test(descriptor, survives_every_small_damage) {
  static const char line[] =
      "softmax_attention section=check tier=calibrated mode=mixed dtype=bf16 kv_dtype=e4m3 H=4 H_kv=2 "
      "layout=hnd softcap=30 lse=true kv_len=40,17 new=3,0 share=-,0:16 seed=0x1f";
  static char text[sizeof line + 2], printed[CASE_MAX_LINE];
  static const char odd[] = "=,:-. x0\x7f\xff\t";
  for (size_t at = 0; at < sizeof line - 1; ++at)
    for (size_t k = 0; k < sizeof odd + 1; ++k) {
      assay_error error = {""};
      assay_case one;
      memcpy(text, line, sizeof line);
      if (k < sizeof odd - 1)
        text[at] = odd[k];
      else if (k == sizeof odd - 1)
        memmove(text + at, text + at + 1, sizeof line - at - 1);
      else
        memmove(text + at + 1, text + at, sizeof line - at);
      const assay_status status = case_parse(text, &one, &error);
      if (status == ASSAY_OK)
        cr_assert(case_print(&one, printed, sizeof printed, &error) == ASSAY_OK, "%s", text);
      else
        cr_assert(error.text[0] != '\0', "%s", text);
      case_free(&one);
    }
}

Test(keys, nearest_names_typing_errors_only) {
  char near[64];
  cr_assert(strcmp(word_nearest("kv_length", "name, kv_len, new", near, sizeof near), "kv_len") == 0);
  cr_assert(strcmp(word_nearest("Dtype", "name, dtype, kv_dtype", near, sizeof near), "dtype") == 0);
  cr_assert(word_nearest("zebra", "name, kv_len, new", near, sizeof near) == NULL);
}
