/* table.h: the table of commands and the table of options. The parser, the help, the manual pages and the completion
 * read these two tables and nothing else. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_CLI_TABLE_H
#define ASSAY_CONFORMANCE_CLI_TABLE_H

#include <stddef.h>
#include <stdio.h>

#include "cli.h"

/* The topics under which help groups options. */
typedef enum cli_topic {
  TOPIC_CASES = 1, /* argp prints groups in this order, those above 0 first */
  TOPIC_WHERE,
  TOPIC_MODEL,
  TOPIC_LIMITS,
  TOPIC_FILES,
  TOPIC_HELP
} cli_topic;

/* How an option's value is read. */
typedef enum cli_kind {
  TAKES_NOTHING, /* sets a bool */
  TAKES_TEXT,    /* a const char * */
  TAKES_WORD,    /* a const char *, one of `words` */
  TAKES_LIST,    /* a cli_list; the option may come again, `max` times */
  TAKES_I32,     /* a whole number from `min` to `max` */
  TAKES_I64,     /* a whole number from `min` to `max` */
  TAKES_REAL,    /* a number from `min` to `max` */
  TAKES_OWN      /* `take` reads it */
} cli_kind;

/* An option. `name` may end in ":kind" where commands differ in what they allow; what users type ends at the colon.
 * A name of one letter is a short option. */
typedef struct cli_option {
  const char *name;
  const char *value; /* the value's name in help; NULL: the option takes no value */
  cli_topic topic;
  cli_kind kind;
  size_t at;         /* its offset in cli_options */
  double min, max;   /* limits of a number; a list has max alone */
  const char *words; /* "a, b, c": its values; "@file", "@folder", "@variant", "@plugin": for completion; NULL: free */
  const char *doc;
  assay_status (*take)(cli_options *options, const char *name, const char *value, assay_error *error);
} cli_option;

/* A command. */
typedef struct cli_command {
  const char *name; /* one word, or two: "bench scenario" */
  int (*run)(int argc, char **argv);
  const char *arguments; /* as the usage line has them */
  const char *brief;     /* one line, without a full stop */
  const char *options;   /* names of options, with blanks between them */
  const char *words;     /* for completion: "@op", "@suite", "@file", "@folder" or words, with blanks between them */
  const char *text;      /* paragraphs; lines are wrapped */
  const char *examples;  /* one command per line */
  int topic;             /* its topic in the list of commands; 0: not listed */
} cli_command;

/* Returns the command or option at `index`, NULL after the last. */
const cli_command *command_at(int32_t index);
const cli_option *option_at(int32_t index);
/* Returns the heading of a topic of options, or of commands. */
const char *option_topic(cli_topic topic);
const char *command_topic(int topic);
/* Returns the command of that name ("bench scenario"), or NULL. */
const cli_command *command_find(const char *name);
/* Returns the n-th option of a command, NULL after the last. */
const cli_option *command_option(const cli_command *command, int32_t n);
/* Reads a value into `options`; `name` is what the user typed, for the message. Returns ASSAY_ERR_INPUT on a bad one.
 */
assay_status option_take(const cli_option *option, cli_options *options, const char *name, const char *value,
                         assay_error *error);
/* Adds a word that is no option. */
assay_status option_word(cli_options *options, const char *word, assay_error *error);
/* Writes what users type, with its dashes: "--device", "-o". */
void option_typed(const cli_option *option, char *text, size_t size);

/* Prints the help of a command, or of the program where `command` is NULL. Returns 0, or 1 if it cannot be written. */
int help_print(const cli_command *command, FILE *to);
/* Writes assay.1 and a page for every command into a folder. */
assay_status man_write(const char *folder, assay_error *error);
/* Prints completion for "bash" or "zsh". */
assay_status completion_print(const char *shell, FILE *to, assay_error *error);

#endif
