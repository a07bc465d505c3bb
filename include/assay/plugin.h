/* plugin.h: the interface for outside variants. A plug-in is a shared object with one symbol:
 *
 *   const assay_plugin_table *assay_plugin(const assay_host *host);
 *
 * It returns NULL to refuse, and writes the reason to host->refusal. Otherwise it returns a table that lives as long as
 * the object is loaded. It needs these headers and links against nothing. */
#ifndef ASSAY_PLUGIN_H
#define ASSAY_PLUGIN_H

#include <stddef.h>

#include "variant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_ABI = 6 };

struct assay_simt_api; /* the scheduler of simt: <assay/simt/cuda.h> */

/* The host, as a plug-in sees it. */
typedef struct assay_host {
  uint32_t abi, struct_size;
  const struct assay_simt_api *simt; /* NULL where the host was built without simt */
  char *refusal;                     /* the plug-in's buffer for the reason of a refusal */
  size_t refusal_size;
} assay_host;

/* The table that a plug-in returns and owns. */
typedef struct assay_plugin_table {
  uint32_t abi, struct_size;
  const char *name;
  const assay_variant *variants;
  int32_t variant_count;
} assay_plugin_table;

typedef const assay_plugin_table *(*assay_plugin_entry)(const assay_host *host);

#ifdef __cplusplus
}
#endif
#endif
