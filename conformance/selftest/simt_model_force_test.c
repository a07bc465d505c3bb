/* simt_model_force_test.c: a forced variant runs, or is an error. This covers every variant of every operator that a
 * forward pass calls, by its count of calls. It also covers lists of variants, forms that a model cannot have, and
 * forced variants that took no call. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "assay/engine.h"
#include "conformance/builtin.h"
#include "core/registry.h"
#include "model_driver.h"

enum { MOST_OPS = 64, MOST_VARIANTS = 256, IDS = 40, PROMPT = 3 };

static assay_error error;
static assay_model_config c;
static assay_model_weights w;
static int32_t ids[IDS];

static void setup(void) {
  cr_assert_eq(builtin_register(&error), ASSAY_OK, "%s", error.text);
}

TestSuite(force, .init = setup);

/* ---- models ---------------------------------------------------------------------------------------------- */

/* Families; the Llama family is what `mmha` is for. */
enum { GPT2, QWEN3, ASYNCT, LLAMA, MODELS };
static const char *const model_name[MODELS] = {"gpt2", "qwen3", "asynct", "llama"};

static const struct {
  assay_dtype act, kv;
  int64_t D;
} shapes[] = {
    {ASSAY_F32, ASSAY_F32, 16},
    {ASSAY_BF16, ASSAY_BF16, 64}, /* the types of tensor cores */
    {ASSAY_F16, ASSAY_F16, 64},
    {ASSAY_BF16, ASSAY_E4M3, 64}, /* a cache of 8 bits */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void open_model(int model, int shape) {
  static const assay_model_arch arch[MODELS] = {ASSAY_GPT2, ASSAY_QWEN3, ASSAY_ASYNCT, ASSAY_QWEN3};
  c = assay_model_production(arch[model]);
  c.layers = 1;
  c.hidden = 64;
  c.heads = 4;
  c.kv_heads = model == GPT2 ? 4 : 2;
  c.head_size = shapes[shape].D;
  c.rotated = model == GPT2 ? 0 : c.head_size;
  c.qk_norm = model == QWEN3 || model == ASYNCT;
  c.intermediate = 96;
  c.vocab = 64;
  c.max_pos = 64;
  c.block_size = 16;
  c.weight_dtype = c.act_dtype = shapes[shape].act;
  c.kv_dtype = shapes[shape].kv;
  error.text[0] = '\0';
  cr_assert_eq(assay_model_weights_alloc(&c, &w, &error), ASSAY_OK, "%s", error.text);
  cr_assert_eq(assay_model_seed(&c, 7, &w, &error), ASSAY_OK, "%s", error.text);
  assay_model_prompt(&c, 7, 0, IDS, ids);
}

static void close_model(void) {
  assay_model_weights_free(&w);
}

/* ---- one run --------------------------------------------------------------------------------------------- */

/* Counts calls by each variant of the registry, in the step of a prompt and in the step after a fork, whose block is
 * copied. */
typedef struct calls {
  int64_t prefill[MOST_VARIANTS], decode[MOST_VARIANTS];
} calls;

static int32_t number_of(const assay_model_path *path) {
  int32_t v = 0;
  while (v < assay_variant_count() &&
         (strcmp(assay_variant_at(v)->op, path->op) != 0 || strcmp(assay_variant_at(v)->name, path->variant) != 0 ||
          strcmp(assay_variant_at(v)->device, "simt") != 0))
    ++v;
  cr_assert(v < assay_variant_count() && v < MOST_VARIANTS, "%s=%s", path->op, path->variant);
  return v;
}

static void count(const assay_model_session *session, int64_t *of) {
  assay_model_path path;
  memset(of, 0, MOST_VARIANTS * sizeof *of);
  for (int32_t i = 0; assay_model_simt()->path(session, i, &path); ++i)
    of[number_of(&path)] += path.calls;
}

static assay_status step(model_driver *d) {
  const assay_model_batch batch = driver_batch(d);
  const int64_t number = assay_kv_step_begin(d->kv);
  assay_status status = assay_model_simt()->forward(d->session, &batch, d->logits, NULL, &error);
  for (int64_t i = 0; i < d->requests && status == ASSAY_OK; ++i)
    status = assay_kv_commit(d->kv, d->request[i], d->ids + d->cu_q[i], d->cu_q[i + 1] - d->cu_q[i], &error);
  if (status == ASSAY_OK) status = assay_kv_step_done(d->kv, number, &error);
  d->requests = d->tokens = d->logit_count = d->copy_count = 0;
  return status;
}

/* A prompt, a fork, a token of each of the two. form: NULL, one, or two joined by a plus; word: NULL or one. `end`:
 * what is said of the forces. */
static assay_status run(const char *form, const char *word, calls *counted, assay_status *end) {
  const char *const plus = form != NULL ? strchr(form, '+') : NULL;
  char first[64] = "";
  if (plus != NULL) (void)snprintf(first, sizeof first, "%.*s", (int)(plus - form), form);
  const char *const forms[] = {plus != NULL ? first : form, plus != NULL ? plus + 1 : NULL};
  const assay_model_options options = {
      .form = forms, .forms = (form != NULL) + (plus != NULL), .variant = &word, .variants = word != NULL};
  model_driver d;
  int32_t forked = -1;
  driver_open_on(&d, assay_model_simt(), &c, &w, 8, 16, 4, ASSAY_MODEL_MIRROR);
  memset(counted, 0, sizeof *counted);
  error.text[0] = '\0';
  *end = ASSAY_OK;
  assay_status status = assay_model_simt()->set_options(d.session, &options, &error);
  if (status == ASSAY_OK) {
    const int32_t a = driver_request(&d, NULL, 0, NULL);
    driver_add(&d, a, ids, PROMPT, false);
    status = step(&d);
    count(d.session, counted->prefill);
    if (status == ASSAY_OK) status = assay_kv_fork(d.kv, a, &forked, &error);
    if (status == ASSAY_OK) {
      driver_add(&d, a, ids + PROMPT, 1, false);
      driver_add(&d, forked, ids + PROMPT + 1, 1, false);
      status = step(&d);
      count(d.session, counted->decode);
      for (int32_t v = 0; v < MOST_VARIANTS; ++v)
        counted->decode[v] -= counted->prefill[v];
    }
  }
  if (status == ASSAY_OK) *end = assay_model_simt()->check_forced(d.session, &error);
  driver_close(&d);
  return status;
}

/* ---- every variant --------------------------------------------------------------------------------------- */

static const char *const usual_form[] = {NULL,
                                         "append=on",
                                         "mmha=on",
                                         "qk_norm=off",
                                         "post_pre_uclip=off",
                                         "add_norm=on",
                                         "rope_append=off",
                                         "gemm_glu=off",
                                         "gemm_seam=on",
                                         "gemm_seam=off",
                                         "gemm_norm=on+gemm_glu=off",
                                         "norm_rope_append=off"};
enum { FORMS = sizeof usual_form / sizeof *usual_form };

/* Operators that no session of a model calls, and why. */
static const struct {
  const char *op, *why;
} uncalled[] = {{"merge_states", "states of split keys are joined inside attention"},
                {"gate_reduce", "sums of split keys are joined inside attention"},
                {"sampler", "an engine's: every_sampler_can_be_forced"},
                {"lm_head_argmax", "an engine's greedy steps: greedy_steps_write_no_logits"},
                {"moe_router", "no model here has experts yet"},
                {"moe_align", "no model here has experts yet"},
                {"moe_permute", "no model here has experts yet"},
                {"moe_combine", "no model here has experts yet"},
                {"rope_table", "tables of a model are made on the host"},
                {"token_bitmask", "an engine's, which does not mask tokens yet"},
                {"spec_verify", "an engine's, which does not draft tokens yet"},
                {"causal_conv1d", "no model here has linear attention yet"},
                {"delta_gates", "no model here has linear attention yet"},
                {"mla_append", "no model here has latent attention on the device yet"},
                {"mla_attention", "no model here has latent attention on the device yet"},
                {"gated_delta_rule", "no model here has linear attention yet"},
                {"group_quant", "no model here has fp8 weights yet"},
                {"fp8_block_gemm", "no model here has fp8 weights yet"},
                {"fp8_grouped_gemm", "no model here has fp8 weights yet"},
                {"fp8_grouped_gemm_masked", "no model here has fp8 weights yet"},
                {"mxfp4_gemm", "no model here keeps weights of four bits"},
                {"grouped_gemm", "no model here has experts yet"},
                {"grouped_gemm_masked", "no model here leaves room for rows"}};

static bool ran[MODELS][MOST_VARIANTS], is_called[MODELS][MOST_OPS];
static char reason[MODELS][MOST_VARIANTS][240];

static bool of_op(int32_t v, const char *op) {
  const assay_variant *variant = assay_variant_at(v);
  return strcmp(variant->op, op) == 0 && strcmp(variant->device, "simt") == 0;
}

static int64_t calls_of(const int64_t *of, const char *op) {
  int64_t n = 0;
  for (int32_t v = 0; v < assay_variant_count(); ++v)
    n += of_op(v, op) ? of[v] : 0;
  return n;
}

/* Does it claim a mode of that kind? Operators without modes take both. */
static bool claims_kind(const assay_variant *variant, bool decode) {
  int bars = 0;
  for (const char *at = variant->claims; *at != '\0'; ++at)
    bars += *at == '|';
  if (bars < 3) return true;
  const char *modes = strrchr(variant->claims, '|') + 1;
  return decode ? strstr(modes, "decode") != NULL : strcmp(modes, "decode") != 0;
}

/* Writes "op=variant", then the variants that the automatic choice took where it claims no such call. */
static void write_word(char *word, size_t size, int32_t v, const calls *usual) {
  const assay_variant *variant = assay_variant_at(v);
  int used = snprintf(word, size, "%s=%s", variant->op, variant->name);
  for (int kind = 0; kind < 2; ++kind) {
    const int64_t *taken = kind ? usual->decode : usual->prefill;
    for (int32_t o = 0; o < assay_variant_count() && !claims_kind(variant, kind != 0); ++o)
      if (o != v && of_op(o, variant->op) && taken[o] > 0)
        used += snprintf(word + used, size - (size_t)used, ",%s", assay_variant_at(o)->name);
  }
}

static void force(int model, const char *form, int32_t v, const calls *usual) {
  const assay_variant *variant = assay_variant_at(v);
  char word[200];
  calls counted;
  assay_status end;
  write_word(word, sizeof word, v, usual);
  const assay_status status = run(form, word, &counted, &end);
  if (status != ASSAY_OK) {
    cr_expect(status == ASSAY_ERR_UNSUPPORTED && strstr(error.text, variant->name) != NULL &&
                  strstr(error.text, "forced") != NULL,
              "%s, %s: %s", model_name[model], word, error.text);
    (void)snprintf(reason[model][v], sizeof reason[model][v], "%.239s", error.text);
    return;
  }
  const bool took = counted.prefill[v] + counted.decode[v] > 0;
  cr_expect_eq(end == ASSAY_OK || strstr(error.text, variant->name) == NULL, took, "%s, %s: %s", model_name[model],
               word, error.text);
  if (!took) {
    (void)snprintf(reason[model][v], sizeof reason[model][v], "the others of %.120s took all", word);
    return;
  }
  /* It has taken every call that it claims. */
  for (int32_t o = 0; o < assay_variant_count(); ++o)
    if (o != v && of_op(o, variant->op))
      cr_expect((counted.prefill[o] == 0 || !claims_kind(variant, false)) &&
                    (counted.decode[o] == 0 || !claims_kind(variant, true)),
                "%s, %s: %s took calls", model_name[model], word, assay_variant_at(o)->name);
  ran[model][v] = true;
}

/* Counts the variants that have not run yet, of operators that are called with the form. Those that are called without
 * it as well are looked at without it. */
static int64_t force_all(int model, int form) {
  static bool plain[MODELS][MOST_OPS];
  calls usual;
  assay_status end;
  int64_t left = 0;
  const char *word = usual_form[form];
  const assay_status status = run(word, NULL, &usual, &end);
  if (status == ASSAY_ERR_INPUT && strstr(error.text, "cannot have") != NULL) return 0;
  cr_assert_eq(status, ASSAY_OK, "%s, %s: %s", model_name[model], word != NULL ? word : "", error.text);
  cr_expect_eq(end, ASSAY_OK, "%s, %s: %s", model_name[model], word != NULL ? word : "", error.text);
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    const char *op = assay_op_at(o)->name;
    if (calls_of(usual.prefill, op) + calls_of(usual.decode, op) == 0) continue;
    plain[model][o] = plain[model][o] || form == 0;
    if (plain[model][o] && form > 0) continue;
    is_called[model][o] = true;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      if (of_op(v, op) && !ran[model][v]) force(model, word, v, &usual);
      left += of_op(v, op) && !ran[model][v];
    }
  }
  return left;
}

