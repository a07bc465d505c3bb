/* simt_model_test.c: the launchers' forward pass on simt, stage by stage. It may be 1.5 times as far from f64 as mirror
 * mode, which rounds at the same places. The steps are prefill, mixed ones with a pad row, a fork and decode. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/builtin.h"
#include "core/dtype.h"
#include "core/registry.h"
#include "model_driver.h"
#include "model_small.h"

enum { MOST_TAPS = 1024, IDS = 40 };

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static int32_t ids[IDS];

/* Every stage of every step of one pass, in the order in which they came. */
typedef struct record {
  struct {
    char name[ASSAY_MODEL_NAME];
    int64_t count;
    double *value;
  } tap[MOST_TAPS];
  int64_t count;
} record;

static record exact, mirror, device;

/* Stages that only the reference has. */
static bool wants(void *context, const char *name) {
  const char *last = strrchr(name, '.');
  (void)context;
  return last == NULL || (strcmp(last, ".biased") != 0 && strcmp(last, ".s") != 0 && strcmp(last, ".p") != 0);
}

static void keep(void *context, const char *name, int64_t rows, int64_t width, const double *value) {
  record *r = context;
  cr_assert_lt(r->count, MOST_TAPS);
  (void)snprintf(r->tap[r->count].name, ASSAY_MODEL_NAME, "%s", name);
  r->tap[r->count].count = rows * width;
  r->tap[r->count].value = malloc((size_t)(rows * width) * sizeof *value);
  memcpy(r->tap[r->count++].value, value, (size_t)(rows * width) * sizeof *value);
}

static void forget(record *r) {
  for (int64_t i = 0; i < r->count; ++i)
    free(r->tap[i].value);
  r->count = 0;
}

/* Counts the operators whose names begin so. */
static int64_t calls_of(const assay_model_session *session, const char *op) {
  assay_model_path path;
  int64_t calls = 0;
  for (int32_t i = 0; assay_model_simt()->path(session, i, &path); ++i)
    calls += strncmp(path.op, op, strlen(op)) == 0 ? path.calls : 0;
  return calls;
}

/* form NULL: as usual; op: whose calls are counted. */
static int64_t run_form(const assay_model_backend *backend, assay_model_mode mode, record *r, const char *form,
                        const char *op) {
  const assay_model_taps taps = {r, backend == assay_model_ref() ? wants : NULL, keep, NULL};
  const assay_model_options options = {.form = &form, .forms = form != NULL ? 1 : 0};
  model_driver d;
  driver_open_on(&d, backend, &c, &w, 16, 64, 4, mode);
  if (form != NULL) cr_assert_eq(backend->set_options(d.session, &options, &error), ASSAY_OK, "%s", error.text);
  const int32_t a = driver_request(&d, NULL, 0, NULL), b = driver_request(&d, NULL, 0, NULL);
  driver_add(&d, a, ids, 13, true);
  driver_add(&d, b, ids + 13, 7, false);
  (void)driver_step(&d, &taps); /* prefill */
  const int32_t e = driver_request(&d, NULL, 0, NULL);
  driver_add(&d, a, ids + 20, 1, false);
  driver_add(&d, b, ids + 21, 4, true);
  driver_add_pad(&d);
  driver_add(&d, e, ids + 25, 5, false);
  (void)driver_step(&d, &taps); /* mixed */
  int32_t forked = -1;
  cr_assert_eq(assay_kv_fork(d.kv, a, &forked, &error), ASSAY_OK, "%s", error.text);
  driver_add(&d, a, ids + 30, 1, false);
  driver_add(&d, forked, ids + 31, 1, false);
  driver_add_pad(&d);
  (void)driver_step(&d, &taps); /* decode, one of them after a copied block */
  const int64_t calls = op != NULL ? calls_of(d.session, op) : 0;
  driver_close(&d);
  return calls;
}

static void run(const assay_model_backend *backend, assay_model_mode mode, record *r) {
  (void)run_form(backend, mode, r, NULL, NULL);
}

static double rms(const double *x, const double *y, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += (x[i] - y[i]) * (x[i] - y[i]);
  return sqrt(sum / (double)count);
}

/* The form of the run leaves the division of a norm to the product after it, or norms heads and turns them in one
 * call. */
