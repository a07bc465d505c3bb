/* layers_planted.cu: the kernel of all layers with the mistakes of layers_mistakes.h. plant.sh makes the copies that
 * are included here, by layers_mistakes.def. They have a namespace of their own, beside the library's kernel. */
#define assay_simt_device planted_layers
#define LAYERS_SYMBOL     planted_layers_simt

#include "layers_mistakes.h"

#include "gpu/models/layers.cu"