/* Each in one shape at least: no variant is an exception. */
Test(force, every_variant_of_what_a_model_calls_can_be_forced) {
  bool anywhere[MOST_OPS] = {false};
  cr_assert(assay_op_count() <= MOST_OPS && assay_variant_count() <= MOST_VARIANTS);
  for (int model = 0; model < MODELS; ++model) {
    int64_t left[FORMS] = {0};
    for (int shape = 0; shape < SHAPES; ++shape) {
      open_model(model, shape);
      for (int form = 0; form < FORMS; ++form)
        if (shape == 0 || left[form] > 0) left[form] = force_all(model, form);
      close_model();
    }
  }
  for (int model = 0; model < MODELS; ++model)
    for (int32_t o = 0; o < assay_op_count(); ++o) {
      anywhere[o] = anywhere[o] || is_called[model][o];
      for (int32_t v = 0; v < assay_variant_count() && is_called[model][o]; ++v) {
        const assay_variant *variant = assay_variant_at(v);
        if (of_op(v, assay_op_at(o)->name))
          cr_expect(ran[model][v], "%s: %s=%s never ran: %s", model_name[model], variant->op, variant->name,
                    reason[model][v]);
      }
    }
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    bool listed = false;
    for (size_t i = 0; i < sizeof uncalled / sizeof *uncalled; ++i)
      listed = listed || strcmp(uncalled[i].op, assay_op_at(o)->name) == 0;
    cr_expect_neq(anywhere[o], listed, "%s: %s", assay_op_at(o)->name, listed ? "called, but listed" : "never called");
  }
}

