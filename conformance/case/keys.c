/* keys.c: the table of keys; reading and printing one value. */
#include "keys.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "sections.h"

#define FIELD(field)      offsetof(assay_case, field)
#define FIELD_SIZE(field) sizeof(((const assay_case *)NULL)->field)
#define INT_KEY(key, field, low, high, standard, who, text)                                                            \
  {                                                                                                                    \
    .name = key, .kind = KEY_INTEGER, .min = low, .max = high, .fallback = standard, .multiple = 1,                    \
    .store = STORE_I32, .at = FIELD(field), .shown = who, .doc = text                                                  \
  }
#define REAL_KEY(key, field, low, high, standard, who, text)                                                           \
  {                                                                                                                    \
    .name = key, .kind = KEY_REAL, .min = low, .max = high, .fallback = standard, .multiple = 1, .store = STORE_F64,   \
    .at = FIELD(field), .shown = who, .doc = text                                                                      \
  }
#define ENUM_KEY(key, field, list, standard, printed, who, text)                                                       \
  {                                                                                                                    \
    .name = key, .kind = KEY_ENUM, .names = list, .fallback = standard, .multiple = 1, .store = STORE_I32,             \
    .at = FIELD(field), .always = printed, .shown = who, .doc = text                                                   \
  }
#define TEXT_KEY(key, field, text)                                                                                     \
  { .name = key, .kind = KEY_TEXT, .store = STORE_TEXT, .at = FIELD(field), .size = FIELD_SIZE(field), .doc = text }

/* Enum fields are stored through int32_t. */
_Static_assert(sizeof(case_section) == 4 && sizeof(assay_values) == 4 && sizeof(assay_dtype) == 4 &&
                   sizeof(assay_magnitude) == 4,
               "enums are 32 bits");

static const case_key head[] = {
    TEXT_KEY("suite", suite, "file stem of the suite"),
    ENUM_KEY("section", section, SECTION_NAMES, SECTION_CHECK, true, SHOWN_ALWAYS, "section of the suite"),
    TEXT_KEY("name", name, "name of the item"),
    TEXT_KEY("variant", variant, "the implementation that runs it"),
    TEXT_KEY("device", device, "where it runs"),
    ENUM_KEY("tier", tier, "exact,calibrated", TIER_CALIBRATED, true, SHOWN_ALWAYS, "how the result is judged"),
    ENUM_KEY("mode", mode, "decode,prefill,chunked,mixed", MODE_DECODE, true, SHOWN_PAGED, "shape of the batch"),
    {.name = "dtype",
     .kind = KEY_ENUM,
     .names = "f32,f16,bf16",
     .fallback = 2,
     .multiple = 1,
     .store = STORE_DTYPE,
     .always = true,
     .doc = "q and out"},
    {.name = "kv_dtype",
     .kind = KEY_ENUM,
     .names = "same,f32,f16,bf16,e4m3,e5m2",
     .fallback = 0,
     .multiple = 1,
     .store = STORE_KV_DTYPE,
     .always = true,
     .doc = "K and V cache; same: that of q",
     .shown = SHOWN_PAGED},
    {.name = "out_dtype",
     .kind = KEY_ENUM,
     .names = "same,f32,f16,bf16",
     .fallback = 0,
     .multiple = 1,
     .store = STORE_OUT_DTYPE,
     .doc = "the result, where the operator leaves a choice",
     .shown = SHOWN_OUT_DTYPE},
    ENUM_KEY("values", values, "normal,heavy_tailed,lattice,needles", ASSAY_NORMAL, true, SHOWN_PLAIN_VALUES,
             "what the inputs hold"),
    ENUM_KEY("values", values, "normal,heavy_tailed,lattice,needles,special", ASSAY_NORMAL, true, SHOWN_SPECIAL_VALUES,
             "what the inputs hold"),
};

