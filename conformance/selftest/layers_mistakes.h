/* layers_mistakes.h: mistakes that simt_layers_mutant_test plants in the kernel of all layers, one at a time.
 * layers_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_LAYERS_MISTAKES_H
#define ASSAY_SELFTEST_LAYERS_MISTAKES_H

enum {
  LAYERS_NO_MISTAKE,
  LAYERS_NOT_EMPTIED,         /* the words before mlp.down stay from layer to layer */
  LAYERS_STEPS_NOT_COUNTED,   /* each step begins with the first set of words, which the last step has left */
  LAYERS_EMPTIED_TOO_EARLY,   /* the words of a layer are emptied while the layer is under way */
  LAYERS_PAGE_OF_FIRST,       /* all keys are taken from the row's first page */
  LAYERS_CACHE_OF_LAST_LAYER, /* keys and values are those of the layer before */
  LAYERS_RESIDUAL_TWICE,      /* the stream is added twice */
  LAYERS_NORM_OF_NEXT_ROW,    /* a row has the factor of its neighbour's norm */
  LAYERS_NORM_OF_LAST_LAYER,  /* the norm before attention has the weights of the layer before */
  LAYERS_KEY_IS_VALUE,        /* the new value is written to the cache as its key */
  LAYERS_NEW_KEY_LOST,        /* the new token is not attended to */
  LAYERS_NEW_KEY_OFTEN,       /* each piece of a row has the block's last new key */
  LAYERS_PIECE_LOST,          /* the last piece of a row's keys is not joined */
  LAYERS_PIECES_STAY,         /* the words of pieces stay from layer to layer */
  LAYERS_SPAN_FROM_START,     /* each piece has a row's first keys */
  LAYERS_REST_OF_BOX,         /* values in the cache beyond the last key count, with a weight of 0 */
  LAYERS_PART_LOST,           /* the sums of the second part of k are not added */
  LAYERS_PACKED_OTHERWISE,    /* two octets of packed weights have changed places */
  LAYERS_HISTORY_LOST,        /* gate: a chunk of keys begins as if there were none before it */
  LAYERS_NOTHING_BEFORE,      /* gate: so does a piece of a row's keys */
  LAYERS_TAPS_EXCHANGED,      /* gate: the first and the second tap have changed places */
  LAYERS_NOT_CLIPPED,         /* gate: weights may be above the upper limit */
  LAYERS_NEW_KEY_ALONE,       /* gate: the new key's weight has its own score alone */
  LAYERS_NORM_AFTER_LOST,     /* gate: the norms after the two halves of a layer are left out */
  LAYERS_GATE_OF_NEXT_HEAD,   /* gate: a head has the factor of its neighbour */
  LAYERS_ALPHA_OF_OTHER,      /* gate: q has the alphas of k's norm, and k those of q's */
  LAYERS_GAMMA_LOST,          /* gate: the norms of heads have no gamma */
  LAYERS_PIECES_BY_BATCH,     /* fixed: a row's keys are cut by what all rows have */
  LAYERS_OWN_PIECE_LOST,      /* fixed: of a row's pieces in one block the last counts alone */
  LAYERS_MISTAKES
};

/* The mistake that is planted now. */
#ifdef __cplusplus
extern "C"
#else
extern
#endif
    int layers_mistake;
#define PLANTED(which) (layers_mistake == (which))

#endif