static bool undivided, turned_at_once;

/* A stage that a fused call leaves out, or gives in another form. */
static bool may_lack(const char *name) {
  if (undivided && strstr(name, ".pre") != NULL) return true;
  if (turned_at_once && (strstr(name, ".q_norm") != NULL || strstr(name, ".k_norm") != NULL)) return true;
  static const char *const ends[] = {".post", ".attn.q", ".attn.k", ".attn.v", ".proj", ".up", ".down"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; ++i)
    if (strlen(name) >= strlen(ends[i]) && strcmp(name + strlen(name) - strlen(ends[i]), ends[i]) == 0) return true;
  return false;
}

/* Stages out of bounds; the first is said. */
static int64_t compare(double limit, char *first, size_t size) {
  int64_t bad = 0, at = 0;
  first[0] = '\0';
  cr_assert_eq(mirror.count, exact.count);
  for (int64_t i = 0; i < exact.count; ++i) {
    const int64_t n = exact.tap[i].count;
    if (at < device.count && strstr(device.tap[at].name, ".biased") != NULL) ++at;
    if (at >= device.count || strcmp(device.tap[at].name, exact.tap[i].name) != 0) {
      cr_assert(may_lack(exact.tap[i].name), "%s is missing", exact.tap[i].name);
      continue;
    }
    cr_assert_eq(device.tap[at].count, n);
    double scale = 0;
    for (int64_t k = 0; k < n; ++k)
      scale += exact.tap[i].value[k] * exact.tap[i].value[k] / (double)n;
    const double floor = 4e-7 * sqrt(scale); /* f32 inside operators */
    const double allowed = limit * rms(mirror.tap[i].value, exact.tap[i].value, n) + floor;
    const double found = rms(device.tap[at++].value, exact.tap[i].value, n);
    if (found <= allowed) continue;
    if (bad++ == 0)
      (void)snprintf(first, size, "%s: RMS of the error %.3g, allowed %.3g", exact.tap[i].name, found, allowed);
  }
  cr_assert_eq(at, device.count, "%s is not a stage", at < device.count ? device.tap[at].name : "");
  return bad;
}

static void open_config(void) {
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK, "%s", error.text);
  assay_model_prompt(&c, 7, 0, IDS, ids);
}

static void open_model(int number) {
  c = small_model(number);
  c.weight_dtype = c.act_dtype;
  open_config();
}

static void open_model_as(int number, assay_dtype type, assay_dtype kv) {
  c = small_model(number);
  c.weight_dtype = c.act_dtype = type;
  c.kv_dtype = kv;
  open_config();
}

static void close_model(void) {
  forget(&exact);
  forget(&mirror);
  forget(&device);
  assay_model_weights_free(&w);
}

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(device, .init = setup);

