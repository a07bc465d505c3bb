/* generate_place.c: from a case and a draw to tensors: the order of requests, the places of blocks in the pool,
 * shapes by the operator's own strings, strides, and one allocation after the other with guards between. */
#include <stdlib.h>

#include "core/rng.h"
#include "generate_parts.h"
#include "shape.h"

enum {
  ALIGNMENT = 256,
  STREAM_ORDER = 0x6711,
  STREAM_PLACEMENT = 0x6712,
  STREAM_POOL = 0x6713,
  STREAM_TABLE = 0x6714,
  STREAM_HUGE = 0x6715,
  STREAM_ONE = 0x6716,
  STREAM_INTEGER = 0x6717,
  STREAM_GAP = 0x6718,
  LONGEST_GAP = 8
};

static int64_t align_up(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void shuffle(int32_t *item, int64_t count, uint64_t seed, uint64_t stream) {
  assay_rng rng = {seed, stream, 0};
  for (int64_t i = count - 1; i > 0; --i) {
    const int64_t j = assay_rng_range(&rng, 0, i);
    const int32_t kept = item[i];
    item[i] = item[j];
    item[j] = kept;
  }
}

static assay_status place_blocks(const logical *l, uint64_t placement, int64_t pool_blocks, int32_t *physical,
                                 assay_error *error) {
  int32_t *place = malloc((size_t)(pool_blocks > 0 ? pool_blocks : 1) * sizeof *place);
  if (place == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory");
  for (int64_t i = 0; i < pool_blocks; ++i)
    place[i] = (int32_t)i;
  if (placement != 0 || l->origin->tables != TABLES_IDENTITY)
    shuffle(place, pool_blocks, l->origin->seed ^ placement * 0x9E3779B97F4A7C15u, STREAM_PLACEMENT);
  if (l->identities > 0) memcpy(physical, place, (size_t)l->identities * sizeof *physical);
  free(place);
  return ASSAY_OK;
}

/* Contiguous: the rows of requests in the order of the batch, in most draws with rows of nobody before them. `order`:
 * [B] request at each place of the batch, or NULL: as in the case. `first_row`: [B + 1], or NULL. */
static void place_rows(const logical *l, uint64_t placement, const int32_t *order, int64_t pool_rows, int32_t *physical,
                       int32_t *first_row) {
  assay_rng rng = {l->origin->seed ^ placement * 0x9E3779B97F4A7C15u, STREAM_GAP, 0};
  const bool gaps = placement != 0 || l->origin->tables != TABLES_IDENTITY;
  int64_t left = pool_rows, row = 0;
  for (int64_t i = 0; i < l->B; ++i)
    left -= l->length[i];
  for (int64_t slot = 0; slot <= l->B; ++slot) {
    int64_t gap = gaps && assay_rng_range(&rng, 0, 3) != 0 ? assay_rng_range(&rng, 1, LONGEST_GAP) : 0;
    if (gap > left) gap = left;
    left -= gap;
    row += gap;
    if (first_row != NULL) first_row[slot] = (int32_t)row;
    if (slot == l->B) break;
    const int64_t request = order != NULL ? order[slot] : slot;
    for (int64_t j = l->block_start[request]; j < l->block_start[request + 1]; ++j)
      physical[l->block_identity[j]] = (int32_t)(row + (j - l->block_start[request]) * l->block_size);
    row += l->length[request];
  }
}

static assay_status place_pool(image *made, assay_error *error) {
  const logical *l = made->logical;
  if (!made->contiguous) return place_blocks(l, made->chosen.placement, made->pool_blocks, made->physical, error);
  place_rows(l, made->chosen.placement, made->request_of_slot, made->pool_blocks, made->physical, made->first_row);
  return ASSAY_OK;
}

assay_status place_home(const image *made, int32_t *physical, assay_error *error) {
  if (!made->contiguous) return place_blocks(made->logical, 0, made->pool_blocks, physical, error);
  place_rows(made->logical, 0, NULL, made->pool_blocks, physical, NULL);
  return ASSAY_OK;
}

int64_t place_slots(const image *made) {
  return made->pool_blocks * (made->contiguous ? 1 : made->logical->block_size);
}

/* Blocks, or rows, of the pool; some are nobody's. */
static int64_t pool_size(const image *made) {
  const logical *l = made->logical;
  const int64_t spare = 1 + (int64_t)(logical_hash(l->origin, STREAM_POOL) % 3);
  if (!made->contiguous) return l->identities + spare;
  int64_t rows = spare;
  for (int64_t i = 0; i < l->B; ++i)
    rows += l->length[i];
  return rows + (l->origin->tables == TABLES_IDENTITY ? 0 : LONGEST_GAP / 2 * (l->B + 1));
}

/* Rows of a plain case are in any order. */
static assay_status order_plain_rows(image *made) {
  const logical *l = made->logical;
  assay_rng rng = {l->origin->seed ^ made->chosen.order * 0x9E3779B97F4A7C15u, STREAM_ORDER, 0};
  for (int64_t row = 0; row < l->N; ++row)
    made->row_of[row] = row;
  for (int64_t row = l->N - 1; made->chosen.order != 0 && row > 0; --row) {
    const int64_t other = assay_rng_range(&rng, 0, row - 1), kept = made->row_of[row]; /* none stays in place */
    made->row_of[row] = made->row_of[other];
    made->row_of[other] = kept;
  }
  for (int64_t row = 0; row < l->N; ++row) {
    made->request_of_row[row] = 0;
    made->position_of_row[row] = row;
  }
  return ASSAY_OK;
}

/* Rows follow their requests; each request keeps the order of its own rows. */
static assay_status order_rows(image *made, assay_error *error) {
  const logical *l = made->logical;
  const size_t B = (size_t)l->B + 1, N = (size_t)l->N + 1;
  made->rows = l->N;
  made->request_of_slot = malloc(B * sizeof *made->request_of_slot);
  made->row_of = malloc(N * sizeof *made->row_of);
  made->request_of_row = malloc(N * sizeof *made->request_of_row);
  made->position_of_row = malloc(N * sizeof *made->position_of_row);
  made->physical = malloc(((size_t)l->identities + 1) * sizeof *made->physical);
  made->first_row = calloc(B, sizeof *made->first_row);
  if (made->request_of_slot == NULL || made->row_of == NULL || made->request_of_row == NULL ||
      made->position_of_row == NULL || made->physical == NULL || made->first_row == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory");
  for (int32_t i = 0; i < l->B; ++i)
    made->request_of_slot[i] = i;
  if (made->chosen.order != 0) {
    shuffle(made->request_of_slot, l->B, l->origin->seed ^ made->chosen.order * 0x9E3779B97F4A7C15u, STREAM_ORDER);
    if (l->B > 1 && made->request_of_slot[0] == 0) { /* the first place is the one most often special */
      made->request_of_slot[0] = made->request_of_slot[l->B - 1];
      made->request_of_slot[l->B - 1] = 0;
    }
  }
  int64_t row = 0;
  if (l->origin->op->form == ASSAY_PLAIN) return order_plain_rows(made);
  for (int64_t slot = 0; slot < l->B; ++slot) {
    const int32_t request = made->request_of_slot[slot];
    for (int64_t n = 0; n < l->fresh[request]; ++n, ++row) {
      made->row_of[row] = l->row_start[request] + n;
      made->request_of_row[row] = request;
      made->position_of_row[row] = n;
    }
  }
  return ASSAY_OK;
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

static bool named(const char *term, size_t size, const char *name) {
  return strlen(name) == size && strncmp(term, name, size) == 0;
}

/* A dimension by name, derived ones included; a refuse case's illegal value as it stands. */
static int64_t dimension(const void *context, const char *term, size_t size) {
  const image *made = context;
  const logical *l = made->logical;
  const assay_case *one = l->origin;
  const bool paged = one->op->form == ASSAY_PAGED; /* elsewhere these names are dimensions like others */
  if (paged && named(term, size, "B")) return l->B;
  if (paged && named(term, size, "N")) return l->N;
  if (paged && named(term, size, "kv_scales")) return l->kv_scales;
  if (paged && named(term, size, "num_blocks")) return made->first_block + made->pool_blocks;
  if (made->contiguous && one->section != SECTION_REFUSE && named(term, size, "block_size")) return 1;
  if (paged && named(term, size, "max_blocks"))
    return l->widest + (l->widest == 0) + (int64_t[]){0, 1, 2, 5}[logical_hash(one, STREAM_TABLE) & 3];
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (named(term, size, one->op->dims[i].name)) return one->dim[i];
  return 1;
}

/* The alternative of a shape string for the case's layout. */
static const char *shape_text(const assay_case *one, const assay_arg *arg) {
  const char *text = arg->shape;
  for (int64_t skip = (int64_t)logical_param(one, "layout", 0); skip > 0 && strchr(text, '|') != NULL; --skip)
    text = strchr(text, '|') + 1;
  return text;
}

static void set_shape(const image *made, const assay_arg *arg, assay_tensor *tensor) {
  const char *term = shape_text(made->origin, arg);
  while (tensor->rank < ASSAY_MAX_RANK) {
    const size_t size = strcspn(term, ",|");
    tensor->shape[tensor->rank++] = shape_axis(term, size, assay_dtype_size(tensor->dtype), dimension, made);
    if (term[size] != ',') break;
    term += size + 1;
  }
  int64_t stride = 1;
  for (int32_t a = tensor->rank - 1; a >= 0; --a) {
    tensor->stride[a] = stride;
    stride *= tensor->shape[a] > 0 ? tensor->shape[a] : 1;
  }
}

static assay_dtype named_dtype(const char *name) {
  const size_t size = strcspn(name, ",");
  for (int d = ASSAY_F32; d < ASSAY_DTYPE_COUNT; ++d)
    if (named(name, size, assay_dtype_name((assay_dtype)d))) return (assay_dtype)d;
  return ASSAY_F32;
}

/* By the argument's list of types (op.h). Of two integer types, one or the other, by the seed. */
static assay_dtype dtype_of(const logical *l, const assay_arg *arg) {
  const assay_op *op = l->origin->op;
  const bool list = strchr(arg->dtypes, ',') != NULL;
  if (list && arg->dtypes[0] == 'i')
    return named_dtype((logical_hash(l->origin, STREAM_INTEGER) & 1) != 0 ? strchr(arg->dtypes, ',') + 1 : arg->dtypes);
  if (arg->content == ASSAY_K_CACHE || arg->content == ASSAY_V_CACHE) return l->kv_dtype;
  if (arg->dtypes[0] != '=') return list ? l->q_dtype : named_dtype(arg->dtypes);
  if (list && op->form == ASSAY_PLAIN) return l->kv_dtype; /* the key out_dtype */
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, arg->dtypes + 1) == 0 && &op->args[i] != arg) return dtype_of(l, &op->args[i]);
  return l->q_dtype;
}

static bool is_given(const image *made, int32_t i) {
  const logical *l = made->logical;
  const assay_arg *arg = &l->origin->op->args[i];
  if (!arg->optional || (l->origin->broken == BREAK_EXTRA && l->origin->argument == i + 1)) return true;
  if (arg->content == ASSAY_CU_Q) return l->origin->mode != MODE_DECODE;
  if (arg->content == ASSAY_KV_SCALE) return logical_is_fp8(l->kv_dtype);
  if (arg->content == ASSAY_BLOCK_TABLE) return !made->contiguous;
  if (arg->content == ASSAY_CU_K) return made->contiguous;
  return (l->origin->present >> i & 1) != 0;
}

/* ---- allocations ------------------------------------------------------------------------------------- */

cache_strides place_strides(const image *made, int32_t arg) {
  const assay_tensor *t = &made->arg[arg];
  cache_strides s = {0, 0, 0, 0, 1, made->logical->D};
  const char *term = shape_text(made->origin, &made->origin->op->args[arg]);
  for (int32_t a = 0; a < t->rank; ++a) {
    const size_t size = strcspn(term, ",|");
    if (named(term, size, "num_blocks")) s.block = t->stride[a];
    if (named(term, size, "block_size")) s.token = t->stride[a];
    if (named(term, size, "H_kv")) s.head = t->stride[a];
    if (named(term, size, "D")) s.channel = t->stride[a];
    if (named(term, size, "D/x")) s.chunk = t->stride[a];
    if (named(term, size, "x")) {
      s.channel = t->stride[a];
      s.x = t->shape[a];
    }
    term += size + (term[size] == ',');
  }
  if (made->contiguous) s.token = s.block;
  return s;
}

int64_t place_slot(const image *made, int64_t row) {
  const logical *l = made->logical;
  const int64_t request = made->request_of_row[row];
  const int64_t token = (int64_t)l->length[request] - l->fresh[request] + made->position_of_row[row];
  if (token < 0) return -1;
  const int64_t identity = l->block_identity[l->block_start[request] + token / l->block_size];
  return (made->first_block + made->physical[identity]) * l->block_size + token % l->block_size;
}

int32_t place_row_axis(const image *made, int32_t arg) {
  const assay_op *op = made->origin->op;
  const char *row = op->form == ASSAY_PLAIN ? op->row_dim : "N";
  const char *term = shape_text(made->origin, &op->args[arg]);
  for (int32_t a = 0; row != NULL && a < made->arg[arg].rank; ++a) {
    const size_t size = strcspn(term, ",|");
    if (named(term, size, row)) return a;
    term += size + (term[size] == ',');
  }
  return -1;
}

/* Elements of one block, before any padding. */
static int64_t block_elements(const assay_tensor *t) {
  int64_t count = 1;
  for (int32_t a = 1; a < t->rank; ++a)
    count *= t->shape[a] > 0 ? t->shape[a] : 1;
  return count;
}

static int32_t find_content(const assay_op *op, assay_content content) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (op->args[i].content == content) return i;
  return -1;
}

/* Blocks are kv_pad elements apart (V's 2·kv_pad, so that K's stride does not serve for V), or K and V take
 * turns in one allocation. */
static void set_block_strides(image *made, int32_t k, int32_t v) {
  const int32_t pad = made->origin->kv_pad;
  const int64_t k_block = block_elements(&made->arg[k]), v_block = block_elements(&made->arg[v]);
  made->arg[k].stride[0] = pad < 0 ? k_block + v_block : k_block + pad;
  made->arg[v].stride[0] = pad < 0 ? k_block + v_block : v_block + 2 * (int64_t)pad;
}

/* Block numbers so high that number · stride leaves 31 bits, in half the draws 32 bits. Only the pool is there. */
static void set_first_block(image *made, int32_t k) {
  const int64_t stride = made->arg[k].stride[0];
  if (made->origin->tables != TABLES_HUGE) return;
  const int64_t reach = (logical_hash(made->origin, STREAM_HUGE) & 1) != 0 ? (int64_t)1 << 32 : (int64_t)1 << 31;
  made->first_block = reach / stride + 1;
  if (made->first_block > INT32_MAX - made->pool_blocks - 1) made->first_block = INT32_MAX - made->pool_blocks - 1;
}

static int64_t extent_bytes(const image *made, int32_t i, int32_t k, int32_t v) {
  const assay_tensor *t = &made->arg[i];
  const int64_t element = assay_dtype_size(t->dtype);
  if (i == k || i == v) return made->pool_blocks * t->stride[0] * element;
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a] > 0 ? t->shape[a] : 0;
  if (made->origin->op->args[i].strided) count = (t->shape[0] > 0 ? t->shape[0] : 0) * t->stride[0];
  return count * element;
}