static const case_key tail[] = {
    ENUM_KEY("tables", tables, "identity,shuffled,huge,last", TABLES_SHUFFLED, false, SHOWN_PAGED,
             "numbering of physical blocks; huge: addresses beyond 2^31 elements; last: the largest numbers"),
    ENUM_KEY("dead", dead, "nan,inf,largest,stale,zero", DEAD_NAN, false, SHOWN_ALWAYS, "dead bytes of the first run"),
    ENUM_KEY("magnitude", magnitude, "usual,small,large,mixed", ASSAY_USUAL, false, SHOWN_ALWAYS,
             "of floating arguments: subnormal, up to the largest, or side by side"),
    REAL_KEY("sigma", sigma, 0, 64, 0.75, SHOWN_TAPS, "taps: w_0 = 1 - sigma/F, the others -sigma/F"),
    REAL_KEY("tap_skew", tap_skew, -1, 1, 0, SHOWN_TAPS, "w_j += tap_skew * j"),
    REAL_KEY("density", density, -1, 1, -1, SHOWN_PAGED, "wanted share of live keys; -1: chance"),
    INT_KEY("cluster", cluster, 1, 65536, 1, SHOWN_PAGED,
            "with a density: so many keys side by side live or die together"),
    INT_KEY("q_pad", q_pad, 0, 65536, 0, SHOWN_Q_PAD, "elements between rows of q, and of new k and v"),
    INT_KEY("row_pad", row_pad, 0, 65536, 0, SHOWN_ROW_PAD,
            "elements between rows of the arguments whose rows may lie apart"),
    INT_KEY("kv_pad", kv_pad, -1, 65536, 0, SHOWN_PAGED,
            "elements after every block (with cu_k: row); -1 or interleaved: K and V block by block"),
    INT_KEY("rows", rows, 0, 1 << 20, 0, SHOWN_ROWS, "rows judged; 0: all"),
    ENUM_KEY("break", broken,
             "nothing,null,misaligned,dtype,shape,stride,negative,overflow,extra,workspace,workspace_null",
             BREAK_NOTHING, false, SHOWN_ALWAYS, "what a refuse case breaks"),
    ENUM_KEY("argument", argument, "usual", 0, false, SHOWN_ARGUMENTS, "the argument that is broken"),
    TEXT_KEY("expect", expect, "the name a refusal must contain"),
    {.name = "kv_len",
     .kind = KEY_LENGTHS,
     .min = 0,
     .max = KEY_MAX_LENGTH,
     .multiple = 1,
     .store = STORE_LIST,
     .at = FIELD(kv_len),
     .always = true,
     .doc = "L of each request, new tokens included",
     .shown = SHOWN_PAGED},
    {.name = "new",
     .kind = KEY_LENGTHS,
     .min = 0,
     .max = KEY_MAX_LENGTH,
     .multiple = 1,
     .store = STORE_LIST,
     .at = FIELD(new_len),
     .doc = "T of each request",
     .shown = SHOWN_PAGED},
    {.name = "share",
     .kind = KEY_SHARE,
     .store = STORE_LIST,
     .at = FIELD(share_with),
     .doc = "earlier request and number of tokens shared with it",
     .shown = SHOWN_PAGED},
    {.name = "seed", .kind = KEY_SEED, .store = STORE_U64, .at = FIELD(seed), .always = true, .doc = "of all values"},
};

enum { HEAD = sizeof head / sizeof head[0], TAIL = sizeof tail / sizeof tail[0] };

static bool has_content(const assay_op *op, assay_content content) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == content) return true;
  return false;
}

static bool has_strided(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].strided) return true;
  return false;
}

static bool has_out_dtype(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].dtypes[0] == '=' && strchr(op->args[i].dtypes, ',') != NULL) return true;
  return false;
}

/* Tells whether the key has a meaning for this operator. */
static bool is_shown(const assay_op *op, const case_key *key) {
  switch (key->shown) {
  case SHOWN_ALWAYS:
  case SHOWN_ARGUMENTS:
    break;
  case SHOWN_PAGED:
    return op->form == ASSAY_PAGED;
  case SHOWN_ROWS:
    return op->form == ASSAY_PAGED || op->row_dim != NULL;
  case SHOWN_TAPS:
    return has_content(op, ASSAY_TAPS);
  case SHOWN_Q_PAD:
    return op->form == ASSAY_PAGED && has_strided(op);
  case SHOWN_ROW_PAD:
    return op->form == ASSAY_PLAIN && has_strided(op);
  case SHOWN_OUT_DTYPE:
    return op->form == ASSAY_PLAIN && has_out_dtype(op);
  case SHOWN_PLAIN_VALUES:
    return !op->takes_special;
  case SHOWN_SPECIAL_VALUES:
    return op->takes_special;
  }
  return true;
}

