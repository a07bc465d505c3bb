/* narrow_mistakes.h: mistakes that simt_narrow_mutant_test plants in a device's products with weights of e4m3, one at a
 * time. narrow_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_NARROW_MISTAKES_H
#define ASSAY_SELFTEST_NARROW_MISTAKES_H

enum {
  NARROW_NO_MISTAKE,
  NARROW_NEXT_BLOCK,      /* each block has the scale of the block after it */
  NARROW_TRANSPOSED,      /* rows and columns of scales are exchanged */
  NARROW_FIRST_EXPERT,    /* all experts have the scales of the first */
  NARROW_HALF_OF_EXPERTS, /* the up half of an expert has the scales of its gate half */
  NARROW_UNSCALED,        /* an expert's codes are multiplied as they are */
  NARROW_NEXT_GROUP,      /* each group of a row has the scale of the group after it */
  NARROW_BIAS_LOST        /* a product leaves out its bias */
};

/* The mistake that is planted now. */
static int narrow_mistake;
#define PLANTED(which) (narrow_mistake == (which))

#endif
