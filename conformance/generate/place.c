/* place.c: tensors from a case and a draw. It sets the order of requests, the places of blocks in the pool, shapes by
 * the operator's own strings, and strides. Allocations follow each other with guards between. */
#include <stdlib.h>

#include "core/rng.h"
#include "place.h"
#include "conformance/case/case.h"

enum { LONGEST_GAP = 8 };

static int64_t align_up(int64_t bytes) {
  return (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
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

/* Contiguous: places the rows of requests in the order of the batch. In most draws, rows that no request owns lie
 * before them. `order`: [B] request at each place of the batch; NULL means the case's order. `first_row`: [B + 1], or
 * NULL. */
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

static assay_status place_pool(image *img, assay_error *error) {
  const logical *l = img->logical;
  if (!img->contiguous) return place_blocks(l, img->chosen.placement, img->pool_blocks, img->physical, error);
  place_rows(l, img->chosen.placement, img->request_of_slot, img->pool_blocks, img->physical, img->first_row);
  return ASSAY_OK;
}

assay_status place_home(const image *img, int32_t *physical, assay_error *error) {
  if (!img->contiguous) return place_blocks(img->logical, 0, img->pool_blocks, physical, error);
  place_rows(img->logical, 0, NULL, img->pool_blocks, physical, NULL);
  return ASSAY_OK;
}

int64_t place_slots(const image *img) {
  return img->pool_blocks * (img->contiguous ? 1 : img->logical->block_size);
}

/* Returns the blocks, or rows, of the pool. Some belong to no request. */
static int64_t pool_size(const image *img) {
  const logical *l = img->logical;
  const int64_t spare = 1 + (int64_t)(logical_hash(l->origin, STREAM_POOL) % 3);
  if (!img->contiguous) return l->identities + spare;
  int64_t rows = spare;
  for (int64_t i = 0; i < l->B; ++i)
    rows += l->length[i];
  return rows + (l->origin->tables == TABLES_IDENTITY ? 0 : LONGEST_GAP / 2 * (l->B + 1));
}

/* Puts the rows of a plain case in any order. */
static assay_status order_plain_rows(image *img) {
  const logical *l = img->logical;
  assay_rng rng = {l->origin->seed ^ img->chosen.order * 0x9E3779B97F4A7C15u, STREAM_ORDER, 0};
  for (int64_t row = 0; row < l->N; ++row)
    img->row_of[row] = row;
  for (int64_t row = l->N - 1; img->chosen.order != 0 && row > 0; --row) {
    const int64_t other = assay_rng_range(&rng, 0, row - 1), kept = img->row_of[row]; /* none stays in its place */
    img->row_of[row] = img->row_of[other];
    img->row_of[other] = kept;
  }
  for (int64_t row = 0; row < l->N; ++row) {
    img->request_of_row[row] = 0;
    img->position_of_row[row] = row;
  }
  return ASSAY_OK;
}

/* Rows follow their requests; each request keeps the order of its own rows. */
static assay_status order_rows(image *img, assay_error *error) {
  const logical *l = img->logical;
  const size_t B = (size_t)l->B + 1, N = (size_t)l->N + 1;
  img->rows = l->N;
  img->request_of_slot = malloc(B * sizeof *img->request_of_slot);
  img->row_of = malloc(N * sizeof *img->row_of);
  img->request_of_row = malloc(N * sizeof *img->request_of_row);
  img->position_of_row = malloc(N * sizeof *img->position_of_row);
  img->physical = malloc(((size_t)l->identities + 1) * sizeof *img->physical);
  img->first_row = calloc(B, sizeof *img->first_row);
  if (img->request_of_slot == NULL || img->row_of == NULL || img->request_of_row == NULL ||
      img->position_of_row == NULL || img->physical == NULL || img->first_row == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "generator: out of memory");
  for (int32_t i = 0; i < l->B; ++i)
    img->request_of_slot[i] = i;
  if (img->chosen.order != 0) {
    shuffle(img->request_of_slot, l->B, l->origin->seed ^ img->chosen.order * 0x9E3779B97F4A7C15u, STREAM_ORDER);
    if (l->B > 1 && img->request_of_slot[0] == 0) { /* kernels most often treat the first place specially */
      img->request_of_slot[0] = img->request_of_slot[l->B - 1];
      img->request_of_slot[l->B - 1] = 0;
    }
  }
  int64_t row = 0;
  if (l->origin->op->form == ASSAY_PLAIN) return order_plain_rows(img);
  for (int64_t slot = 0; slot < l->B; ++slot) {
    const int32_t request = img->request_of_slot[slot];
    for (int64_t n = 0; n < l->fresh[request]; ++n, ++row) {
      img->row_of[row] = l->row_start[request] + n;
      img->request_of_row[row] = request;
      img->position_of_row[row] = n;
    }
  }
  return ASSAY_OK;
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

static bool named(const char *term, size_t size, const char *name) {
  return strlen(name) == size && strncmp(term, name, size) == 0;
}

/* Returns the words of a mask. Some requests have more bytes than their bits need. */
static int64_t place_mask_words(const logical *l) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < l->B; ++i)
    bytes += logical_mask_bytes(l, i) + place_mask_spare(l, i);
  return (bytes + 3) / 4;
}

/* Returns a dimension by name, derived ones included. A refuse case's illegal value is returned as it is. */
static int64_t dimension(const void *context, const char *term, size_t size) {
  const image *img = context;
  const logical *l = img->logical;
  const assay_case *one = l->origin;
  const bool paged = one->op->form == ASSAY_PAGED; /* in plain operators these names are dimensions like others */
  if (paged && named(term, size, "B")) return l->B;
  if (paged && named(term, size, "N")) return l->N;
  if (paged && named(term, size, "kv_scales")) return l->kv_scales;
  if (paged && named(term, size, "num_blocks")) return img->first_block + img->pool_blocks;
  if (img->contiguous && one->section != SECTION_REFUSE && named(term, size, "block_size")) return 1;
  if (paged && named(term, size, "max_blocks"))
    return l->widest + (l->widest == 0) + (int64_t[]){0, 1, 2, 5}[logical_hash(one, STREAM_TABLE) & 3];
  if (paged && named(term, size, "mask_words")) return place_mask_words(l);
  if (paged && named(term, size, "D_v") && logical_dim(one, "D_v", 0) == 0) return dimension(context, "D", 1);
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (named(term, size, one->op->dims[i].name)) return one->dim[i];
  return 1;
}

/* Returns the alternative of a shape string for the case's layout. */
static const char *shape_text(const assay_case *one, const assay_arg *arg) {
  const char *text = arg->shape;
  for (int64_t skip = (int64_t)logical_param(one, "layout", 0); skip > 0 && strchr(text, '|') != NULL; --skip)
    text = strchr(text, '|') + 1;
  return text;
}

static void set_shape(const image *img, const assay_arg *arg, assay_tensor *tensor) {
  const char *term = shape_text(img->origin, arg);
  while (tensor->rank < ASSAY_MAX_RANK) {
    const size_t size = strcspn(term, ",|");
    tensor->shape[tensor->rank++] = shape_axis(term, size, assay_dtype_size(tensor->dtype), dimension, img);
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

/* Tells whether the list of types is the key dtype: the operator's first list that follows no other argument. */
static bool is_key_dtype(const assay_op *op, const assay_arg *arg) {
  for (const assay_arg *other = op->args; other < arg; ++other)
    if (other->dtypes[0] != '=' && other->dtypes[0] != 'i' && strchr(other->dtypes, ',') != NULL) return false;
  return true;
}

/* Returns the type by the argument's list of types (op.h). The seed chooses from a list of two integer types, and from
 * a list that is not the key dtype. */
static assay_dtype dtype_of(const logical *l, const assay_arg *arg) {
  const assay_op *op = l->origin->op;
  const bool list = strchr(arg->dtypes, ',') != NULL;
  if (list && arg->dtypes[0] == 'i')
    return named_dtype((logical_hash(l->origin, STREAM_INTEGER) & 1) != 0 ? strchr(arg->dtypes, ',') + 1 : arg->dtypes);
  if (arg->content == ASSAY_K_CACHE || arg->content == ASSAY_V_CACHE) return l->kv_dtype;
  if (list && arg->dtypes[0] != '=' && !is_key_dtype(op, arg))
    return named_dtype((logical_hash(l->origin, STREAM_TYPE) & 1) != 0 ? strchr(arg->dtypes, ',') + 1 : arg->dtypes);
  if (arg->dtypes[0] != '=') return list ? l->q_dtype : named_dtype(arg->dtypes);
  if (list && op->form == ASSAY_PLAIN) return l->out_dtype;
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, arg->dtypes + 1) == 0 && &op->args[i] != arg) return dtype_of(l, &op->args[i]);
  return l->q_dtype;
}

static bool is_given(const image *img, int32_t i) {
  const logical *l = img->logical;
  const assay_arg *arg = &l->origin->op->args[i];
  if (!arg->optional || (l->origin->broken == BREAK_EXTRA && l->origin->argument == i + 1)) return true;
  if (arg->content == ASSAY_CU_Q) return l->origin->mode != MODE_DECODE;
  if (arg->content == ASSAY_KV_SCALE) return logical_is_fp8(l->kv_dtype);
  if (arg->content == ASSAY_BLOCK_TABLE) return !img->contiguous;
  if (arg->content == ASSAY_CU_K) return img->contiguous;
  if (strcmp(arg->name, "mask_ptr") == 0) i -= 1; /* it follows mask, and is given with it */
  return (l->origin->present >> i & 1) != 0;
}

/* ---- allocations ------------------------------------------------------------------------------------- */

int64_t place_channels(const image *img, int32_t arg) {
  const assay_content content = img->origin->op->args[arg].content;
  return content == ASSAY_V_CACHE || content == ASSAY_V_NEW ? img->logical->D_v : img->logical->D;
}

cache_strides place_strides(const image *img, int32_t arg) {
  const assay_tensor *t = &img->arg[arg];
  cache_strides s = {0, 0, 0, 0, 1, place_channels(img, arg)};
  const char *term = shape_text(img->origin, &img->origin->op->args[arg]);
  for (int32_t a = 0; a < t->rank; ++a) {
    const size_t size = strcspn(term, ",|");
    if (named(term, size, "num_blocks")) s.block = t->stride[a];
    if (named(term, size, "block_size")) s.token = t->stride[a];
    if (named(term, size, "H_kv")) s.head = t->stride[a];
    if (named(term, size, "D") || named(term, size, "D_v")) s.channel = t->stride[a];
    if (named(term, size, "D/x")) s.chunk = t->stride[a];
    if (named(term, size, "x")) {
      s.channel = t->stride[a];
      s.x = t->shape[a];
    }
    term += size + (term[size] == ',');
  }
  if (img->contiguous) s.token = s.block;
  return s;
}

int64_t place_slot(const image *img, int64_t row) {
  const logical *l = img->logical;
  const int64_t request = img->request_of_row[row];
  const int64_t token = (int64_t)l->length[request] - l->fresh[request] + img->position_of_row[row];
  if (token < 0) return -1;
  const int64_t identity = l->block_identity[l->block_start[request] + token / l->block_size];
  return (img->first_block + img->physical[identity]) * l->block_size + token % l->block_size;
}

int32_t place_axis(const image *img, int32_t arg, const char *dim) {
  const char *term = shape_text(img->origin, &img->origin->op->args[arg]);
  for (int32_t a = 0; dim != NULL && a < img->arg[arg].rank; ++a) {
    const size_t size = strcspn(term, ",|");
    if (named(term, size, dim)) return a;
    term += size + (term[size] == ',');
  }
  return -1;
}

int32_t place_row_axis(const image *img, int32_t arg) {
  const assay_op *op = img->origin->op;
  return place_axis(img, arg, op->form == ASSAY_PLAIN ? op->row_dim : "N");
}

/* Returns the elements of one block, before any padding. */
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

/* Sets the strides of blocks: kv_pad elements between them. V has 2·kv_pad, so that K's stride does not serve for V.
 * With kv_pad -1, K and V take turns in one allocation. */
static void set_block_strides(image *img, int32_t k, int32_t v) {
  const int32_t pad = img->origin->kv_pad;
  const int64_t k_block = block_elements(&img->arg[k]), v_block = block_elements(&img->arg[v]);
  img->arg[k].stride[0] = pad < 0 ? k_block + v_block : k_block + pad;
  img->arg[v].stride[0] = pad < 0 ? k_block + v_block : v_block + 2 * (int64_t)pad;
}

/* Chooses block numbers so high that number · stride leaves 31 bits, in half the draws 32 bits. `last` takes the
 * largest numbers that 31 bits hold: slots leave 31 bits there. Only the pool has memory. */
static void set_first_block(image *img, int32_t k) {
  const int64_t stride = img->arg[k].stride[0];
  if (img->origin->tables != TABLES_HUGE && img->origin->tables != TABLES_LAST) return;
  const int64_t reach = (logical_hash(img->origin, STREAM_HUGE) & 1) != 0 ? (int64_t)1 << 32 : (int64_t)1 << 31;
  img->first_block = img->origin->tables == TABLES_LAST ? INT32_MAX : reach / stride + 1;
  if (img->first_block > INT32_MAX - img->pool_blocks - 1) img->first_block = INT32_MAX - img->pool_blocks - 1;
}

static int64_t extent_bytes(const image *img, int32_t i, int32_t k, int32_t v) {
  const assay_tensor *t = &img->arg[i];
  const int64_t element = assay_dtype_size(t->dtype);
  if (i == k || i == v) return img->pool_blocks * t->stride[0] * element;
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a] > 0 ? t->shape[a] : 0;
  if (img->origin->op->args[i].strided) count = (t->shape[0] > 0 ? t->shape[0] : 0) * t->stride[0];
  return count * element;
}

