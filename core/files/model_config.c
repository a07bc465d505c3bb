/* model_config.c: the configuration's fields as a table. */
#include "model_config.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum field_kind {
  FIELD_INTEGER,
  FIELD_REAL,
  FIELD_BOOL,
  FIELD_DTYPE,
  FIELD_ROPE,
  FIELD_KIND,
  FIELD_LAYERS
} field_kind;

typedef struct field_row {
  const char *name;
  field_kind kind;
  size_t at;
  bool required;
} field_row;

#define AT(field) offsetof(assay_model_config, field)

static const field_row fields[] = {
    {"layers", FIELD_INTEGER, AT(layers), true},
    {"hidden", FIELD_INTEGER, AT(hidden), true},
    {"heads", FIELD_INTEGER, AT(heads), true},
    {"kv_heads", FIELD_INTEGER, AT(kv_heads), true},
    {"head_size", FIELD_INTEGER, AT(head_size), true},
    {"intermediate", FIELD_INTEGER, AT(intermediate), true},
    {"vocab", FIELD_INTEGER, AT(vocab), true},
    {"max_pos", FIELD_INTEGER, AT(max_pos), true},
    {"eps", FIELD_REAL, AT(eps), false},
    {"rope_style", FIELD_ROPE, AT(rope_style), false},
    {"rope_base", FIELD_REAL, AT(rope_base), false},
    {"rotated", FIELD_INTEGER, AT(rotated), false},
    {"rope_kind", FIELD_KIND, AT(rope_kind), false},
    {"rope_factor", FIELD_REAL, AT(rope_factor), false},
    {"rope_original", FIELD_REAL, AT(rope_original), false},
    {"rope_beta_fast", FIELD_REAL, AT(rope_beta_fast), false},
    {"rope_beta_slow", FIELD_REAL, AT(rope_beta_slow), false},
    {"rope_concentration", FIELD_REAL, AT(rope_concentration), false},
    {"rope_truncate", FIELD_BOOL, AT(rope_truncate), false},
    {"rope_low", FIELD_REAL, AT(rope_low), false},
    {"rope_high", FIELD_REAL, AT(rope_high), false},
    {"qk_norm", FIELD_BOOL, AT(qk_norm), false},
    {"tied_head", FIELD_BOOL, AT(tied_head), false},
    {"qkv_bias", FIELD_BOOL, AT(qkv_bias), false},
    {"proj_bias", FIELD_BOOL, AT(proj_bias), false},
    {"mlp_bias", FIELD_BOOL, AT(mlp_bias), false},
    {"norm_bias", FIELD_BOOL, AT(norm_bias), false},
    {"alpha_per_channel", FIELD_BOOL, AT(alpha_per_channel), false},
    {"gamma_per_channel", FIELD_BOOL, AT(gamma_per_channel), false},
    {"gate_taps", FIELD_INTEGER, AT(gate_taps), false},
    {"gate_sigma", FIELD_REAL, AT(gate_sigma), false},
    {"gate_lo", FIELD_REAL, AT(gate_lo), false},
    {"gate_hi", FIELD_REAL, AT(gate_hi), false},
    {"gate_relu_pre", FIELD_BOOL, AT(gate_relu_pre), false},
    {"experts", FIELD_INTEGER, AT(experts), false},
    {"experts_used", FIELD_INTEGER, AT(experts_used), false},
    {"expert_size", FIELD_INTEGER, AT(expert_size), false},
    {"renormalise", FIELD_BOOL, AT(renormalise), false},
    {"groups", FIELD_INTEGER, AT(groups), false},
    {"groups_used", FIELD_INTEGER, AT(groups_used), false},
    {"shared_size", FIELD_INTEGER, AT(shared_size), false},
    {"route_scale", FIELD_REAL, AT(route_scale), false},
    {"q_rank", FIELD_INTEGER, AT(q_rank), false},
    {"kv_rank", FIELD_INTEGER, AT(kv_rank), false},
    {"value_size", FIELD_INTEGER, AT(value_size), false},
    {"linear", FIELD_LAYERS, AT(linear), false},
    {"linear_key_heads", FIELD_INTEGER, AT(linear_key_heads), false},
    {"linear_value_heads", FIELD_INTEGER, AT(linear_value_heads), false},
    {"linear_key_size", FIELD_INTEGER, AT(linear_key_size), false},
    {"linear_value_size", FIELD_INTEGER, AT(linear_value_size), false},
    {"conv_taps", FIELD_INTEGER, AT(conv_taps), false},
    {"sparse", FIELD_LAYERS, AT(sparse), false},
    {"act_limit", FIELD_REAL, AT(act_limit), false},
    {"window", FIELD_INTEGER, AT(window), false},
    {"windowed", FIELD_LAYERS, AT(windowed), false},
    {"score_scale", FIELD_REAL, AT(score_scale), false},
    {"score_cap", FIELD_REAL, AT(score_cap), false},
    {"logit_cap", FIELD_REAL, AT(logit_cap), false},
    {"weight_dtype", FIELD_DTYPE, AT(weight_dtype), false},
    {"act_dtype", FIELD_DTYPE, AT(act_dtype), false},
    {"fp8_weights", FIELD_BOOL, AT(fp8_weights), false},
    {"kv_dtype", FIELD_DTYPE, AT(kv_dtype), false},
    {"block_size", FIELD_INTEGER, AT(block_size), false},
};
enum { FIELDS = sizeof fields / sizeof *fields };

