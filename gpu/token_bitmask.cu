/* token_bitmask.cu: bans tokens by a bit mask. The definition is in ref/token_bitmask.c's head and in
 * docs/definitions.md, section 11.
 *
 * words: a warp per 32 words of a mask row; lane l decides about the tokens l, l + 32, … of them. In place only banned
 * tokens are written. docs/kernels/token_bitmask.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

constexpr int bitmask_warps = 8;

struct bitmask_params {
  void *logits, *out; /* out: where the result goes, logits itself in place */
  const int32_t *mask, *rows;
  int64_t logits_row, out_row, mask_row, N, M;
  int32_t V, V_m, pieces;
  bool tail;
  assay_dtype type;
};

/* bitmask_copy: copies the logits to logits_out, as integers of the element's size.
 * Grid:   (N * pieces): a row in pieces of 256 tokens. Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 2 sizeof(T) per token. */
template <class Bits> __global__ void __launch_bounds__(256) bitmask_copy(bitmask_params p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t v = piece * 256 + static_cast<int32_t>(threadIdx.x);
  if (v >= p.V) return;
  static_cast<Bits *>(p.out)[row * p.out_row + v] = static_cast<const Bits *>(p.logits)[row * p.logits_row + v];
}

/* bitmask_ban: writes -Inf over banned tokens.
 * Grid:   (M * pieces): a row in pieces of 8 warps. Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: a bit read per token, sizeof(T) written per banned token. */
template <class T> __global__ void __launch_bounds__(32 * bitmask_warps) bitmask_ban(bitmask_params p) {
  const int64_t mask_row = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t row = p.rows != nullptr ? p.rows[mask_row] : mask_row;
  if (row < 0 || row >= p.N) return;
  const int32_t first = 1024 * (piece * bitmask_warps + warp), words = (p.V_m + 31) / 32;
  T *const out = static_cast<T *>(p.out) + row * p.out_row;
  const int32_t *const mask = p.mask + mask_row * p.mask_row;
  for (int32_t i = 0; i < 32; ++i) {
    const int32_t v = first + 32 * i + lane, word = v / 32;
    if (v >= p.V) continue;
    const bool banned = v >= p.V_m ? p.tail : word < words && (static_cast<uint32_t>(mask[word]) >> lane & 1u) == 0;
    if (banned) out[v] = from_float<T>(-INFINITY);
  }
}

assay_status read_call(const assay_call *call, bitmask_params *p, assay_error *error) {
  plain_call c;
  *p = bitmask_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("logits", c.type("logits"), error));
  p->logits = c.data<void>("logits");
  p->out = c.has("logits_out") ? c.data<void>("logits_out") : p->logits;
  p->mask = c.data<const int32_t>("mask");
  p->rows = c.data<const int32_t>("rows");
  p->logits_row = c.row("logits");
  p->out_row = c.has("logits_out") ? c.row("logits_out") : p->logits_row;
  p->mask_row = c.row("mask");
  p->N = c.dim("N");
  p->M = c.dim("M");
  p->V = c.dim32("V");
  p->V_m = c.integer("V_m") > 0 ? static_cast<int32_t>(c.integer("V_m")) : p->V;
  p->pieces = (p->V + 1024 * bitmask_warps - 1) / (1024 * bitmask_warps);
  p->tail = c.flag("tail");
  p->type = c.type("logits");
  if (p->V_m > p->V) return assay_fail(error, ASSAY_ERR_INPUT, "V_m: found %d, allowed up to V = %d", p->V_m, p->V);
  if (c.dim("W") < (p->V_m + 31) / 32)
    return assay_fail(error, ASSAY_ERR_INPUT, "W: found %" PRId64 " words, allowed from %d on", c.dim("W"),
                      (p->V_m + 31) / 32);
  if (p->rows == NULL && p->M > p->N)
    return assay_fail(error, ASSAY_ERR_INPUT, "M: found %" PRId64 ", allowed up to N = %" PRId64 " without rows", p->M,
                      p->N);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  bitmask_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const bool apart = p.out != p.logits;
  (void)snprintf(env->path, sizeof env->path, "words apart=%d", apart ? 1 : 0);
  if (apart && p.N > 0) {
    bitmask_params copy = p;
    copy.pieces = (p.V + 255) / 256;
    const int64_t blocks = p.N * copy.pieces;
    if (assay_dtype_size(p.type) == 4)
      ASSAY_TRY(ASSAY_LAUNCH(error, bitmask_copy<uint32_t>, blocks, 256, 0, env->stream, copy));
    else
      ASSAY_TRY(ASSAY_LAUNCH(error, bitmask_copy<uint16_t>, blocks, 256, 0, env->stream, copy));
  }
  if (p.M == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (bitmask_ban<T>), p.M * p.pieces, 32 * bitmask_warps, 0, env->stream, p);
  });
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define WORDS                                                                                                          \
  PLAIN_VARIANT("token_bitmask", "words", "a warp per 32 words, a lane per bit", PLAIN_TYPE_CLAIMS, contract,          \
                bitmask_params, read_call, launch)

ASSAY_VARIANTS(token_bitmask, WORDS)
