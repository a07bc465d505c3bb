/* explain.c: searches sum contracts: first on a few elements, then on all. */
#include "explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "assay/sums.h"
#include "conformance/text/text.h"
#include "core/files/bytes.h"
#include "core/json.h"

enum { PATH_ROOM = 4096, MOST_PARTS = 64, FEW = 4, MOST_ROWS = 64 };

typedef long long ll; /* for messages */

/* One recorded product. */
typedef struct record {
  char name[120];
  int64_t rows, columns; /* extents of the product that ran; the files may hold a part of it */
  npy_tensor a, b, c, scale_a, scale_b;
} record;

static void record_free(record *r) {
  npy_free(&r->a);
  npy_free(&r->b);
  npy_free(&r->c);
  npy_free(&r->scale_a);
  npy_free(&r->scale_b);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static assay_status read_tensor(const char *folder, const json_value *value, npy_tensor *to, assay_error *error) {
  const bool plain = value != NULL && value->kind == JSON_STRING;
  const char *const name = plain ? value->text : json_text(value, "file", NULL);
  char path[PATH_ROOM];
  if (name == NULL || name[0] == '\0' || name[0] == '/' || strstr(name, "..") != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "file: found '%.100s', allowed the name of a file in the folder",
                      name != NULL ? name : "nothing");
  (void)snprintf(path, sizeof path, "%.3000s/%.1000s", folder, name);
  const assay_status status = npy_read(path, plain ? NULL : json_text(value, "dtype", NULL), NULL, to, error);
  if (status == ASSAY_OK && to->rank != 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "%.100s: found %d axes, allowed 2", name, (int)to->rank);
  return status;
}

/* Reads an extent of the whole product, of which c may hold a part. */
static assay_status read_whole(const json_value *entry, const char *name, int64_t held, int64_t *to,
                               assay_error *error) {
  const double whole = json_number(entry, name, (double)held);
  if (!(whole >= (double)held && whole <= (double)INT32_MAX && whole == floor(whole)))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %g, allowed a whole number from %lld, those of c", name, whole,
                      (ll)held);
  *to = (int64_t)whole;
  return ASSAY_OK;
}

/* Reads a case. covered: NULL, or why its operator is not one of ours. */
static assay_status read_record(const char *folder, const json_value *entry, record *r, const char **covered,
                                assay_error *error) {
  const json_value *const in = json_member(entry, "inputs"), *const out = json_member(entry, "outputs");
  const json_value *const params = json_member(entry, "params");
  *r = (record){.name = ""};
  *covered = NULL;
  (void)snprintf(r->name, sizeof r->name, "%.100s", json_text(entry, "name", json_text(entry, "operator", "case")));
  if (strcmp(json_text(entry, "operator", ""), "gemm") != 0)
    *covered = "operator";
  else if (json_member(in, "bias") != NULL)
    *covered = "bias";
  else if (json_number(params, "alpha", 1) != 1 || json_number(params, "beta", 0) != 0)
    *covered = "alpha and beta";
  if (*covered != NULL) return ASSAY_OK;
  const json_value *const scale_a = json_member(in, "scale_a"), *const scale_b = json_member(in, "scale_b");
  assay_status status = read_tensor(folder, json_member(in, "a"), &r->a, error);
  if (status == ASSAY_OK) status = read_tensor(folder, json_member(in, "b"), &r->b, error);
  if (status == ASSAY_OK) status = read_tensor(folder, json_member(out, "c"), &r->c, error);
  if (status == ASSAY_OK && scale_a != NULL) status = read_tensor(folder, scale_a, &r->scale_a, error);
  if (status == ASSAY_OK && scale_b != NULL) status = read_tensor(folder, scale_b, &r->scale_b, error);
  if (status == ASSAY_OK && (r->c.shape[0] != r->a.shape[0] || r->c.shape[1] != r->b.shape[0]))
    return assay_fail(error, ASSAY_ERR_INPUT, "outputs: c: found [%lld, %lld], allowed [%lld, %lld]", (ll)r->c.shape[0],
                      (ll)r->c.shape[1], (ll)r->a.shape[0], (ll)r->b.shape[0]);
  if (status == ASSAY_OK) status = read_whole(entry, "rows", r->c.shape[0], &r->rows, error);
  return status == ASSAY_OK ? read_whole(entry, "columns", r->c.shape[1], &r->columns, error) : status;
}

/* ---- candidates ---------------------------------------------------------------------------------------- */

/* Returns row `row` of a file as a tensor of one row. */
static assay_tensor one_row(const npy_tensor *t, int64_t row) {
  assay_tensor made = {.data = NULL};
  if (t->data == NULL) return made;
  const int64_t width = t->shape[1];
  made = (assay_tensor){.data = t->data + row * width * npy_size(t->type),
                        .dtype = (assay_dtype)t->type,
                        .rank = 2,
                        .shape = {1, width},
                        .stride = {width, 1}};
  return made;
}

