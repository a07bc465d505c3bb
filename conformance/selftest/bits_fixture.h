/* bits_fixture.h: products with the bits that an H100 gave (fixtures/bits), held against the predictor. */
#ifndef ASSAY_SELFTEST_BITS_FIXTURE_H
#define ASSAY_SELFTEST_BITS_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/sums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The result of comparing one product. */
typedef struct bits_result {
  char name[64];
  int64_t elements, products; /* elements compared; products summed for them */
  int64_t differ;             /* elements with other bits than the card's */
  double seconds;
} bits_result;

enum { BITS_PRODUCTS = 32 };

/* Predicts every product that FOLDER/index.json lists and compares bits. `change` may alter the sum contract first;
 * NULL: as the index says. Returns the number of products. Returns -1 with a message if a file is not as it must be. */
int32_t bits_compare(const char *folder, void (*change)(assay_sums *sums), bits_result result[BITS_PRODUCTS],
                     assay_error *error);

/* Predicts the single steps of FOLDER/steps_*.npy, which hold special and extreme values. Returns the number of files,
 * or -1. */
int32_t bits_steps(const char *folder, bits_result result[BITS_PRODUCTS], assay_error *error);

#ifdef __cplusplus
}
#endif
#endif
