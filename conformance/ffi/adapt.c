/* adapt.c: see adapt.h. */
#include "adapt.h"

#include <math.h>
#include <stdlib.h>

/* A row of the table. `needs`: the arguments and parameters that it is made from. An operator may call block_table
 * `table`. */
static const struct {
  const char *name, *needs;
} rows[] = {{"csr_indptr", "block_table,kv_len"},
            {"csr_indices", "block_table,kv_len"},
            {"last_page_len", "block_table,kv_len"},
            {"lengths", "kv_len"},
            {"q_indptr", "q,kv_len,cu_q"},
            {"row_numbers", "slots"},
            {"row_indptr", "slots"},
            {"row_pages", "slots"},
            {"row_offsets", "slots"},
            {"row_lengths", "slots"},
            {"cos_sin", "cos,sin"},
            {"window_left", "window"},
            {"layout_code", "layout"},
            {"scale_or_usual", "scale"}};
_Static_assert(sizeof rows / sizeof *rows == ADAPTERS, "one row for each adapter");

int32_t adapt_find(const char *name) {
  for (int32_t i = 0; i < ADAPTERS; ++i)
    if (strcmp(rows[i].name, name) == 0) return i;
  return -1;
}

const char *adapt_name(int32_t which) {
  return rows[which].name;
}

const char *adapt_names(void) {
  static char list[256];
  size_t used = 0;
  for (int32_t i = 0; i < ADAPTERS && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", rows[i].name);
  return list;
}

/* Tells whether an argument is the one that a row needs; `size`: the length of the need's name. */
static bool is_need(const char *need, size_t size, const char *arg) {
  const char *const table = "block_table";
  if (strncmp(arg, need, size) == 0 && arg[size] == '\0') return true;
  return size == strlen(table) && strncmp(need, table, size) == 0 && strcmp(arg, "table") == 0;
}

static bool op_has(const assay_op *op, const char *name, size_t size) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (is_need(name, size, op->args[i].name)) return true;
  for (int32_t i = 0; i < op->param_count; ++i)
    if (strncmp(op->params[i].name, name, size) == 0 && op->params[i].name[size] == '\0') return true;
  return false;
}

bool adapt_fits(int32_t which, const assay_op *op, const char **missing) {
  for (const char *at = rows[which].needs; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
    *missing = at;
    if (!op_has(op, at, strcspn(at, ","))) return false;
  }
  return true;
}

bool adapt_uses(int32_t which, const char *name) {
  for (const char *at = rows[which].needs; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (is_need(at, strcspn(at, ","), name)) return true;
  return false;
}

/* ---- facts of a call --------------------------------------------------------------------------------- */

int64_t adapt_dim(const assay_call *call, const char *name) {
  if (strcmp(name, "group") == 0) {
    const int64_t H = adapt_dim(call, "H"), H_kv = adapt_dim(call, "H_kv");
    return H_kv > 0 ? H / H_kv : -1;
  }
  const size_t size = strlen(name);
  const double layout = assay_find_param(call, "layout");
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    const char *at = call->op->args[i].shape;
    if (t->data == NULL) continue;
    for (int a = 0; a < (int)layout && strchr(at, '|') != NULL; ++a)
      at = strchr(at, '|') + 1;
    for (int32_t axis = 0; axis < t->rank && *at != '\0' && *at != '|'; ++axis) {
      const size_t term = strcspn(at, ",|");
      if (term == size && strncmp(at, name, size) == 0) return t->shape[axis];
      if (term > size && at[size] == '/' && strncmp(at, name, size) == 0) return t->shape[axis] * atoi(at + size + 1);
      at += term;
      at += *at == ',';
    }
  }
  return -1;
}

assay_status adapt_shape(const assay_call *call, int32_t arg, assay_tensor *made, assay_error *error) {
  const assay_arg *about = &call->op->args[arg];
  int64_t count = 1;
  *made = (assay_tensor){.dtype = ASSAY_NONE};
  for (int d = ASSAY_F32; d < ASSAY_DTYPE_COUNT; ++d)
    if (strcmp(assay_dtype_name((assay_dtype)d), about->dtypes) == 0) made->dtype = (assay_dtype)d;
  for (const char *at = about->shape; *at != '\0' && *at != '|'; at += strcspn(at, ",|"), at += *at == ',') {
    char name[32];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ",|"), at);
    if (made->rank == ASSAY_MAX_RANK) break;
    made->shape[made->rank++] = adapt_dim(call, name);
    if (made->shape[made->rank - 1] < 0) made->dtype = ASSAY_NONE;
  }
  if (made->dtype == ASSAY_NONE)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: is absent, and its type or shape is not known", about->name);
  for (int32_t a = made->rank - 1; a >= 0; --a) {
    made->stride[a] = count;
    count *= made->shape[a];
  }
  return ASSAY_OK;
}

static int64_t shape_of(const assay_call *call, const char *arg, int32_t axis) {
  const assay_tensor *t = assay_find_arg(call, arg);
  return t != NULL && axis < t->rank ? t->shape[axis] : 0;
}

static int64_t block_size_of(const assay_call *call) {
  const int64_t size = adapt_dim(call, "block_size"), entries = adapt_dim(call, "S");
  return size > 0 ? size : entries > 0 ? entries : 1;
}

