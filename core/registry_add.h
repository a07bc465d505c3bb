/* registry_add.h: adds rows to the registry; used by conformance/builtin.c, plugin.c and selftests. */
#ifndef ASSAY_CORE_REGISTRY_ADD_H
#define ASSAY_CORE_REGISTRY_ADD_H

#include "core/layers.h"
#include "core/registry.h"

assay_status assay_registry_add_op(const assay_op *op, assay_error *error);
assay_status assay_registry_add_device(const assay_device *device, assay_error *error);
/* Adds a device's kernel of all layers, in place of the one that it has. */
void assay_registry_add_layers(const assay_layers *row);
/* Adds all rows or none. `origin` must live as long as the process. */
assay_status assay_registry_add_variants(const assay_variant *rows, int32_t count, const char *origin,
                                         assay_error *error);
/* Moves the variant `name` right after `other`, of the same operator and device. ASSAY_ERR_INPUT: one is unknown. */
assay_status assay_registry_put_behind(const char *op, const char *name, const char *other, const char *device,
                                       assay_error *error);
/* Sets what plug-ins get to see of simt; NULL without it. */
void assay_registry_set_simt(const struct assay_simt_api *api);

#endif