/* Returns "usual,q,k_cache,...". The text is made once per operator, so that a key may keep the pointer. */
static const char *argument_names(const assay_op *op) {
  enum { OPS = 64, LONGEST = 512 };
  static _Thread_local struct {
    const assay_op *op;
    char names[LONGEST];
  } kept[OPS];
  for (int32_t k = 0; k < OPS; ++k) {
    if (kept[k].op == op) return kept[k].names;
    if (kept[k].op != NULL) continue;
    kept[k].op = op;
    size_t used = (size_t)snprintf(kept[k].names, LONGEST, "usual");
    for (int32_t i = 0; i < op->arg_count && used < LONGEST; ++i)
      used += (size_t)snprintf(kept[k].names + used, LONGEST - used, ",%s", op->args[i].name);
    return kept[k].names;
  }
  return "usual";
}

/* Tells whether the first argument with a list of types takes e4m3. */
static bool takes_e4m3(const assay_op *op) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].dtypes[0] != '=' && strchr(op->args[i].dtypes, ',') != NULL)
      return strstr(op->args[i].dtypes, "e4m3") != NULL;
  return false;
}

static case_key head_key(const assay_op *op, int32_t index) {
  case_key key = head[index];
  if (key.store == STORE_DTYPE && takes_e4m3(op)) key.names = "f32,f16,bf16,e4m3";
  return key;
}

static case_key tail_key(const assay_op *op, int32_t index) {
  case_key key = tail[index];
  if (key.shown == SHOWN_ARGUMENTS) key.names = argument_names(op);
  return key;
}

static bool is_settable(const assay_dim *dim) {
  return dim->max != 0;
}

/* Tells whether a case may choose to give the argument. The scales and cu_q follow from kv_dtype and mode, the block
 * table from cu_k. mask_ptr comes with mask. */
static bool is_choice(const assay_arg *arg) {
  return arg->optional && arg->content != ASSAY_KV_SCALE && arg->content != ASSAY_CU_Q &&
         arg->content != ASSAY_BLOCK_TABLE && strcmp(arg->name, "mask_ptr") != 0;
}

static case_key dim_key(const assay_dim *dim, int32_t index) {
  return (case_key){.name = dim->name,
                    .kind = KEY_INTEGER,
                    .min = (double)dim->min,
                    .max = (double)dim->max,
                    .fallback = (double)dim->fallback,
                    .multiple = dim->multiple > 0 ? dim->multiple : 1,
                    .store = STORE_DIM,
                    .at = (size_t)index,
                    .always = dim->fallback != 0, /* 0: follows from another dimension */
                    .doc = dim->doc};
}

static case_key param_key(const assay_param *param, int32_t index) {
  static const key_kind kinds[] = {
      [ASSAY_REAL] = KEY_REAL, [ASSAY_INTEGER] = KEY_INTEGER, [ASSAY_BOOL] = KEY_BOOL, [ASSAY_ENUM] = KEY_ENUM};
  return (case_key){.name = param->name,
                    .kind = kinds[param->kind],
                    .min = param->min,
                    .max = param->max,
                    .fallback = param->fallback,
                    .multiple = 1,
                    .names = param->names,
                    .store = STORE_PARAM,
                    .at = (size_t)index,
                    .always = param->kind == ASSAY_ENUM,
                    .doc = param->doc};
}

/* Walks the keys in order, up to number `index` or, if given, up to the key called `name`. Returns the number of the
 * key found, else -1; only then does `count` receive the number of all keys. */
