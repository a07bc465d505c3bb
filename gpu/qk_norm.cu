/* qk_norm.cu: rms_norm or uclip_norm of every head of q and of k, with weights over the head's channels, in one launch.
 * It works in place or into q_out and k_out. docs/kernels/qk_norm.md has the arithmetic. */
#include "gpu/lib/norm.cuh"
#include "gpu/lib/uclip_vector.cuh"

namespace ASSAY_NS {
namespace {

constexpr int warps = 4; /* heads per block */

struct heads_params {
  const void *in;
  void *out;
  int64_t in_row, out_row;
  uclip_weights weights; /* rms: gamma alone */
  int32_t heads;
};

struct qk_params {
  heads_params q, k;
  int64_t N, heads; /* heads: those of all rows, q and k */
  int32_t D;
  float eps;
  bool rms, round_inner, quads;
  assay_dtype type;
};

/* Returns the first channel of a lane's quad. The lanes add their squares in the order in which lanes with whole
 * vectors add them. */
template <class T> __device__ __forceinline__ int32_t quad_of(int32_t lane, int part) {
  return sizeof(T) == 4 ? 4 * (lane + 32 * part) : 8 * lane + 4 * part;
}

/* qk_heads: one head per warp; all of the head is read before any of it is written. The bits are those of qk_vectors.
 * Grid:   ceil(N (H + H_kv) / 4). Block: 128 threads: four heads, of q first, then of k, row by row.
 * Shared: none.
 * Align:  quads where every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 D sizeof(T) per head. */
template <class T> __global__ void __launch_bounds__(32 * warps) qk_heads(qk_params p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * warps + static_cast<int32_t>(threadIdx.x) / 32;
  if (index >= p.heads) return; /* whole warps */
  const int32_t both = p.q.heads + p.k.heads, place = static_cast<int32_t>(index % both);
  const int64_t row = index / both;
  const bool is_q = place < p.q.heads;
  const heads_params &t = is_q ? p.q : p.k;
  const int64_t head = static_cast<int64_t>(is_q ? place : place - p.q.heads) * p.D;
  const T *const in = static_cast<const T *>(t.in) + row * t.in_row + head;
  T *const out = static_cast<T *>(t.out) + row * t.out_row + head;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;

  float v[2][4], square = 0.0f; /* D is 256 at most: two quads a lane */
  ASSAY_UNROLL
  for (int part = 0; part < 2; ++part) {
    load_channels(in, quad_of<T>(lane, part), p.D, p.quads, v[part]);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      square += v[part][i] * v[part][i];
  }
  float factor = 1.0f, scale = 1.0f;
  if (p.rms) factor = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(p.D) + p.eps);
  if (norm_overflowed<T>(factor)) { /* the same for all lanes of the head */
    scale = norm_rescale;
    square = 0.0f;
    ASSAY_UNROLL
    for (int part = 0; part < 2; ++part) {
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        square += v[part][i] * scale * (v[part][i] * scale);
    }
    factor = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(p.D));
  }

  ASSAY_UNROLL
  for (int part = 0; part < 2; ++part) {
    const int32_t d = quad_of<T>(lane, part);
    if (d >= p.D) break;
    if (p.rms) {
      float gamma[4];
      load_weights<T>(t.weights.gamma, d, p.D, p.quads, 1.0f, gamma);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float n = v[part][i] * factor * scale;
        v[part][i] = (p.round_inner ? round_to<T>(n) : n) * gamma[i];
      }
    } else {
      uclip_channels<T>(t.weights, d, p.D, p.quads, v[part]);
    }
    store_channels(out, d, p.D, p.quads, v[part]);
  }
}

/* ---- launcher --------------------------------------------------------------------------------------- */

assay_status read_heads(const plain_call &c, const char *name, const char *out, const char *prefix, heads_params *p,
                        assay_error *error) {
  const char *const to = c.has(out) ? out : name;
  p->in = c.data<const void>(name);
  p->out = c.data<void>(to);
  p->in_row = c.row(name);
  p->out_row = c.row(to);
  return read_uclip(c, prefix, c.dim32("D"), &p->weights, error);
}

assay_status read_call(const assay_call *call, qk_params *p, assay_error *error) {
  plain_call c;
  *p = qk_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("q", c.type("q"), error));
  p->rms = c.integer("kind") == 0;
  const char *const none_with_rms[] = {"q_alpha", "k_alpha", "q_beta", "k_beta"};
  for (const char *name : none_with_rms)
    if (p->rms && c.has(name))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with kind rms", name);
  ASSAY_TRY(read_heads(c, "q", "q_out", "q_", &p->q, error));
  ASSAY_TRY(read_heads(c, "k", "k_out", "k_", &p->k, error));
  p->q.heads = c.dim32("H");
  p->k.heads = c.dim32("H_kv");
  p->N = c.dim("N");
  p->heads = c.dim("N") * (c.dim("H") + c.dim("H_kv"));
  p->D = c.dim32("D");
  p->eps = c.real("eps");
  p->round_inner = c.flag("round_inner");
  p->quads = plain_quads(c);
  p->type = c.type("q");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  qk_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "warp_heads %s quads=%d", p.rms ? "rms" : "uclip", p.quads ? 1 : 0);
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, qk_heads<T>, (p.heads + warps - 1) / warps, 32 * warps, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int qk_rows = 4;

