/* paged_tables.h: rows of the tables of operators over a paged cache. A macro is one or more rows of assay_op.dims,
 * args or params. An operator lists them in its own order, with rows of its own between them. Parameters of a macro are
 * the parts in which operators differ; `more` continues a text, `before` begins it. */
#ifndef ASSAY_REF_PAGED_TABLES_H
#define ASSAY_REF_PAGED_TABLES_H

/* Bounds of dimensions for which references have arrays of fixed size. */
enum { PAGED_MAX_TAPS = 8, PAGED_MAX_D = 256 };

/* ---- dimensions -------------------------------------------------------------------------------------- */

#define PAGED_B                                                                                                        \
  { "B", 0, 0, 0, 1, "requests of the batch" }
#define PAGED_N(doc)                                                                                                   \
  { "N", 0, 0, 0, 1, doc }
#define PAGED_H                                                                                                        \
  { "H", 1, 256, 8, 1, "query heads" }
#define PAGED_H_KV(more)                                                                                               \
  { "H_kv", 1, 256, 4, 1, "key/value heads" more }
#define PAGED_D                                                                                                        \
  { "D", 8, PAGED_MAX_D, 128, 8, "channels of a head" }
#define PAGED_D_V                                                                                                      \
  { "D_v", 0, PAGED_MAX_D, 0, 8, "channels of a value head; 0: D" }
#define PAGED_BLOCK_SIZE(more)                                                                                         \
  { "block_size", 8, 256, 16, 8, "tokens of a cache block: 8, 16, 32, 64, 128 or 256" more }
#define PAGED_BLOCK_SIZE_FROM_1(more)                                                                                  \
  { "block_size", 1, 256, 16, 1, "tokens of a cache block: 1, 8, 16, 32, 64, 128 or 256; not 1 in layout x" more }
#define PAGED_NUM_BLOCKS(more)                                                                                         \
  { "num_blocks", 0, 0, 0, 1, "blocks of the pool" more }
#define PAGED_MAX_BLOCKS                                                                                               \
  { "max_blocks", 0, 0, 0, 1, "width of the block table" }
#define PAGED_KV_SCALES                                                                                                \
  { "kv_scales", 0, 0, 0, 1, "fp8 factors: 1, or H_kv with scale_per_head" }

/* The heads of operators that attend. */
#define PAGED_HEADS PAGED_H, PAGED_H_KV("; query head h reads kv head h / (H / H_kv)"), PAGED_D

/* All dimensions of an operator that reads the cache, contiguous keys and values included. */
#define ATTENTION_DIMS ATTENTION_DIMS_WITH(PAGED_BLOCK_SIZE("; in the tensors 1 with cu_k"))
#define ATTENTION_DIMS_WITH(...)                                                                                       \
  PAGED_B, PAGED_N("query rows: the sum of all T_i; decode: B"), PAGED_HEADS, __VA_ARGS__,                             \
      PAGED_NUM_BLOCKS("; with cu_k rows, one token each"), PAGED_MAX_BLOCKS, PAGED_KV_SCALES

/* The gate's taps, and the rotation's channels and positions. */
#define GATE_F                                                                                                         \
  { "F", 1, PAGED_MAX_TAPS, 3, 1, "filter taps" }
#define ROPE_R                                                                                                         \
  { "R", 2, PAGED_MAX_D, 8, 2, "rotated channels, at most D" }
#define ROPE_MAX_POS(fallback, doc)                                                                                    \
  { "max_pos", 1, 1 << 20, fallback, 1, doc }

/* ---- arguments ----------------------------------------------------------------------------------------- */

#define PAGED_Q                                                                                                        \
  { "q", ASSAY_IN, ASSAY_QUERY, false, "f32,f16,bf16", "N,H,D", "queries; the row stride is free", true }
#define PAGED_K_CACHE(role, dtypes)                                                                                    \
  {                                                                                                                    \
    "k_cache", role, ASSAY_K_CACHE, false, dtypes,                                                                     \
        "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D/x,block_size,x",                  \
        "pool of keys; every stride but the last is free", false                                                       \
  }
#define PAGED_V_CACHE(role) PAGED_V_CACHE_OF(role, "D")
#define PAGED_V_CACHE_OF(role, D_v)                                                                                    \
  {                                                                                                                    \
    "v_cache", role, ASSAY_V_CACHE, false, "=k_cache",                                                                 \
        "num_blocks,block_size,H_kv," D_v "|num_blocks,H_kv,block_size," D_v "|num_blocks,H_kv," D_v ",block_size",    \
        "pool of values; every stride but the last is free", false                                                     \
  }
