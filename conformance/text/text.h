/* text.h: files and words: YAML, .npy, escapes, files written whole, folders, and a loop over threads. This is the only
 * header of this folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_TEXT_TEXT_H
#define ASSAY_CONFORMANCE_TEXT_TEXT_H

#include "folders.h"
#include "npy.h"
#include "print.h"
#include "sums_words.h"
#include "threads.h"
#include "words.h"
#include "yaml.h"

#endif