/* ---- an engine ------------------------------------------------------------------------------------------- */

/* A prompt and three tokens; what is said of the forces. */
static assay_status run_engine(const char *word, const char *form, bool eager, assay_engine **engine) {
  const assay_model_options model = {.form = &form, .forms = form != NULL, .variant = &word, .variants = word != NULL};
  const assay_engine_options options = {
      .device = "simt", .num_blocks = 8, .max_batch = 2, .max_tokens = 16, .eager = eager, .model = &model};
  assay_engine_part part = {.tokens = PROMPT};
  error.text[0] = '\0';
  assay_status status = assay_engine_open(&c, &w, &options, engine, &error);
  if (status == ASSAY_OK) status = assay_engine_request(*engine, ids, PROMPT, NULL, &part.request, NULL, &error);
  for (int t = 0; t < 4 && status == ASSAY_OK; ++t) {
    status = assay_engine_step(*engine, &part, 1, &error);
    part.tokens = 1;
  }
  if (status == ASSAY_OK) status = assay_engine_wait(*engine, &error);
  return status == ASSAY_OK ? assay_engine_check_forced(*engine, &error) : status;
}

static int64_t engine_calls(const assay_engine *e, int32_t v) {
  assay_model_path path;
  int64_t n = 0;
  for (int32_t i = 0; assay_engine_path(e, i, &path); ++i)
    n += number_of(&path) == v ? path.calls : 0;
  return n;
}