static int32_t walk(const assay_op *op, int32_t index, const char *name, case_key *found, int32_t *count) {
  int32_t n = 0;
#define VISIT(key)                                                                                                     \
  do {                                                                                                                 \
    const case_key visited = (key);                                                                                    \
    if (n == index || (name != NULL && strcmp(visited.name, name) == 0)) {                                             \
      if (found != NULL) *found = visited;                                                                             \
      return n;                                                                                                        \
    }                                                                                                                  \
    ++n;                                                                                                               \
  } while (0)
  for (int32_t i = 0; i < HEAD; ++i)
    if (is_shown(op, &head[i])) VISIT(head_key(op, i));
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (is_settable(&op->dims[i])) VISIT(dim_key(&op->dims[i], i));
  for (int32_t i = 0; i < op->param_count; ++i)
    VISIT(param_key(&op->params[i], i));
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (is_choice(&op->args[i]))
      VISIT(((case_key){.name = op->args[i].name,
                        .kind = KEY_BOOL,
                        .max = 1,
                        .multiple = 1,
                        .store = STORE_PRESENT,
                        .at = (size_t)i,
                        .doc = op->args[i].doc}));
  for (int32_t i = 0; i < TAIL; ++i)
    if (is_shown(op, &tail[i])) VISIT(tail_key(op, i));
#undef VISIT
  if (count != NULL) *count = n;
  return -1;
}

int32_t key_count(const assay_op *op) {
  int32_t count = 0;
  (void)walk(op, -1, NULL, NULL, &count);
  return count;
}

case_key key_at(const assay_op *op, int32_t index) {
  case_key key = {0};
  (void)walk(op, index, NULL, &key, NULL);
  return key;
}

int32_t key_find(const assay_op *op, const char *name) {
  return walk(op, -1, name, NULL, NULL);
}

void key_list(const assay_op *op, char *text, size_t size) {
  const int32_t count = key_count(op);
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < count && used < size; ++i)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", key_at(op, i).name);
}

/* ---- names of enums --------------------------------------------------------------------------------------- */

static int64_t index_of(const char *names, const char *word) {
  const size_t n = strlen(word);
  int64_t index = 0;
  for (const char *at = names;; ++index) {
    const size_t m = strcspn(at, ",");
    if (m == n && memcmp(at, word, n) == 0) return index;
    if (at[m] == '\0') return -1;
    at += m + 1;
  }
}

/* Keeps one terminated copy of every name met, so that callers may keep the pointer. */
static const char *intern(const char *text, size_t length) {
  enum { NAMES = 512, LONGEST = 32 };
  static _Thread_local char names[NAMES][LONGEST];
  if (length >= LONGEST) return NULL;
  for (int32_t i = 0; i < NAMES; ++i) {
    if (names[i][0] == '\0') memcpy(names[i], text, length);
    if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0) return names[i];
  }
  return NULL;
}

const char *key_name_of(const case_key *key, int64_t index) {
  const char *at = key->names;
  for (int64_t i = 0; i < index; ++i) {
    at += strcspn(at, ",");
    if (*at == '\0') return NULL;
    ++at;
  }
  return index < 0 ? NULL : intern(at, strcspn(at, ","));
}

/* ---- one value from text ---------------------------------------------------------------------------------- */

void key_print_real(double value, char *text, size_t size) {
  if (assay_is_nan(value)) {
    (void)snprintf(text, size, "nan");
    return;
  }
  for (int digits = 15; digits <= 17; ++digits) {
    (void)snprintf(text, size, "%.*g", digits, value);
    if (!(strtod(text, NULL) < value) && !(strtod(text, NULL) > value)) return;
  }
}

/* Returns the largest illegal dimension: a refuse case's tensors have that size. */
static double largest_refused(const case_key *key) {
  return key->max >= KEY_MAX_REFUSED_DIM ? 2 * key->max : KEY_MAX_REFUSED_DIM;
}

