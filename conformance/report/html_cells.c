/* html_cells.c: see html_cells.h. */
#include "html_cells.h"

#include <ctype.h>

#include "conformance/text/text.h"

static bool missed;

void html_miss(void) {
  missed = true;
}

bool html_missed(void) {
  const bool was = missed;
  missed = false;
  return was;
}

void html_cell(FILE *to, const char *kind, const char *text) {
  (void)fputs("<td", to);
  if (kind != NULL) (void)fprintf(to, " class=\"%s\"", kind);
  (void)fputc('>', to);
  text_xml(to, text);
  (void)fputs("</td>", to);
}

void html_number_cell(FILE *to, int64_t count) {
  (void)fputs("<td class=\"n\">", to);
  text_count(to, count);
  (void)fputs("</td>", to);
}

void html_ratio(FILE *to, double value) {
  if (value > 1e300)
    (void)fputs("∞", to);
  else if (value == 0)
    (void)fputs("–", to);
  else
    (void)fprintf(to, "%.3g", value);
}

void html_time(FILE *to, double ms) {
  if (ms >= 60e3)
    (void)fprintf(to, "%d min %d s", (int)(ms / 60e3), (int)(ms / 1e3) % 60);
  else if (ms >= 1e3)
    (void)fprintf(to, "%.1f s", ms * 1e-3);
  else
    (void)fprintf(to, "%.3g ms", ms);
}

/* Writes a string of CSS inside a <style> element: what is no letter, digit, blank or part of UTF-8 is left out. */
static void css_string(FILE *to, const char *text) {
  (void)fputc('"', to);
  for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; ++at) {
    if (isalnum(*at) || *at == ' ' || *at >= 0x80)
      (void)fputc(*at, to);
    else if (*at > 0x20 && *at < 0x7F)
      (void)fprintf(to, "\\%06x", (unsigned)*at);
  }
  (void)fputc('"', to);
}

void html_table(FILE *to, const char *id, const char *classes, const html_column *column, int count) {
  (void)fputs("<style>@media screen and (max-width:640px){", to);
  for (int i = 0; i < count; ++i) {
    (void)fprintf(to, "#%s-table tr:not(.again) td:nth-child(%d)::before{content:", id, i + 1);
    css_string(to, column[i].name);
    (void)fputc('}', to);
  }
  (void)fprintf(to, "}</style><div class=\"wide\"><table id=\"%s-table\" class=\"stack%s%s\"><thead><tr>", id,
                classes[0] != '\0' ? " " : "", classes);
  for (int i = 0; i < count; ++i) {
    (void)fprintf(to, "<th%s>", column[i].number ? " class=\"n\"" : "");
    text_xml(to, column[i].name);
    (void)fputs("</th>", to);
  }
  (void)fputs("</tr></thead>", to);
}

void html_table_end(FILE *to) {
  (void)fputs("</table></div>", to);
}
