/* delta_mistakes.h: mistakes that simt_delta_mutant_test plants in a device's layers with the gated delta rule, one at
 * a time. delta_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_DELTA_MISTAKES_H
#define ASSAY_SELFTEST_DELTA_MISTAKES_H

enum {
  DELTA_NO_MISTAKE,
  DELTA_STATES_OF_ONE_LAYER, /* all layers use the first one's states */
  DELTA_GATES_EXCHANGED,     /* b for a */
  DELTA_Z_IS_V,
  DELTA_Q_AND_K_EXCHANGED,
  DELTA_ONE_MEAN,          /* one mean square for all heads of a row */
  DELTA_GATE_IS_SILU,      /* the gate of attention */
  DELTA_TILES_OF_LAYER_0,  /* the weights of another layer's norm */
  DELTA_TURNS_EXCHANGED,   /* results before gates */
  DELTA_MATRICES_STAY,     /* only the rows of the convolution are copied */
  DELTA_ROWS_STAY,         /* only the matrices are copied */
  DELTA_HALF_OF_THE_LAYERS /* the second half of the layers is not copied */
};

/* The mistake that is planted now. */
static int delta_mistake;
#define PLANTED(which) (delta_mistake == (which))

#endif