void key_allowed(const case_key *key, bool relaxed, char *text, size_t size) {
  size_t used = 0;
  char low[40], high[40];
  text[0] = '\0';
  switch (key->kind) {
  case KEY_BOOL:
    (void)snprintf(text, size, "true, false");
    return;
  case KEY_ENUM:
    for (int64_t i = (int64_t)key->min;; ++i) {
      const char *name = key_name_of(key, i);
      if (name == NULL || used >= size) return;
      used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", name);
    }
  case KEY_INTEGER:
  case KEY_REAL:
  case KEY_LENGTHS:
    if (relaxed && key->store == STORE_DIM) {
      key_print_real(largest_refused(key), high, sizeof high);
      (void)snprintf(text, size, "1 to %s (section refuse)", high);
      return;
    }
    if (relaxed && key->store == STORE_PARAM) {
      (void)snprintf(text, size, "any %s (section refuse)", key->kind == KEY_INTEGER ? "integer" : "number");
      return;
    }
    key_print_real(key->min, low, sizeof low);
    key_print_real(key->max, high, sizeof high);
    used = (size_t)snprintf(text, size, "%s to %s", low, high);
    if (key->multiple > 1 && used < size)
      (void)snprintf(text + used, size - used, ", multiples of %" PRId64, key->multiple);
    return;
  case KEY_TEXT:
    (void)snprintf(text, size, "1 to %zu letters, digits and _@.:/+-", key->size - 1);
    return;
  case KEY_SEED:
    (void)snprintf(text, size, "0 to 18446744073709551615, or 0x and up to 16 hexadecimal digits");
    return;
  case KEY_SHARE:
    (void)snprintf(text, size, "- or EARLIER:TOKENS");
    return;
  }
}

static assay_status refuse(const case_key *key, const char *text, bool relaxed, assay_error *error) {
  char allowed[256];
  key_allowed(key, relaxed, allowed, sizeof allowed);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.80s', allowed %s", key->name, text, allowed);
}

/* Reads a decimal number: digits, one sign before them; no blanks, hexadecimal digits or suffix. */
static bool integer_from(const char *text, int64_t *value) {
  const char *digits = text + (text[0] == '-');
  char *end = NULL;
  if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) return false;
  errno = 0;
  *value = strtoll(text, &end, 10);
  return errno == 0 && *end == '\0' && *value >= -(INT64_C(1) << 53) && *value <= (INT64_C(1) << 53);
}

static bool real_from(const char *text, bool relaxed, double *value) {
  static const char *const special[] = {"nan", ".nan", ".NaN", "inf", ".inf", "-inf", "-.inf"};
  for (size_t i = 0; i < sizeof special / sizeof special[0]; ++i)
    if (relaxed && strcmp(text, special[i]) == 0) {
      *value = i < 3 ? (double)NAN : i < 5 ? (double)INFINITY : -(double)INFINITY;
      return true;
    }
  char *end = NULL;
  if (*text == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
  *value = strtod(text, &end);
  return *end == '\0' && assay_is_finite(*value);
}

assay_status key_from_text(const case_key *key, const char *text, bool relaxed, double *value, assay_error *error) {
  const bool free_range = relaxed && key->store == STORE_PARAM;
  int64_t whole = 0;
  switch (key->kind) {
  case KEY_BOOL:
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) break;
    *value = strcmp(text, "true") == 0;
    return ASSAY_OK;
  case KEY_ENUM:
    whole = index_of(key->names, text);
    if (whole < (int64_t)key->min) break;
    *value = (double)whole;
    return ASSAY_OK;
  case KEY_INTEGER:
  case KEY_LENGTHS:
    if (key->at == FIELD(kv_pad) && key->store == STORE_I32 && strcmp(text, "interleaved") == 0) {
      *value = -1;
      return ASSAY_OK;
    }
    if (!integer_from(text, &whole)) break;
    if (relaxed && key->store == STORE_DIM) {
      if (whole < 1 || (double)whole > largest_refused(key)) break;
    } else if (!free_range && ((double)whole < key->min || (double)whole > key->max || whole % key->multiple != 0)) {
      break;
    }
    *value = (double)whole;
    return ASSAY_OK;
  case KEY_REAL:
    if (!real_from(text, free_range, value)) break;
    if (!free_range && !(*value >= key->min && *value <= key->max)) break;
    return ASSAY_OK;
  case KEY_TEXT:
  case KEY_SEED:
  case KEY_SHARE:
    break;
  }
  return refuse(key, text, relaxed, error);
}