/* The name of the table of blocks. */
static const char *table_of(const assay_call *call) {
  return assay_find_arg(call, "block_table") != NULL ? "block_table" : "table";
}

assay_status adapt_scalar(int32_t which, const assay_call *call, double *value, assay_error *error) {
  switch (which) {
  case ADAPT_WINDOW_LEFT:
    *value = assay_find_param(call, "window") - 1;
    return ASSAY_OK;
  case ADAPT_LAYOUT_CODE:
    *value = assay_find_param(call, "layout");
    if (*value <= 1) return ASSAY_OK;
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, allowed nhd, hnd: layout_code has no other");
  case ADAPT_SCALE:
    *value = assay_find_param(call, "scale");
    if (*value == 0) *value = 1 / sqrt((double)adapt_dim(call, "D"));
    return ASSAY_OK;
  default:
    return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: is a tensor", rows[which].name);
  }
}

int64_t adapt_room(int32_t which, const assay_call *call) {
  const int64_t requests = shape_of(call, "kv_len", 0), slots = shape_of(call, "slots", 0);
  switch (which) {
  case ADAPT_CSR_INDPTR:
  case ADAPT_Q_INDPTR:
    return requests + 1;
  case ADAPT_CSR_INDICES:
    return requests * shape_of(call, table_of(call), 1);
  case ADAPT_LAST_PAGE:
  case ADAPT_LENGTHS:
    return requests;
  case ADAPT_ROW_INDPTR:
    return slots + 1;
  default:
    return slots;
  }
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

static const void *host_of(const assay_call *call, void *const *host, const char *arg) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, arg) == 0) return host[i];
  return NULL;
}

/* Writes the pages of all requests, or where they begin. A table that is garbage gives garbage of the same size. */
static int64_t fill_pages(int32_t which, const assay_call *call, void *const *host, int32_t *to) {
  const int32_t *length = host_of(call, host, "kv_len"), *table = host_of(call, host, table_of(call));
  const int64_t requests = shape_of(call, "kv_len", 0), width = shape_of(call, table_of(call), 1);
  const int64_t size = block_size_of(call), *const stride = assay_find_arg(call, table_of(call))->stride;
  int64_t used = 0;
  if (which == ADAPT_CSR_INDPTR) to[0] = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t L = length[b] > 0 ? length[b] : 0, all = (L + size - 1) / size, pages = all < width ? all : width;
    if (which == ADAPT_LAST_PAGE) to[b] = L > 0 ? (int32_t)((L - 1) % size + 1) : 0;
    for (int64_t j = 0; which == ADAPT_CSR_INDICES && j < pages; ++j)
      to[used + j] = table[b * stride[0] + j * stride[1]];
    used += pages;
    if (which == ADAPT_CSR_INDPTR) to[b + 1] = (int32_t)used;
  }
  return which == ADAPT_CSR_INDICES ? used : adapt_room(which, call);
}

static assay_status fill_slots(int32_t which, const assay_call *call, void *const *host, int32_t *to,
                               assay_error *error) {
  const int64_t *slot = host_of(call, host, "slots"), N = shape_of(call, "slots", 0), size = block_size_of(call);
  for (int64_t n = 0; n < N; ++n) {
    if (slot[n] < 0)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "slots: found %lld at row %lld, allowed 0 and more: %s",
                        (long long)slot[n], (long long)n, "every row needs a page");
    to[n] = which == ADAPT_ROW_PAGES ? (int32_t)(slot[n] / size)
                                     : (int32_t)(slot[n] % size) + (which == ADAPT_ROW_LENGTHS ? 1 : 0);
  }
  return ASSAY_OK;
}

assay_status adapt_fill(int32_t which, const assay_call *call, void *const *host, int32_t *to, int64_t *used,
                        assay_error *error) {
  const int32_t *given = which == ADAPT_Q_INDPTR  ? host_of(call, host, "cu_q")
                         : which == ADAPT_LENGTHS ? host_of(call, host, "kv_len")
                                                  : NULL;
  const int64_t room = adapt_room(which, call);
  *used = room;
  switch (which) {
  case ADAPT_CSR_INDPTR:
  case ADAPT_CSR_INDICES:
  case ADAPT_LAST_PAGE:
    if (assay_find_arg(call, table_of(call)) == NULL)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "block_table: found none, allowed one: %s needs it",
                        rows[which].name);
    *used = fill_pages(which, call, host, to);
    return ASSAY_OK;
  case ADAPT_ROW_PAGES:
  case ADAPT_ROW_OFFSETS:
  case ADAPT_ROW_LENGTHS:
    return fill_slots(which, call, host, to, error);
  case ADAPT_LENGTHS:
  case ADAPT_Q_INDPTR:
  case ADAPT_ROW_NUMBERS:
  case ADAPT_ROW_INDPTR:
    for (int64_t i = 0; i < room; ++i)
      to[i] = given != NULL ? given[i] : (int32_t)i;
    return ASSAY_OK;
  default:
    return assay_fail(error, ASSAY_ERR_INTERNAL, "%s: is no tensor of i32", rows[which].name);
  }
}