/* qk_vectors: a head of q or k by `lanes` neighbouring lanes, each with `parts` vectors of its channels, in one row or
 * four. The weights are loaded once for all of them, beside the rows.
 * Grid:   (groups of rows, pieces of a row's heads). Block: 32 to 256 threads: heads of q, then of k.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes, D of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 2 D sizeof(T) per head. */
template <class T, int lanes, int parts, int rows> __global__ void __launch_bounds__(256) qk_vectors(qk_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int32_t thread = vector_of_thread(), place = thread / lanes, lane = thread % lanes;
  const bool is_q = place < p.q.heads, there = place < p.q.heads + p.k.heads;
  const heads_params &t = is_q ? p.q : p.k;
  const int64_t head = static_cast<int64_t>(is_q ? place : place - p.q.heads) * p.D;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  bool mine[parts];
  uint4 x[rows][parts] = {};
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    const int32_t d = width * (lane + part * lanes);
    mine[part] = there && d < p.D;
    ASSAY_UNROLL
    for (int r = 0; r < rows; ++r)
      if (mine[part] && first + r < p.N)
        x[r][part] = load_vector(static_cast<const T *>(t.in) + (first + r) * t.in_row + head + d);
  }

  const uclip_vector<T> first_weights(t.weights, mine[0] ? width * lane : 0);
  const uclip_vector<T> last_weights(t.weights, mine[parts - 1] ? width * (lane + (parts - 1) * lanes) : 0);

  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    float v[parts][width], square = 0.0f, factor = 1.0f, scale = 1.0f;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      split_vector<T>(x[r][part], v[part]);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        square += v[part][i] * v[part][i];
    }
    if (p.rms) factor = 1.0f / sqrtf(group_sum<lanes>(square) / static_cast<float>(p.D) + p.eps);
    if (norm_overflowed<T>(factor)) { /* the same for all lanes of the head */
      scale = norm_rescale;
      square = 0.0f;
      ASSAY_UNROLL
      for (int part = 0; part < parts; ++part) {
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          square += v[part][i] * scale * (v[part][i] * scale);
      }
      factor = 1.0f / sqrtf(group_sum<lanes>(square) / static_cast<float>(p.D));
    }
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      const uclip_vector<T> &weights = part == 0 ? first_weights : last_weights;
      if (p.rms) {
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          v[part][i] = v[part][i] * factor * scale;
        if (p.round_inner) split_vector<T>(round_vector<T>(v[part]), v[part]);
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          v[part][i] *= weights.gamma[i];
      } else {
        weights.apply(v[part]);
      }
      if (mine[part] && first + r < p.N)
        store_vector(static_cast<T *>(t.out) + (first + r) * t.out_row + head + width * (lane + part * lanes),
                     round_vector<T>(v[part]));
    }
  }
}

assay_status read_vectors(const assay_call *call, qk_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "D", p->D, p->type, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  qk_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const int32_t width = static_cast<int32_t>(16 / assay_dtype_size(p.type)), vectors = p.D / width;
  const int32_t lanes = vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32, parts = vectors > 32 ? 2 : 1;
  const vector_grid grid = split_vectors(p.N, (p.q.heads + p.k.heads) * lanes * width, p.type, qk_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors %s lanes=%d parts=%d rows=%d", p.rms ? "rms" : "uclip", lanes,
                 parts, grid.rows);
  return with_type(p.type, [&](auto type) {
    return with_rows<qk_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(type)::type;
      constexpr int count = decltype(rows)::value;
      const auto start = [&](auto kernel) {
        return ASSAY_LAUNCH_WITH(error, kernel, launch_extent(grid.groups, grid.pieces), grid.threads, 0, in_turn(),
                                 env->stream, p);
      };
      if constexpr (sizeof(T) == 4) /* 64 vectors of f32 at most, 32 of the others */
        if (parts == 2) return start(qk_vectors<T, 32, 2, count>);
      if (lanes == 8) return start(qk_vectors<T, 8, 1, count>);
      if (lanes == 16) return start(qk_vectors<T, 16, 1, count>);
      return start(qk_vectors<T, 32, 1, count>);
    });
  });
}

/* Sums over a head run on 8, 16 or 32 lanes. */
constexpr assay_contract heads_contract = norm_contract(8);

} // namespace
} // namespace ASSAY_NS

#define WARP_HEADS                                                                                                     \
  PLAIN_VARIANT("qk_norm", "warp_heads", "a warp a head, q and k in one launch", PLAIN_TYPE_CLAIMS, heads_contract,    \
                qk_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("qk_norm", "vectors", "a head by 8 to 32 lanes, 16 bytes a load", PLAIN_TYPE_CLAIMS, heads_contract,   \
                qk_params, read_vectors, launch_vectors)

ASSAY_VARIANTS(qk_norm, VECTORS, WARP_HEADS)