assay_status key_seed_from_text(const char *name, const char *text, uint64_t *value, assay_error *error) {
  const bool hex = text[0] == '0' && text[1] == 'x';
  const char *digits = hex ? text + 2 : text;
  const size_t n = strlen(digits);
  errno = 0;
  if (n > 0 && n <= 20 && strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789") == n) {
    *value = strtoull(digits, NULL, hex ? 16 : 10);
    if (errno == 0) return ASSAY_OK;
  }
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "%s: found '%.80s', allowed 0 to 18446744073709551615, or 0x and up to 16 hexadecimal digits", name,
                    text);
}

assay_status key_text_check(const case_key *key, const char *text, assay_error *error) {
  const size_t n = strlen(text);
  for (size_t i = 0; i < n; ++i) {
    const char c = text[i];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("_@.:/+-", c) != NULL))
      return refuse(key, text, false, error);
  }
  return n > 0 && n < key->size ? ASSAY_OK : refuse(key, text, false, error);
}

/* ---- one value into and out of a case --------------------------------------------------------------------- */

static const assay_dtype dtype_of[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16, ASSAY_E4M3, ASSAY_E5M2};

void key_set(assay_case *one, const case_key *key, double value) {
  char *const base = (char *)one;
  const int32_t whole = key->store == STORE_F64 || key->store == STORE_PARAM ? 0 : (int32_t)value;
  switch (key->store) {
  case STORE_I32:
    memcpy(base + key->at, &whole, sizeof whole);
    break;
  case STORE_F64:
    memcpy(base + key->at, &value, sizeof value);
    break;
  case STORE_DIM:
    one->dim[key->at] = whole;
    break;
  case STORE_PARAM:
    one->param[key->at] = value;
    break;
  case STORE_PRESENT:
    one->present = (one->present & ~(UINT32_C(1) << key->at)) | (whole != 0 ? UINT32_C(1) << key->at : 0);
    break;
  case STORE_DTYPE: /* a cache, or a result, of the old type keeps being of the same type */
    if (one->kv_dtype == one->dtype) one->kv_dtype = dtype_of[whole];
    if (one->out_dtype == one->dtype) one->out_dtype = dtype_of[whole];
    one->dtype = dtype_of[whole];
    break;
  case STORE_KV_DTYPE:
    one->kv_dtype = whole == 0 ? one->dtype : dtype_of[whole - 1];
    break;
  case STORE_OUT_DTYPE:
    one->out_dtype = whole == 0 ? one->dtype : dtype_of[whole - 1];
    break;
  case STORE_TEXT:
  case STORE_U64:
  case STORE_LIST:
    break;
  }
}

/* Returns the value of a key whose names begin with "same": 0, or 1 + the index of the type; -1 for other types. */
static double same_or_index(assay_dtype dtype, assay_dtype same) {
  if (dtype == same) return 0;
  for (int32_t i = 0; i < 5; ++i)
    if (dtype_of[i] == dtype) return i + 1;
  return -1;
}

double key_get(const assay_case *one, const case_key *key) {
  const char *const base = (const char *)one;
  int32_t whole = 0;
  double value = 0;
  switch (key->store) {
  case STORE_I32:
    memcpy(&whole, base + key->at, sizeof whole);
    return whole;
  case STORE_F64:
    memcpy(&value, base + key->at, sizeof value);
    return value;
  case STORE_DIM:
    return (double)one->dim[key->at];
  case STORE_PARAM:
    return one->param[key->at];
  case STORE_PRESENT:
    return (one->present >> key->at) & 1;
  case STORE_DTYPE:
    for (int32_t i = 0; i < (int32_t)(sizeof dtype_of / sizeof dtype_of[0]); ++i)
      if (dtype_of[i] == one->dtype) return i;
    return -1;
  case STORE_KV_DTYPE:
    return same_or_index(one->kv_dtype, one->dtype);
  case STORE_OUT_DTYPE:
    return same_or_index(one->out_dtype, one->dtype);
  case STORE_TEXT:
  case STORE_U64:
  case STORE_LIST:
    break;
  }
  return 0;
}