Test(device, every_stage_is_as_near_as_rounding_allows) {
  char first[200];
  for (int number = 0; number < SMALL_MODELS; ++number) {
    open_model(number);
    run(assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
    run(assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
    run(assay_model_simt(), ASSAY_MODEL_MIRROR, &device);
    const int64_t bad = compare(1.5, first, sizeof first);
    cr_expect_eq(bad, 0, "model %d (%s): %lld of %lld stages; %s", number, assay_model_arch_name(c.arch),
                 (long long)bad, (long long)exact.count, first);
    close_model();
  }
}

/* Every form, on and off: the operator is called or it is not, and the stages stay where they may be. A form that is on
 * is refused where the model cannot have it. */
static const struct {
  const char *on, *off, *op; /* op: how the operator begins; NULL: called either way */
  unsigned models;           /* bits of those that have it */
} forms[] = {{"qk_norm=on", "qk_norm=off", "qk_norm", 1u << 1 | 1u << 2 | 1u << 4},
             {"append=on", "append=off", "attention_append", 0x1f},
             {"mmha=on", "mmha=off", "mmha", 1u << 3},
             {"rope_append=on", "rope_append=off", "rope_append", 0x1e},
             {"norm_rope_append=on", "norm_rope_append=off", "norm_rope_append", 1u << 1 | 1u << 2 | 1u << 4},
             {"add_norm=on", "add_norm=off", "add_", 0x1f},
             {"post_pre_uclip=on", "post_pre_uclip=off", "post_attn_pre_mlp_uclip", 1u << 2 | 1u << 4},
             {"bias_gelu_new=on", "bias_gelu_new=off", NULL, 1u << 0},
             {"bias_residual=on", "bias_residual=off", NULL, 1u << 0},
             {"gemm_glu=on", "gemm_glu=off", "gemm_glu", 1u << 1 | 1u << 2 | 1u << 4},
             {"gemm_seam=on", "gemm_seam=off", "gemm_post_pre_uclip", 1u << 2 | 1u << 4},
             {"gemm_norm=on", "gemm_norm=off", "gemm_residual", 1u << 1}};

static void expect_refused(const char *form, int number) {
  const assay_model_options options = {.form = &form, .forms = 1};
  model_driver d;
  driver_open_on(&d, assay_model_simt(), &c, &w, 16, 64, 4, ASSAY_MODEL_MIRROR);
  error.text[0] = '\0';
  cr_expect_eq(assay_model_simt()->set_options(d.session, &options, &error), ASSAY_ERR_INPUT, "model %d, %s", number,
               form);
  cr_expect(strncmp(error.text, "form ", 5) == 0 && strstr(error.text, assay_model_arch_name(c.arch)) != NULL &&
                strstr(error.text, "cannot have, allowed on: ") != NULL,
            "%s", error.text);
  driver_close(&d);
}

Test(device, every_form_is_within_the_same_bounds) {
  char first[200];
  for (int number = 0; number < SMALL_MODELS; ++number) {
    open_model(number);
    run(assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
    run(assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; ++f)
      for (int on = 0; on < 2; ++on) {
        const char *form = on ? forms[f].on : forms[f].off;
        const bool has = (forms[f].models >> number & 1u) != 0;
        forget(&device);
        if (on && !has) {
          expect_refused(form, number);
          continue;
        }
        const int64_t calls = run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &device, form, forms[f].op);
        undivided = strcmp(form, "gemm_norm=on") == 0;
        turned_at_once = strcmp(form, "norm_rope_append=on") == 0;
        const int64_t bad = compare(1.5, first, sizeof first);
        cr_expect_eq(bad, 0, "model %d, %s: %lld stages; %s", number, form, (long long)bad, first);
        if (forms[f].op != NULL)
          cr_expect_eq(calls > 0, on != 0, "model %d, %s: %lld calls", number, form, (long long)calls);
        undivided = turned_at_once = false;
      }
    close_model();
  }
}

/* The form leaves no trace: every stage has the bits that rope and kv_append make, in types and caches of all kinds. */
Test(device, rotation_and_append_in_one_call_make_the_same_bits) {
  static record apart;
  for (int number = 1; number < SMALL_MODELS; ++number)
    for (int32_t type = ASSAY_F32; type <= ASSAY_BF16; ++type)
      for (int fp8 = 0; fp8 < 2; ++fp8) {
        if (fp8 && small_model(number).head_size % 16 != 0) continue; /* copy_blocks moves pairs of codes */
        open_model_as(number, (assay_dtype)type, fp8 ? ASSAY_E5M2 : (assay_dtype)type);
        cr_expect_gt(run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &device, "rope_append=on", "rope_append"), 0);
        cr_expect_gt(run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &apart, "rope_append=off", "kv_append"), 0);
        cr_assert_eq(device.count, apart.count);
        for (int64_t i = 0; i < device.count; ++i) {
          const int64_t n = device.tap[i].count;
          cr_assert(strcmp(device.tap[i].name, apart.tap[i].name) == 0 && n == apart.tap[i].count);
          cr_expect_eq(memcmp(device.tap[i].value, apart.tap[i].value, (size_t)n * sizeof(double)), 0,
                       "model %d, %s: %s", number, assay_dtype_name((assay_dtype)type), device.tap[i].name);
        }
        forget(&apart);
        close_model();
      }
}