/* The stride of an axis of extent 1 is never multiplied by anything but 0, so it may be anything: its own, or 1, 0,
 * 2^22. */
static void set_strides_of_one(image *made) {
  const assay_case *one = made->origin;
  if (one->section == SECTION_REFUSE) return;
  for (int32_t i = 0; i < one->op->arg_count; ++i)
    for (int32_t a = 0; a < made->arg[i].rank; ++a) {
      const uint64_t pick = logical_hash(one, STREAM_ONE + ((uint64_t)(i * ASSAY_MAX_RANK + a) << 16)) & 3;
      if (made->arg[i].shape[a] == 1 && pick != 0)
        made->arg[i].stride[a] = pick == 1 ? 1 : pick == 2 ? 0 : (int64_t)1 << 22;
    }
}

assay_status place_image(image *made, assay_error *error) {
  const assay_case *one = made->origin;
  const assay_op *op = one->op;
  const logical *l = made->logical;
  const int32_t k = find_content(op, ASSAY_K_CACHE), v = find_content(op, ASSAY_V_CACHE);
  made->contiguous = case_is_contiguous(one) && !made->chosen.paged;
  if (op->form == ASSAY_PAGED) made->pool_blocks = pool_size(made);
  assay_status status = order_rows(made, error);
  if (status == ASSAY_OK) status = place_pool(made, error);
  if (status != ASSAY_OK) return status;

  int64_t offset = align_up(GUARD_BYTES), strided = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (!is_given(made, i)) continue;
    made->arg[i] = (assay_tensor){.dtype = dtype_of(l, &op->args[i])};
    set_shape(made, &op->args[i], &made->arg[i]);
    /* Each has a padding of its own, so that one's stride does not serve for another. */
    if (op->args[i].strided && made->arg[i].rank > 1) made->arg[i].stride[0] += one->q_pad * (1 + strided++);
  }
  if (k >= 0 && v >= 0) {
    set_block_strides(made, k, v);
    set_first_block(made, k);
    made->arg[k].shape[0] = made->arg[v].shape[0] = made->first_block + made->pool_blocks;
  }
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (made->arg[i].dtype == ASSAY_NONE) continue;
    const int64_t element = assay_dtype_size(made->arg[i].dtype);
    if (i == v && k >= 0 && one->kv_pad < 0) {
      made->extent[v] = made->extent[k];
      made->bias[v] = block_elements(&made->arg[k]) * element;
    } else {
      made->extent[i] = (span){offset, extent_bytes(made, i, k, v)};
      offset = align_up(offset + made->extent[i].bytes + GUARD_BYTES);
    }
    if (i == k || i == v) made->bias[i] -= made->first_block * made->arg[i].stride[0] * element;
  }
  made->arena_bytes = offset;
  made->host = image_take(offset, &made->spare_bytes);
  if (made->host == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "generator: no memory for an arena of %lld bytes", (long long)offset);
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (made->arg[i].dtype != ASSAY_NONE)
      made->arg[i].data = (void *)((uintptr_t)made->host + (uintptr_t)(made->extent[i].offset + made->bias[i]));
  set_strides_of_one(made);
  for (int32_t p = 0; p < op->param_count; ++p)
    made->param[p] = one->param[p];
  made->call = (assay_call){op, made->arg, made->param};
  return ASSAY_OK;
}
