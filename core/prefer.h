/* prefer.h: variants of attention that are faster than one before them (strategies.def), by lengths that no launcher
 * knows on the host. Forward passes and benches follow these rules; other callers may. */
#ifndef ASSAY_CORE_PREFER_H
#define ASSAY_CORE_PREFER_H

#include <stdbool.h>
#include <stdint.h>

/* Decode without a window, over kv_len keys each [requests]: do stream_k and its kin win by their even shares? */
bool prefer_even_shares(const int32_t *kv_len, int64_t requests);

/* Prompts without a window: does packed_wgmma win over wgmma? H and H_kv: heads of q and of the cache. tokens: new ones
 * of all requests. */
bool prefer_packed(int64_t D, int64_t H, int64_t H_kv, int64_t tokens, int64_t requests);

#endif
