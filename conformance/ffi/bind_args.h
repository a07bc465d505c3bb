/* bind_args.h: the words of a bind file that stand for arguments. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_BIND_ARGS_H
#define ASSAY_CONFORMANCE_FFI_BIND_ARGS_H

#include "bind.h"
#include "conformance/text/text.h"

/* Return the index of a name in the operator's tables, or -1. */
int32_t bind_arg_index(const assay_op *op, const char *name);
int32_t bind_param_index(const assay_op *op, const char *name);
int32_t bind_dim_index(const assay_op *op, const char *name);
/* Reads a list of arguments. */
assay_status bind_args(const binding *b, bind_call *call, yaml_node list, assay_error *error);
/* Reads the name of an argument of the operator. `key` begins the message. */
assay_status bind_argument(const binding *b, yaml_node value, const char *key, int32_t *arg, assay_error *error);
/* Reads "device" or "host". */
assay_status bind_place(yaml_node value, bool *host, assay_error *error);
/* Refuses a word; says what the operator has, and `more`. */
assay_status bind_unknown(const binding *b, yaml_node word, const char *key, const char *more, assay_error *error);
/* Tells whether a word stands for something already; `scratch`: buffers count, too. */
bool bind_known_word(const binding *b, const char *word, bool scratch);
/* Finds a name of "nhd,hnd,x"; its index goes to `value`. */
bool bind_enum_find(const char *names, const char *word, double *value);
/* Tells whether the function gets, or returns, this argument of the operator, by itself or by an adapter. */
bool bind_passes(const binding *b, int32_t arg);
/* Tells whether the function gets this parameter. */
bool bind_passes_param(const binding *b, int32_t param);

#endif
