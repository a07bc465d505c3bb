/* latent_mistakes.h: mistakes that simt_latent_mutant_test plants in a device's latent attention, one at a time.
 * latent_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_LATENT_MISTAKES_H
#define ASSAY_SELFTEST_LATENT_MISTAKES_H

enum {
  LATENT_NO_MISTAKE,
  LATENT_HEADS_BY_ROW,    /* rows of one token take the weights of one head */
  LATENT_FIRST_ROTATED,   /* the first channels of a head are rotated, and not the last */
  LATENT_VALUES_ARE_KEYS, /* W_UV begins where W_UK does */
  LATENT_PE_LOST,         /* absorbed queries without the rotated channels */
  LATENT_USUAL_SCALE,     /* D^-1/2 whatever the model says */
  LATENT_WEIGHTS_OF_LAYER_0,
  LATENT_POOL_OF_LAYER_0,   /* all layers share one pool */
  LATENT_HALF_OF_THE_LAYERS /* blocks of the second half of the layers are not copied */
};

/* The mistake that is planted now. */
static int latent_mistake;
#define PLANTED(which) (latent_mistake == (which))

#endif