/* Tells whether a contract gives the recorded bits of one element. A contract that the predictor refuses does not. */
static bool gives(const record *r, const assay_sums *sums, int64_t m, int64_t n, assay_error *error) {
  const assay_product product = {.a = one_row(&r->a, m),
                                 .b = one_row(&r->b, n),
                                 .scale_a = one_row(&r->scale_a, m),
                                 .scale_b = one_row(&r->scale_b, n)};
  const int64_t size = npy_size(r->c.type);
  uint32_t bits = 0;
  return assay_sums_predict(sums, &product, &bits, error) == ASSAY_OK &&
         memcmp(&bits, r->c.data + (m * r->c.shape[1] + n) * size, (size_t)size) == 0;
}

/* Element i of `count` that lie apart in a [rows, columns] result. */
static void place(const record *r, int64_t i, int64_t count, int64_t *m, int64_t *n) {
  *m = i * r->c.shape[0] / count;
  *n = (i * 7 + 3) % count * r->c.shape[1] / count;
}

typedef struct search {
  const record *record;
  assay_sums best;
  int64_t few, all; /* elements of the best that agree: of FEW, of those compared at last */
  int64_t compared, first_m, first_n;
  bool found;
  assay_error error;
} search;

/* Compares all elements, or those of MOST_ROWS rows and columns that lie apart. Returns how many agree. */
static int64_t count_all(search *s, const assay_sums *sums) {
  const record *const r = s->record;
  const int64_t M = r->c.shape[0], N = r->c.shape[1];
  const int64_t down = M > MOST_ROWS ? MOST_ROWS : M, across = N > MOST_ROWS ? MOST_ROWS : N;
  int64_t same = 0;
  s->compared = down * across;
  for (int64_t i = 0; i < down; ++i)
    for (int64_t j = 0; j < across; ++j)
      same += gives(r, sums, i * M / down, j * N / across, &s->error);
  return same;
}

static void consider(search *s, const assay_sums *sums) {
  int64_t few = 0;
  if (s->found) return;
  for (int64_t i = 0; i < FEW; ++i) {
    int64_t m = 0, n = 0;
    place(s->record, i, FEW, &m, &n);
    few += gives(s->record, sums, m, n, &s->error);
    if (few + FEW - 1 - i < s->few) return; /* cannot be the best */
  }
  if (few < s->few || few == 0) return;
  const int64_t all = count_all(s, sums);
  if (all <= s->all) return;
  s->best = *sums;
  s->few = few;
  s->all = all;
  s->found = all == s->compared;
}

/* Considers every cut of K into `least` parts or more, and every join. */
static void consider_parts(search *s, assay_sums sums, int64_t least) {
  static const int64_t tiles[] = {0, 16, 32, 64, 128, 256};
  const int64_t K = s->record->a.shape[1];
  for (size_t t = 0; t < sizeof tiles / sizeof *tiles; ++t)
    for (int64_t parts = t > 0 && least < 2 ? 2 : least; parts <= MOST_PARTS && !s->found; ++parts) {
      if (parts > K || (t == 0 && K % parts != 0)) continue;
      if (t > 0 && K % (parts * tiles[t]) == 0) continue; /* equal parts */
      sums.parts = parts;
      sums.tile = tiles[t];
      for (int join = 0; join < (parts > 2 ? ASSAY_JOINS : 1); ++join) {
        sums.join = (assay_sum_join)join;
        consider(s, &sums);
      }
    }
}

static void consider_scales(search *s, assay_sums sums) {
  static const int64_t promotions[] = {0, 32, 64, 128, 256, 512};
  const npy_tensor *const scale = &s->record->scale_a;
  const int64_t K = s->record->a.shape[1], groups = scale->data != NULL ? scale->shape[1] : 0;
  if (groups > 1) {
    static const assay_sum_scale each[] = {ASSAY_SCALE_FMA_PRODUCT, ASSAY_SCALE_PRODUCT_THEN_FMA,
                                           ASSAY_SCALE_PRODUCT_THEN_ADD};
    sums.promote = (K + groups - 1) / groups;
    for (size_t i = 0; i < sizeof each / sizeof *each && !s->found; ++i) {
      sums.scale = each[i];
      sums.parts = 1;
      consider(s, &sums);
    }
    for (size_t i = 0; i < sizeof each / sizeof *each && !s->found; ++i) {
      sums.scale = each[i];
      consider_parts(s, sums, 2);
    }
    return;
  }
  sums.scale = groups == 1 ? ASSAY_SCALE_AFTER : ASSAY_SCALE_NONE;
  /* A promoted sum has the bits of equal parts that are joined in order. fp8 kernels promote, others cut K. */
  const size_t count = sizeof promotions / sizeof *promotions;
  const bool eight = npy_size(s->record->a.type) == 1;
  for (size_t i = 0; eight && i < count && !s->found; ++i) {
    sums.promote = promotions[i];
    sums.parts = 1;
    consider(s, &sums);
  }
  for (size_t i = 0; i < count && !s->found; ++i) {
    sums.promote = promotions[i];
    consider_parts(s, sums, eight ? 2 : 1);
  }
}

