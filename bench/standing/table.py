"""table.py KERNELS.tsv FOLDER: writes standing.csv, standing.md and standing.html from FOLDER/<row>.jsonl.

A cell is one kernel, one type and one law; the law `result` stands for the comparison with the reference. A cell says
PASS with the number of cases, FAIL with the first minimal case, DECLINED where the kernel takes no such call, and NOT
JUDGED where nothing was asked."""
import collections
import csv
import glob
import html
import json
import os
import re
import sys

# A kernel of torch declines by an exception of the call: no verdict on what it computes.
DECLINES = re.compile(r"Unsupported|allowed what|Increase the workspace buffer size|No available kernel|no kernel found|not correctly aligned|\bstride\S* overflows")
RESULT = ("element", "row", "request", "rounding", "exact", "calibrated")


def lines(path):
    for name in glob.glob(path + "*"):
        with open(name, encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:  # the last line of a run that was cut off
                    return


def dtype_of(case):
    found = re.search(r" dtype=(\w+)", case)
    return found.group(1) if found else "f32"


def read(path):
    """Returns cells {(dtype, law): [asked, failed, first failure]}, counts of verdicts, and the run's first object."""
    cells, counts, head = collections.OrderedDict(), collections.Counter(), {}
    for line in lines(path):
        if "assay" in line:
            head = line
        if "case" not in line:
            continue
        if line["check"] == "launch" and DECLINES.search(line["message"]):
            line["verdict"] = "UNSUPPORTED"
        counts[line["verdict"]] += 1
        if line["verdict"] in ("UNSUPPORTED", "REFUSED"):
            continue
        dtype = dtype_of(line["case"])
        bad = line["verdict"] not in ("PASS", "WEAK")
        law = "result" if not bad or line["check"] in RESULT else line["check"]
        for asked in ["result"] * (not bad) + list(line.get("laws", [])):
            cells.setdefault((dtype, asked), [0, 0, None])[0] += 1
        if bad:
            cell = cells.setdefault((dtype, law), [0, 0, None])
            cell[0] += 1
            cell[1] += 1
            cell[2] = cell[2] or (line["verdict"], line["message"], line["case"])
    return cells, counts, head


def word(kernel):
    counts = kernel["counts"]
    bad = sum(n for verdict, n in counts.items() if verdict not in ("PASS", "UNSUPPORTED", "REFUSED", "WEAK"))
    if not counts:
        return "NOT JUDGED"
    if bad:
        return "FAIL"
    return "PASS" if counts["PASS"] else "DECLINED"


def main():
    table, folder = sys.argv[1:3]
    kernels = []
    with open(table, encoding="utf-8") as file:
        rows = [row.rstrip("\n").split("\t") for row in file if not row.startswith("#")]
    for index, row in enumerate(rows, 1):
        cells, counts, head = read(os.path.join(folder, f"{index}.jsonl"))
        kernels.append({"name": row[0], "project": row[1], "door": row[2], "op": row[3], "cells": cells,
                        "counts": counts, "head": head})
    with open(os.path.join(folder, "standing.csv"), "w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow(["kernel", "project", "door", "operator", "dtype", "law", "verdict", "asked", "failed", "message", "case"])
        for k in kernels:
            start = [k["name"], k["project"], k["door"], k["op"]]
            if not k["cells"]:
                write.writerow(start + ["", "", word(k), 0, 0, "", ""])
            for (dtype, law), (asked, failed, first) in sorted(k["cells"].items()):
                write.writerow(start + [dtype, law, "FAIL" if failed else "PASS", asked, failed,
                                        first[1] if first else "", first[2] if first else ""])
    said = ["| kernel | operator | types | verdict | pass | fail | declined | laws that failed |",
            "| --- | --- | --- | --- | ---: | ---: | ---: | --- |"]
    for k in kernels:
        types = ", ".join(dict.fromkeys(dtype for dtype, _ in k["cells"])) or "–"
        laws = ", ".join(dict.fromkeys(law for (_, law), cell in k["cells"].items() if cell[1])) or "–"
        counts = k["counts"]
        bad = sum(n for verdict, n in counts.items() if verdict not in ("PASS", "UNSUPPORTED", "REFUSED", "WEAK"))
        said.append(f"| {k['name']} | `{k['op']}` | {types} | {word(k)} | {counts['PASS']} | {bad} | "
                    f"{counts['UNSUPPORTED']} | {laws} |")
    text = "\n".join(said) + "\n"
    with open(os.path.join(folder, "standing.md"), "w", encoding="utf-8") as file:
        file.write(text)
    page(os.path.join(folder, "standing.html"), kernels)
    print(text, end="")


def page(path, kernels):
    laws = list(dict.fromkeys(law for k in kernels for _, law in k["cells"]))
    head = next((k["head"] for k in kernels if k["head"].get("device") == "cuda"), {})
    with open(path, "w", encoding="utf-8") as file:
        file.write("<!doctype html><meta charset=utf-8><title>assay: standing</title><style>body{font:14px sans-serif}"
                   "td,th{padding:2px 6px;text-align:left;vertical-align:top}.PASS{background:#d7f0d7}"
                   ".FAIL{background:#f6cfcf}</style><h1>Standing of kernels that people use</h1>")
        file.write(f"<p>{html.escape(head.get('device_name', ''))}, driver {html.escape(head.get('driver', ''))}, "
                   f"assay {html.escape(head.get('commit', ''))}</p><table><tr><th>kernel<th>operator<th>type")
        file.write("".join(f"<th>{html.escape(law)}" for law in laws))
        for k in kernels:
            for dtype in dict.fromkeys(d for d, _ in k["cells"]) or ["–"]:
                file.write(f"<tr><td>{html.escape(k['name'])}<td>{k['op']}<td>{dtype}")
                for law in laws:
                    asked, failed, first = k["cells"].get((dtype, law), (0, 0, None))
                    if asked == 0:
                        file.write("<td>")
                    elif failed:
                        file.write(f"<td class=FAIL title=\"{html.escape(first[1] + chr(10) + first[2])}\">FAIL {failed}/{asked}")
                    else:
                        file.write(f"<td class=PASS>{asked}")
        file.write("</table>\n")


if __name__ == "__main__":
    main()