/* The stride of an axis of extent 1 is only ever multiplied by 0, so any value is legal: its own, or 1, 0, 2^22. */
static void set_strides_of_one(image *img) {
  const assay_case *one = img->origin;
  if (one->section == SECTION_REFUSE) return;
  for (int32_t i = 0; i < one->op->arg_count; ++i)
    for (int32_t a = 0; a < img->arg[i].rank; ++a) {
      const uint64_t pick = logical_hash(one, STREAM_ONE + ((uint64_t)(i * ASSAY_MAX_RANK + a) << 16)) & 3;
      if (img->arg[i].shape[a] == 1 && pick != 0)
        img->arg[i].stride[a] = pick == 1 ? 1 : pick == 2 ? 0 : (int64_t)1 << 22;
    }
}

/* Returns by how many bytes argument i begins after a multiple of DEVICE_ALIGNMENT. Guards are larger than that. */
static int64_t base_shift(const image *img, int32_t i) {
  const uint64_t random = img->chosen.bases;
  int32_t given = 0, before = 0;
  if (random == 0) return 0;
  for (int32_t a = 0; a < img->origin->op->arg_count; ++a) {
    if (img->arg[a].dtype == ASSAY_NONE) continue;
    before += a < i;
    ++given;
  }
  assay_rng rng = {random, (uint64_t)i, 0};
  const bool alone = (random & 1) != 0, moved = !alone || (random >> 1 & 0xFF) % (uint64_t)given == (uint64_t)before;
  return moved ? assay_rng_range(&rng, 1, 15) * assay_dtype_size(img->arg[i].dtype) : 0;
}