/* ---- cases --------------------------------------------------------------------------------------------- */

static const char *const join_names[ASSAY_JOINS] = {"ascending", "descending", "pairwise"};
static const char *const scale_names[ASSAY_SCALES] = {"none", "fma_product", "product_then_add", "after",
                                                      "product_then_fma"};

enum { CONTRACT_ROOM = sizeof((const explain_class *)NULL)->contract };

static void describe(const assay_sums *sums, char text[CONTRACT_ROOM]) {
  char tile[32] = "", join[32] = "", scale[32] = "";
  if (sums->tile > 0) (void)snprintf(tile, sizeof tile, " tile=%lld", (ll)sums->tile);
  if (sums->parts > 2) (void)snprintf(join, sizeof join, " join=%s", join_names[sums->join]);
  if (sums->scale != ASSAY_SCALE_NONE) (void)snprintf(scale, sizeof scale, " scale=%s", scale_names[sums->scale]);
  (void)snprintf(text, CONTRACT_ROOM, "parts=%lld promote=%lld unit=%s%s%s%s", (ll)(sums->parts > 1 ? sums->parts : 1),
                 (ll)sums->promote, assay_sum_unit_name(sums->unit), tile, join, scale);
}

/* ---- the map ------------------------------------------------------------------------------------------- */

assay_status explain_over(explain_log *log, const char *text, assay_error *error) {
  char *end = NULL;
  const bool named = strncmp(text, "m=", 2) == 0;
  log->least = named ? strtoll(text + 2, &end, 10) : 0;
  const bool ranged = end != NULL && strncmp(end, "..", 2) == 0;
  log->most = ranged ? strtoll(end + 2, &end, 10) : 0;
  if (ranged && *end == '\0' && log->least >= 1 && log->most >= log->least) return ASSAY_OK;
  log->least = log->most = 0;
  return assay_fail(error, ASSAY_ERR_INPUT, "--over: found '%.60s', allowed m=LEAST..MOST", text);
}

/* Notes a case of the map as a class of its own. */
static assay_status note(explain_log *log, const record *r, const assay_sums *sums, assay_error *error) {
  const int64_t M = r->rows;
  if (log->most == 0 || M < log->least || M > log->most) return ASSAY_OK;
  if (log->count == log->room) {
    const int32_t room = log->room > 0 ? 2 * log->room : 64;
    explain_class *const grown = realloc(log->classes, (size_t)room * sizeof *grown);
    if (grown == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "explain: out of memory");
    log->classes = grown;
    log->room = room;
  }
  explain_class *const one = &log->classes[log->count++];
  *one = (explain_class){.first = M, .last = M, .contract = "not explained"};
  (void)snprintf(one->shape, sizeof one->shape, "%s %lld x %lld", npy_type_name(r->a.type), (ll)r->columns,
                 (ll)r->a.shape[1]);
  if (sums != NULL) describe(sums, one->contract);
  return ASSAY_OK;
}

static int by_shape_and_rows(const void *a, const void *b) {
  const explain_class *const x = a, *const y = b;
  const int shape = strcmp(x->shape, y->shape);
  return shape != 0 ? shape : (x->first > y->first) - (x->first < y->first);
}

void explain_map(explain_log *log) {
  int32_t classes = 0;
  if (log->count == 0) return;
  qsort(log->classes, (size_t)log->count, sizeof *log->classes, by_shape_and_rows);
  for (int32_t i = 0; i < log->count; ++i) {
    explain_class *const last = &log->classes[classes > 0 ? classes - 1 : 0], *const one = &log->classes[i];
    if (classes > 0 && strcmp(last->shape, one->shape) == 0 && strcmp(last->contract, one->contract) == 0)
      last->last = one->last;
    else
      log->classes[classes++] = *one;
  }
  log->count = classes;
  for (int32_t i = 0; i < classes; ++i) {
    const explain_class *const one = &log->classes[i];
    (void)fprintf(log->to, "%s, M %lld to %lld: %s\n", one->shape, (ll)one->first, (ll)one->last, one->contract);
  }
}

