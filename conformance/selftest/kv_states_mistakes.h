/* kv_states_mistakes.h: mistakes that kv_states_test plants in the block manager's pool of states, one at a time.
 * kv_states_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_KV_STATES_MISTAKES_H
#define ASSAY_SELFTEST_KV_STATES_MISTAKES_H

enum {
  STATES_NO_MISTAKE,
  STATES_KEY_NOT_COMPARED, /* a state stays when its block has another key */
  STATES_BEFORE_THE_END,   /* a state is kept although its block is not full */
  STATES_SLOT_NOT_HELD,    /* a slot in a queued pair is given away */
  STATES_TARGET_READ,      /* a pair's source is another pair's target */
  STATES_TAKEN_GIVEN_AWAY, /* a new request may get a slot of another one */
  STATES_NOT_STARTED_FROM, /* a hit does not copy the state */
  STATES_KEPT_WITHOUT_COPY,
  STATES_OF_ANOTHER_BLOCK,   /* a hit starts from what is kept of another block */
  STATES_PROMISE_GIVEN_AWAY, /* a slot that waits for ids is given to another request */
  STATES_PROMISE_OF_ANY_END, /* a slot that waits for ids goes to the next block that gets a key */
  STATES_NEWEST_LOST,        /* the state used last is the first to go */
  STATES_MISTAKES
};

/* The mistake that is planted now. */
static int states_mistake;
#define MISTAKE(which) (states_mistake == (which))

#endif