assay_status place_image(image *img, assay_error *error) {
  const assay_case *one = img->origin;
  const assay_op *op = one->op;
  const logical *l = img->logical;
  const int32_t k = find_content(op, ASSAY_K_CACHE), v = find_content(op, ASSAY_V_CACHE);
  img->contiguous = case_is_contiguous(one) && !img->chosen.paged;
  if (op->form == ASSAY_PAGED) img->pool_blocks = pool_size(img);
  assay_status status = order_rows(img, error);
  if (status == ASSAY_OK) status = place_pool(img, error);
  if (status != ASSAY_OK) return status;

  int64_t offset = align_up(GUARD_BYTES), strided = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (!is_given(img, i)) continue;
    img->arg[i] = (assay_tensor){.dtype = dtype_of(l, &op->args[i])};
    set_shape(img, &op->args[i], &img->arg[i]);
    /* Each has a padding of its own, so that the stride of one does not serve for another. */
    if (op->args[i].strided && img->arg[i].rank > 1)
      img->arg[i].stride[0] += (one->q_pad + one->row_pad) * (1 + strided++);
  }
  if (k >= 0 && v >= 0) set_block_strides(img, k, v);
  if (img->chosen.apart > 0) img->arg[img->chosen.apart_argument].stride[0] += img->chosen.apart;
  if (k >= 0 && v >= 0) {
    set_first_block(img, k);
    img->arg[k].shape[0] = img->arg[v].shape[0] = img->first_block + img->pool_blocks;
  }
  for (int32_t i = 0; i < op->arg_count; ++i) {
    if (img->arg[i].dtype == ASSAY_NONE) continue;
    const int64_t element = assay_dtype_size(img->arg[i].dtype);
    if (i == v && k >= 0 && one->kv_pad < 0) {
      img->extent[v] = img->extent[k];
      img->bias[v] = block_elements(&img->arg[k]) * element;
    } else {
      img->extent[i] = (span){offset + base_shift(img, i), extent_bytes(img, i, k, v)};
      offset = align_up(img->extent[i].offset + img->extent[i].bytes + GUARD_BYTES);
    }
    if (i == k || i == v) img->bias[i] -= img->first_block * img->arg[i].stride[0] * element;
  }
  img->arena_bytes = offset;
  img->host = image_take(offset, &img->spare_bytes);
  if (img->host == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "generator: no memory for an arena of %lld bytes", (long long)offset);
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (img->arg[i].dtype != ASSAY_NONE)
      img->arg[i].data = (void *)((uintptr_t)img->host + (uintptr_t)(img->extent[i].offset + img->bias[i]));
  set_strides_of_one(img);
  for (int32_t p = 0; p < op->param_count; ++p)
    img->param[p] = one->param[p];
  img->call = (assay_call){op, img->arg, img->param};
  return ASSAY_OK;
}