const char *model_config_required(int32_t index) {
  for (int i = 0; i < FIELDS; ++i)
    if (fields[i].required && index-- == 0) return fields[i].name;
  return NULL;
}

static assay_status refuse(const field_row *row, const char *text, const char *allowed, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.40s', allowed %s", row->name, text, allowed);
}

static assay_status set_dtype(const field_row *row, const char *text, assay_dtype *dtype, assay_error *error) {
  for (int d = ASSAY_F32; d <= ASSAY_E5M2; ++d)
    if (strcmp(assay_dtype_name((assay_dtype)d), text) == 0) {
      *dtype = (assay_dtype)d;
      return ASSAY_OK;
    }
  return refuse(row, text, "f32, f16, bf16; kv_dtype also e4m3, e5m2", error);
}

static assay_status set_rope(const field_row *row, const char *text, assay_rope_style *style, assay_error *error) {
  for (int s = 0; s < ASSAY_ROPE_COUNT; ++s)
    if (strcmp(assay_rope_style_name((assay_rope_style)s), text) == 0) {
      *style = (assay_rope_style)s;
      return ASSAY_OK;
    }
  return refuse(row, text, "neox, interleaved", error);
}

static assay_status set_kind(const field_row *row, const char *text, assay_rope_kind *kind, assay_error *error) {
  for (int k = 0; k < ASSAY_ROPE_KINDS; ++k)
    if (strcmp(assay_rope_kind_name((assay_rope_kind)k), text) == 0) {
      *kind = (assay_rope_kind)k;
      return ASSAY_OK;
    }
  return refuse(row, text, "plain, yarn, llama3", error);
}

/* Reads "all", "none", "even", "odd", or the numbers of layers with blanks between them. */
static assay_status set_layers(const field_row *row, const char *text, assay_model_layers *set, assay_error *error) {
  static const struct {
    const char *name;
    uint64_t bits;
  } words[] = {{"all", UINT64_MAX}, {"none", 0}, {"even", UINT64_MAX / 3}, {"odd", UINT64_MAX / 3 * 2}};
  for (size_t w = 0; w < sizeof words / sizeof *words; ++w)
    if (strcmp(words[w].name, text) == 0) {
      for (int i = 0; i < ASSAY_MODEL_MAX_LAYERS / 64; ++i)
        set->bits[i] = words[w].bits;
      return ASSAY_OK;
    }
  memset(set, 0, sizeof *set);
  for (const char *at = text; *at != '\0';) {
    char *end = NULL;
    const long layer = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
    if (layer < 0 || layer >= ASSAY_MODEL_MAX_LAYERS || (*end != ' ' && *end != '\0'))
      return refuse(row, text, "all, none, even, odd, or layers from 0 to 1023 with blanks between them", error);
    set->bits[layer / 64] |= (uint64_t)1 << (layer % 64);
    at = end + (*end == ' ');
  }
  return ASSAY_OK;
}