Test(force, every_sampler_can_be_forced) {
  int32_t found = 0;
  open_model(QWEN3, 0);
  for (int32_t v = 0; v < assay_variant_count(); ++v)
    for (int eager = 0; eager < 2 && of_op(v, "sampler"); ++eager) {
      char word[80];
      assay_engine *e = NULL;
      (void)snprintf(word, sizeof word, "sampler=%s", assay_variant_at(v)->name);
      cr_expect_eq(run_engine(word, NULL, eager != 0, &e), ASSAY_OK, "%s: %s", word, error.text);
      cr_expect_eq(engine_calls(e, v), 4, "%s", word);
      assay_engine_close(e);
      ++found;
    }
  cr_expect_geq(found, 4);
  close_model();
}

/* ---- what cannot be -------------------------------------------------------------------------------------- */

/* The status and parts of the text from a run by calls, an engine that goes call by call, and one with graphs. */
static void expect_all(const char *word, const char *form, assay_status wanted, const char *says, const char *also) {
  calls counted;
  assay_status end;
  const assay_status status = run(form, word, &counted, &end);
  cr_expect_eq(status != ASSAY_OK ? status : end, wanted, "%s %s: %s", word, form, error.text);
  cr_expect(strstr(error.text, says) != NULL && strstr(error.text, also) != NULL, "%s", error.text);
  for (int eager = 0; eager < 2; ++eager) {
    assay_engine *e = NULL;
    cr_expect_eq(run_engine(word, form, eager != 0, &e), wanted, "%s %s: %s", word, form, error.text);
    cr_expect(strstr(error.text, says) != NULL && strstr(error.text, also) != NULL, "%s", error.text);
    assay_engine_close(e);
  }
}