/* The form with the norms leaves none either: every stage that it has is the same in every bit. */
Test(device, norms_rotation_and_append_in_one_call_make_the_same_bits) {
  static const int normed[] = {1, 2, 4};
  static record apart;
  for (int m = 0; m < 3; ++m)
    for (int32_t type = ASSAY_F32; type <= ASSAY_BF16; ++type)
      for (int fp8 = 0; fp8 < 2; ++fp8) {
        const int number = normed[m];
        if (fp8 && small_model(number).head_size % 16 != 0) continue; /* copy_blocks moves pairs of codes */
        open_model_as(number, (assay_dtype)type, fp8 ? ASSAY_E5M2 : (assay_dtype)type);
        cr_expect_gt(
            run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &device, "norm_rope_append=on", "norm_rope_append"), 0);
        cr_expect_gt(run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &apart, "norm_rope_append=off", "rope_append"),
                     0);
        int64_t left_out = 0;
        for (int64_t i = 0; i < apart.count; ++i) {
          const char *name = apart.tap[i].name;
          if (strstr(name, "attn.q_norm") != NULL || strstr(name, "attn.k_norm") != NULL) {
            ++left_out;
            continue;
          }
          const int64_t at = i - left_out, n = apart.tap[i].count;
          cr_assert(at < device.count && strcmp(device.tap[at].name, name) == 0 && n == device.tap[at].count, "%s",
                    name);
          cr_expect_eq(memcmp(device.tap[at].value, apart.tap[i].value, (size_t)n * sizeof(double)), 0,
                       "model %d, %s: %s", number, assay_dtype_name((assay_dtype)type), name);
        }
        cr_assert_eq(device.count + left_out, apart.count);
        cr_expect_gt(left_out, 0);
        forget(&apart);
        close_model();
      }
}

/* The operators that stand for forms without one of their own. */
Test(device, an_early_bias_is_a_stage_of_its_own) {
  open_model(0);
  (void)run_form(assay_model_simt(), ASSAY_MODEL_MIRROR, &device, "bias_residual=off", NULL);
  int64_t biased = 0;
  for (int64_t i = 0; i < device.count; ++i)
    biased += strstr(device.tap[i].name, "attn.proj.biased") != NULL;
  cr_expect_eq(biased, 9, "found %lld", (long long)biased); /* 3 layers, 3 steps */
  close_model();
}

Test(device, words_that_nobody_knows) {
  static const struct {
    const char *form, *variant, *says;
  } wrong[] = {{"qk_nrom=on", NULL, "qk_norm, append, mmha"},
               {"append=yes", NULL, "off, on, auto"},
               {"append", NULL, "found 'append'"},
               {NULL, "gem=tiled", "found operator 'gem'"},
               {NULL, "gemm=none_such", "allowed on simt: "},
               {NULL, "gemm", "operator=variant"}};
  open_model(1);
  model_driver d;
  driver_open_on(&d, assay_model_simt(), &c, &w, 16, 64, 4, ASSAY_MODEL_MIRROR);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    const assay_model_options options = {.form = &wrong[i].form,
                                         .forms = wrong[i].form != NULL,
                                         .variant = &wrong[i].variant,
                                         .variants = wrong[i].variant != NULL};
    error.text[0] = '\0';
    cr_expect_eq(assay_model_simt()->set_options(d.session, &options, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, wrong[i].says), "%s", error.text);
  }
  driver_close(&d);
  close_model();
}

/* The comparison sees a wrong constant. */
Test(device, another_eps_or_gate_shows) {
  char first[200];
  for (int number = 1; number <= 2; ++number) {
    open_model(number);
    run(assay_model_ref(), ASSAY_MODEL_EXACT, &exact);
    run(assay_model_ref(), ASSAY_MODEL_MIRROR, &mirror);
    c.eps = 0.05;
    c.gate_hi = 0.5;
    run(assay_model_simt(), ASSAY_MODEL_MIRROR, &device);
    cr_expect_gt(compare(1.5, first, sizeof first), 0, "model %d", number);
    close_model();
  }
}

Test(device, refusals) {
  assay_model_session *session = NULL;
  const assay_model_limits limits = {16, 64, 4, 64, 0};
  open_model(1);
  c.weight_dtype = ASSAY_F32;
  assay_model_weights_free(&w);
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  error.text[0] = '\0';
  cr_expect_eq(assay_model_simt()->open(&c, &w, &limits, ASSAY_MODEL_MIRROR, &session, &error), ASSAY_ERR_UNSUPPORTED);
  cr_expect_not_null(strstr(error.text, "weight_dtype"));
  cr_expect_null(session);
  close_model();
}
