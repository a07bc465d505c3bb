/* streams.h: the identifiers of all random streams of conformance/ and bench/, each used by one purpose, except
 * 0x6741 and 0x6742. A value decides which cases are drawn and what they hold, so values never change. Give a new
 * purpose a value of its own. */
#ifndef ASSAY_CONFORMANCE_GENERATE_STREAMS_H
#define ASSAY_CONFORMANCE_GENERATE_STREAMS_H

enum {
  /* Values and requests (logical.c). */
  STREAM_SCALE = 0x6701,
  STREAM_IMPORTANT = 0x6702,
  /* Places in memory (place.c). */
  STREAM_ORDER = 0x6711,
  STREAM_PLACEMENT = 0x6712,
  STREAM_POOL = 0x6713,
  STREAM_TABLE = 0x6714,
  STREAM_HUGE = 0x6715,
  STREAM_ONE = 0x6716, /* + (argument and axis) << 16 */
  STREAM_INTEGER = 0x6717,
  STREAM_GAP = 0x6718,
  STREAM_MAGNITUDE = 0x6719, /* + argument << 16 */
  STREAM_TYPE = 0x671A,
  /* Dead bytes (bytes.c). */
  STREAM_STALE = 0x6721,
  STREAM_TAIL = 0x6722,
  STREAM_GAMMA = 0x6723,
  /* The trial: judged rows, orders of threads. */
  STREAM_ROWS = 0x6731,
  STREAM_SCHEDULE = 0x6732, /* + run << 16 */
  STREAM_SETTLED = 0x6733,
  STREAM_THINNED = 0x6734, /* which of the two further runs a thinned run keeps */
  /* Laws. Three purposes share 0x6741 and two share 0x6742, since before this table. They keep their values, because a
   * new value would move the cases that are asked. Sharing costs little. Law i and planted error i are drawn from one
   * hash, but the variant's name shifts the error's. STREAM_CONTENT and STREAM_TWIN only make seeds of other contents.
   */
  STREAM_LAWS = 0x6741, /* + law id << 16 */
  STREAM_SIDE = 0x6742, /* law pages: which end of a buffer lies at the unmapped page */
  STREAM_ALONE = 0x6743,
  STREAM_FAR = 0x6744,
  STREAM_BATCH = 0x6745,
  STREAM_DISTRIBUTION = 0x6746,
  STREAM_SLOTS = 0x6746,
  STREAM_CUT = 0x6747,
  STREAM_BASES = 0x6748,
  /* Planted errors. */
  STREAM_POWER = 0x6741, /* + spoil << 16 */
  STREAM_TWIN = 0x6742,  /* + round << 16 */
  /* The plain call that tests by tolerance would make (kill/allclose.c). */
  STREAM_LOW = 0x6D31,
  /* Benchmarks. */
  STREAM_CONTENT = 0x6741,    /* + number; seeds of rotating contents */
  STREAM_MASK_SPARE = 0x6D32, /* + request << 16 */
  STREAM_IDS = 0x6f6e         /* token ids of recorded requests */
};

#endif