Test(force, a_list_takes_what_its_first_declines) {
  open_model(ASYNCT, 0); /* f32: no tensor cores */
  expect_all("gate_attention=decode_rows,prefill_as_decode", NULL, ASSAY_OK, "", "");
  expect_all("gate_attention=prefill_as_decode,decode_rows", NULL, ASSAY_OK, "", "");
  /* Every one says why it does not. */
  expect_all("gate_attention=decode_rows", NULL, ASSAY_ERR_UNSUPPORTED,
             "the forced variant does not take the call; decode_rows: cu_q: found a tensor", "");
  expect_all("gate_attention=prefill_as_decode,mma", NULL, ASSAY_ERR_UNSUPPORTED,
             "none of the forced variants takes the call; prefill_as_decode: cu_q: found no data", "; mma: ");
  /* Words of one operator are one list. */
  const char *const words[] = {"gate_attention=decode_rows", "gate_attention=prefill_as_decode"};
  const assay_model_options options = {.variant = words, .variants = 2};
  model_driver d;
  driver_open_on(&d, assay_model_simt(), &c, &w, 8, 16, 4, ASSAY_MODEL_MIRROR);
  error.text[0] = '\0';
  cr_assert_eq(assay_model_simt()->set_options(d.session, &options, &error), ASSAY_OK, "%s", error.text);
  driver_add(&d, driver_request(&d, NULL, 0, NULL), ids, PROMPT, false);
  cr_expect_eq(step(&d), ASSAY_OK, "%s", error.text);
  driver_close(&d);
  close_model();
}

Test(force, what_no_call_took_is_an_error) {
  open_model(ASYNCT, 0);
  expect_all("softmax_attention=split_keys", NULL, ASSAY_ERR_INPUT, "no call of this run took it",
             "softmax_attention=split_keys (the operator was not called)");
  expect_all("mmha=row_and_head", NULL, ASSAY_ERR_INPUT, "no call of this run took it", "mmha=row_and_head");
  expect_all("gemm=tiles,skinny", NULL, ASSAY_ERR_INPUT, "no call of this run took it: gemm=skinny", "");
  expect_all(NULL, "append=on", ASSAY_OK, "", "");
  close_model();
}