void explain_free(explain_log *log) {
  free(log->classes);
  log->classes = NULL;
  log->count = log->room = 0;
}

/* ---- one case ------------------------------------------------------------------------------------------ */

/* Finds a contract of another kind that gives the compared bits as well: another unit, one part, or two. Bits that both
 * give do not tell which one it was. Returns false where none of these does. */
static bool fits_otherwise(search *s, assay_sums *other) {
  const int64_t K = s->record->a.shape[1], found = s->all;
  const assay_sums best = s->best;
  const bool plain = best.promote == 0 && best.scale == ASSAY_SCALE_NONE;
  *other = best;
  other->parts = best.parts > 1 ? 1 : 2;
  other->tile = 0;
  other->join = ASSAY_JOIN_ASCENDING;
  if (plain && (other->parts == 1 || K % 2 == 0) && count_all(s, other) == found) return true;
  *other = (assay_sums){
      .unit = best.unit == ASSAY_SUM_FMA ? ASSAY_SUM_WGMMA_16 : ASSAY_SUM_FMA, .parts = 1, .output = best.output};
  return plain && npy_size(s->record->a.type) > 1 && count_all(s, other) == found;
}

static assay_status explain_record(const record *r, explain_log *log, assay_error *error) {
  /* mma.sync of 16 bits and of tf32 gives the bits of wgmma. */
  static const assay_sum_unit units[] = {ASSAY_SUM_WGMMA_16,     ASSAY_SUM_WGMMA_8,    ASSAY_SUM_MMA_8,
                                         ASSAY_SUM_WGMMA_16_F16, ASSAY_SUM_WGMMA_TF32, ASSAY_SUM_FMA};
  search s = {.record = r};
  for (size_t u = 0; u < sizeof units / sizeof *units && r->c.count > 0; ++u) {
    assay_sums sums = {.unit = units[u], .output = (assay_dtype)r->c.type};
    int64_t m = 0, n = 0;
    assay_error refused = {""};
    place(r, 0, FEW, &m, &n);
    sums.scale = ASSAY_SCALE_NONE;
    const record bare = {.a = r->a, .b = r->b, .c = r->c};
    if (!gives(&bare, &sums, m, n, &refused) && refused.text[0] != '\0') {
      if (s.error.text[0] == '\0') s.error = refused;
      continue; /* types that the unit does not take */
    }
    consider_scales(&s, sums);
  }
  char best[CONTRACT_ROOM];
  describe(&s.best, best);
  (void)fprintf(log->to, "%s: ", r->name);
  if (s.found) {
    assay_sums other;
    char also[CONTRACT_ROOM];
    const bool open = fits_otherwise(&s, &other);
    describe(&other, also);
    (void)fprintf(log->to, "%s; all of %lld elements%s%s\n", best, (ll)s.compared,
                  open ? "; undecided, as also by " : "", open ? also : "");
    ++log->explained;
    return note(log, r, &s.best, error);
  }
  ++log->unexplained;
  const double share = s.compared > 0 ? (double)s.all / (double)s.compared : 0;
  (void)fprintf(log->to, "not explained (%.1f %%%s%s)\n", 100 * share, s.all > 0 ? " by " : "", s.all > 0 ? best : "");
  return note(log, r, NULL, error);
}

assay_status explain_dir(const char *folder, explain_log *log, assay_error *error) {
  char path[PATH_ROOM];
  unsigned char *text = NULL;
  int64_t size = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  json_reader *const reader = json_open();
  (void)snprintf(path, sizeof path, "%.4000s/manifest.json", folder);
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "explain: out of memory");
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *const list = status == ASSAY_OK ? json_member(root, "cases") : NULL;
  if (list != NULL && list->kind != JSON_ARRAY)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cases: found no list, allowed one", path);
  /* Every file is read before the first line is printed. */
  for (int pass = 0; pass < 2 && status == ASSAY_OK; ++pass)
    for (const json_value *at = list != NULL ? list->child : root; at != NULL && status == ASSAY_OK;
         at = list != NULL ? at->next : NULL) {
      record r;
      const char *covered = NULL;
      inner = (assay_error){""};
      status = read_record(folder, at, &r, &covered, &inner);
      if (status != ASSAY_OK) (void)assay_fail(error, status, "%s: %s: %.1800s", path, r.name, inner.text);
      if (status == ASSAY_OK && pass == 1 && covered == NULL) status = explain_record(&r, log, error);
      if (status == ASSAY_OK && pass == 1 && covered != NULL) {
        (void)fprintf(log->to, "%s: not explained (%s: not covered)\n", r.name, covered);
        ++log->unexplained;
      }
      record_free(&r);
    }
  free(text);
  if (reader != NULL) json_close(reader);
  return status;
}