#define PAGED_K_SCALE                                                                                                  \
  { "k_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "K = code · k_scale; with fp8 caches only", false }
#define PAGED_V_SCALE                                                                                                  \
  { "v_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "V = code · v_scale; with fp8 caches only", false }
#define PAGED_SLOTS(unwritten)                                                                                         \
  {                                                                                                                    \
    "slots", ASSAY_IN, ASSAY_SLOTS, false, "i64", "N", "block · block_size + offset of each row; -1: " unwritten,      \
        false                                                                                                          \
  }
#define PAGED_BLOCK_TABLE(optional, more)                                                                              \
  {                                                                                                                    \
    "block_table", ASSAY_IN, ASSAY_BLOCK_TABLE, optional, "i32", "B,max_blocks",                                       \
        "physical block of each logical block" more, false                                                             \
  }
#define PAGED_KV_LEN(doc)                                                                                              \
  { "kv_len", ASSAY_IN, ASSAY_KV_LEN, false, "i32", "B", doc, false }
#define PAGED_CU_Q                                                                                                     \
  { "cu_q", ASSAY_IN, ASSAY_CU_Q, true, "i32", "B+1", "first row of each request; absent: one row per request", false }
#define PAGED_CU_K                                                                                                     \
  {                                                                                                                    \
    "cu_k", ASSAY_IN, ASSAY_CU_K, true, "i32", "B+1",                                                                  \
        "contiguous, without block_table: key t of request i is row cu_k[i] + t of K and V, L_i at most cu_k[i + 1] "  \
        "- "                                                                                                           \
        "cu_k[i]",                                                                                                     \
        false                                                                                                          \
  }
#define PAGED_OUT(dtypes) PAGED_OUT_OF(dtypes, "D")
#define PAGED_OUT_OF(dtypes, D_v)                                                                                      \
  { "out", ASSAY_OUT, ASSAY_RESULT, false, dtypes, "N,H," D_v, "sum of p v", false }

#define GATE_TAPS(before, more)                                                                                        \
  { "taps", ASSAY_IN, ASSAY_TAPS, false, "f32", "F", before "filter w" more, false }
#define GATE_GAMMA(before, more)                                                                                       \
  { "gamma", ASSAY_IN, ASSAY_GAMMA, false, "f32", "H", before "factor of each head" more, false }
#define ROPE_COS                                                                                                       \
  { "cos", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "cosines of each position", false }
#define ROPE_SIN                                                                                                       \
  { "sin", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "sines", false }

/* The cache with its fp8 factors: four arguments. */
#define PAGED_CACHE(role, key_dtypes) PAGED_CACHE_OF(role, key_dtypes, "D")
#define PAGED_CACHE_OF(role, key_dtypes, D_v)                                                                          \
  PAGED_K_CACHE(role, key_dtypes), PAGED_V_CACHE_OF(role, D_v), PAGED_K_SCALE, PAGED_V_SCALE

/* The first nine arguments of an operator that reads the cache: its queries, and K and V, paged or contiguous. */
#define ATTENTION_ARGS ATTENTION_ARGS_OF("D")
#define ATTENTION_ARGS_OF(D_v)                                                                                         \
  PAGED_Q, PAGED_CACHE_OF(ASSAY_IN, "=q,e4m3,e5m2", D_v),                                                              \
      PAGED_BLOCK_TABLE(true, "; absent: K and V are contiguous, by cu_k"),                                            \
      PAGED_KV_LEN("L_i, the T_i new tokens included"), PAGED_CU_Q, PAGED_CU_K

/* The last arguments of an operator that appends and attends, after the cache. */
#define APPEND_ATTENTION_ARGS(dtypes)                                                                                  \
  PAGED_BLOCK_TABLE(false, ""), PAGED_KV_LEN("L_i, the new token included; 0: a pad row"),                             \
      GATE_TAPS("gate: ", "; not read with kind softmax"), GATE_GAMMA("gate: ", "; not read with kind softmax"),       \
      PAGED_OUT(dtypes)

/* ---- parameters ---------------------------------------------------------------------------------------- */

#define PAGED_LAYOUT(more)                                                                                             \
  { "layout", ASSAY_ENUM, 0, 2, 0, "nhd,hnd,x", "order of the axes of the pools" more }
#define PAGED_KIND                                                                                                     \
  { "kind", ASSAY_ENUM, 0, 1, 0, "gate,softmax", "which attention" }
#define PAGED_SCALE                                                                                                    \
  { "scale", ASSAY_REAL, 0, 1e6, 0, NULL, "factor of q·k; 0: 1/sqrt(D)" }
#define PAGED_WINDOW                                                                                                   \
  { "window", ASSAY_INTEGER, 0, INT32_MAX, 0, NULL, "keys seen, the row's own included; 0: all" }
#define PAGED_SCALE_PER_HEAD                                                                                           \
  { "scale_per_head", ASSAY_BOOL, 0, 1, 0, NULL, "one fp8 factor per kv head" }
#define ROPE_STYLE                                                                                                     \
  { "style", ASSAY_ENUM, 0, 1, 0, "neox,interleaved", "which channels make a pair" }

/* The gate's clip and rectifier. */
#define GATE_LO(before)                                                                                                \
  { "lo", ASSAY_REAL, 0, 1e6, 0, NULL, before "lower clip edge" }
#define GATE_HI(before)                                                                                                \
  { "hi", ASSAY_REAL, 0, 1e6, 1, NULL, before "upper clip edge, at least lo" }
#define GATE_RELU_PRE(before)                                                                                          \
  { "relu_pre", ASSAY_BOOL, 0, 1, 1, NULL, before "rectify scores before the filter" }
#define GATE_PARAMS(before) GATE_LO(before), GATE_HI(before), GATE_RELU_PRE(before)

/* The mask and the scales, after the parameters that choose a layout or a kind. */
#define PAGED_ATTENTION_PARAMS PAGED_SCALE, PAGED_WINDOW, PAGED_SCALE_PER_HEAD

#endif