/* A form that is on is the model's, and no other takes its calls. */
Test(force, a_form_that_a_model_cannot_have_is_refused) {
  static const struct {
    int model;
    const char *form, *says;
  } wrong[] = {
      {QWEN3, "mmha=on",
       "form mmha: found on, which this qwen3 model with qk_norm cannot have, allowed on: qk_norm, append"},
      {ASYNCT, "mmha=on", "this asynct model with qk_norm cannot have"},
      {GPT2, "mmha=on", "this gpt2 model cannot have, allowed on: append, add_norm, bias_gelu_new, bias_residual"},
      {GPT2, "rope_append=on",
       "form rope_append: found on, which this gpt2 model cannot have, allowed on: append, add_norm"},
      {GPT2, "qk_norm=on", "form qk_norm: found on, which this gpt2 model cannot have"},
      {LLAMA, "norm_rope_append=on",
       "form norm_rope_append: found on, which this qwen3 model cannot have, allowed on: append, mmha, rope_append"},
      {LLAMA, "qk_norm=on", "allowed on: append, mmha, rope_append, add_norm"},
      {QWEN3, "post_pre_uclip=on", "form post_pre_uclip: found on"},
      {ASYNCT, "bias_gelu_new=on", "form bias_gelu_new: found on"},
      {LLAMA, "bias_residual=on", "form bias_residual: found on"},
      {QWEN3, "grouped_gemm=on", "form grouped_gemm: found on, which this qwen3 model"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    open_model(wrong[i].model, 0);
    expect_all(NULL, wrong[i].form, ASSAY_ERR_INPUT, wrong[i].says, "");
    close_model();
  }
  const char *const both[][2] = {{"append=on", "mmha=on"},
                                 {"post_pre_uclip=on", "add_norm=on"},
                                 {"add_norm=on", "bias_residual=on"},
                                 {"gemm_seam=on", "post_pre_uclip=on"},
                                 {"norm_rope_append=on", "qk_norm=on"},
                                 {"rope_append=on", "norm_rope_append=on"}};
  static const int of[] = {LLAMA, ASYNCT, GPT2, ASYNCT, QWEN3, ASYNCT};
  for (int i = 0; i < 6; ++i) {
    const assay_model_options options = {.form = both[i], .forms = 2};
    model_driver d;
    open_model(of[i], 0);
    driver_open_on(&d, assay_model_simt(), &c, &w, 8, 16, 4, ASSAY_MODEL_MIRROR);
    error.text[0] = '\0';
    cr_expect_eq(assay_model_simt()->set_options(d.session, &options, &error), ASSAY_ERR_INPUT);
    cr_expect_not_null(strstr(error.text, "allowed one of them"), "%s", error.text);
    driver_close(&d);
    close_model();
  }
}

/* A new setting takes the place of the earlier one. */
Test(force, options_are_not_kept) {
  const char *first = "gemm=skinny", *form = "append=on";
  const assay_model_options old = {.form = &form, .forms = 1, .variant = &first, .variants = 1}, none = {.forms = 0};
  model_driver d;
  open_model(QWEN3, 0);
  driver_open_on(&d, assay_model_simt(), &c, &w, 8, 16, 4, ASSAY_MODEL_MIRROR);
  error.text[0] = '\0';
  cr_assert_eq(assay_model_simt()->set_options(d.session, &old, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_model_simt()->check_forced(d.session, &error), ASSAY_ERR_INPUT);
  cr_assert_eq(assay_model_simt()->set_options(d.session, &none, &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(assay_model_simt()->check_forced(d.session, &error), ASSAY_OK, "%s", error.text);
  driver_close(&d);
  close_model();
}
