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
  LATENT_POOL_OF_LAYER_0,    /* all layers share one pool */
  LATENT_HALF_OF_THE_LAYERS, /* blocks of the second half of the layers are not copied */
  /* By keys and values of every head. */
  LATENT_RUN_FROM_ROW_0,    /* every run has the first rows of q */
  LATENT_TABLE_FROM_0,      /* a run over entries has the tables of the first requests */
  LATENT_KEYS_WITHOUT_PE,   /* keys have W_UK c alone */
  LATENT_VALUES_OF_LAYER_0, /* all layers have the values of the first */
  LATENT_BLOCKS_OF_FIRST,   /* all requests have the first one's blocks */
  LATENT_NO_PREFIX,         /* the blocks before a chunk are those after its beginning */
  LATENT_KEYS_FROM_0,       /* the keys of every request begin with those of the run */
  LATENT_LENGTHS_FROM_0,    /* a run has the lengths of the first requests */
  LATENT_FILLED_SHIFTED,    /* filled heads of values lie as narrow ones do */
  LATENT_RUN_TOO_LONG,      /* runs have more blocks than there is memory for */
  LATENT_ALWAYS_EXPANDED    /* single tokens attend over keys and values of every head, too */
};

/* The mistake that is planted now. */
static int latent_mistake;
#define PLANTED(which) (latent_mistake == (which))

#endif