static assay_status set_number(const field_row *row, const char *text, void *at, assay_error *error) {
  char *end = NULL;
  errno = 0;
  if (row->kind == FIELD_INTEGER) {
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0) return refuse(row, text, "a whole number", error);
    *(int64_t *)at = value;
    return ASSAY_OK;
  }
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= -1e300 && value <= 1e300)) return refuse(row, text, "a number", error);
  *(double *)at = value;
  return ASSAY_OK;
}

assay_status model_config_set(assay_model_config *config, const char *field, const char *text, assay_error *error) {
  const field_row *row = NULL;
  for (int i = 0; i < FIELDS; ++i)
    if (strcmp(fields[i].name, field) == 0) row = &fields[i];
  if (row == NULL) {
    char names[1200] = "arch";
    for (int i = 0; i < FIELDS; ++i) {
      const size_t used = strlen(names);
      (void)snprintf(names + used, sizeof names - used, ", %s", fields[i].name);
    }
    return assay_fail(error, ASSAY_ERR_INPUT, "field '%.40s' is unknown, allowed: %s", field, names);
  }
  void *at = (char *)config + row->at;
  switch (row->kind) {
  case FIELD_BOOL:
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return refuse(row, text, "true, false", error);
    *(bool *)at = text[0] == 't';
    return ASSAY_OK;
  case FIELD_DTYPE:
    return set_dtype(row, text, at, error);
  case FIELD_ROPE:
    return set_rope(row, text, at, error);
  case FIELD_KIND:
    return set_kind(row, text, at, error);
  case FIELD_LAYERS:
    return set_layers(row, text, at, error);
  case FIELD_INTEGER:
  case FIELD_REAL:
    break;
  }
  return set_number(row, text, at, error);
}

assay_status model_config_start(assay_model_config *config, const char *arch, assay_error *error) {
  for (int a = 0; a < ASSAY_ARCH_COUNT; ++a)
    if (strcmp(assay_model_arch_name((assay_model_arch)a), arch) == 0) {
      *config = assay_model_production((assay_model_arch)a);
      return ASSAY_OK;
    }
  return assay_fail(
      error, ASSAY_ERR_INPUT,
      "arch: found '%.40s', allowed gpt2, qwen3, asynct, qwen3_moe, gpt_oss, gemma2, deepseek_v3, qwen3_next", arch);
}

/* Writes the numbers of the layers with blanks between them, or "none". */
static void write_layers(FILE *to, const assay_model_layers *set) {
  bool any = false;
  (void)fputc('"', to);
  for (int64_t l = 0; l < ASSAY_MODEL_MAX_LAYERS; ++l)
    if (assay_model_layer_in(set, l)) {
      (void)fprintf(to, "%s%lld", any ? " " : "", (long long)l);
      any = true;
    }
  (void)fputs(any ? "\"" : "none\"", to);
}

void model_config_write(FILE *to, const assay_model_config *config) {
  (void)fprintf(to, "\"arch\":\"%s\"", assay_model_arch_name(config->arch));
  for (int i = 0; i < FIELDS; ++i) {
    const void *at = (const char *)config + fields[i].at;
    (void)fprintf(to, ",\"%s\":", fields[i].name);
    switch (fields[i].kind) {
    case FIELD_INTEGER:
      (void)fprintf(to, "%lld", (long long)*(const int64_t *)at);
      break;
    case FIELD_REAL:
      (void)fprintf(to, "%.17g", *(const double *)at);
      break;
    case FIELD_BOOL:
      (void)fputs(*(const bool *)at ? "true" : "false", to);
      break;
    case FIELD_DTYPE:
      (void)fprintf(to, "\"%s\"", assay_dtype_name(*(const assay_dtype *)at));
      break;
    case FIELD_ROPE:
      (void)fprintf(to, "\"%s\"", assay_rope_style_name(*(const assay_rope_style *)at));
      break;
    case FIELD_KIND:
      (void)fprintf(to, "\"%s\"", assay_rope_kind_name(*(const assay_rope_kind *)at));
      break;
    case FIELD_LAYERS:
      write_layers(to, at);
      break;
    }
  }
}
