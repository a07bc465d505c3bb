"""page.py [--check] [ROOT]: writes the matrix of docs/standing.md and bench/standing/results/standing.html.

Both are made from what is committed in bench/standing/results: kernels.tsv has a row for each kernel, with its counts,
speed.tsv what speed.sh has measured, and the CSV files of table.py have a row for each kernel, type and law. With --check nothing is written; status 1 says
what differs. A kernel that failed names a finding of docs/standing.md, and the CSV file has its first case."""
import csv
import html
import os
import re
import sys

BEGIN, END = "<!-- matrix of bench/standing/page.py: begin -->\n", "<!-- matrix: end -->\n"


def read(folder):
    """Returns the rows of kernels.tsv as dictionaries, and cells {kernel: [row of a CSV file]}."""
    with open(os.path.join(folder, "kernels.tsv"), encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    kernels = [dict(zip(("name", "op", "types", "verdict", "pass", "fail", "declined", "finding", "run"), line)) for line in lines]
    cells = {}
    for run in sorted({kernel["run"] for kernel in kernels}):
        wanted = {kernel["name"] for kernel in kernels if kernel["run"] == run}
        with open(os.path.join(folder, run + ".csv"), newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["kernel"] in wanted and row["law"]:
                    cells.setdefault(row["kernel"], []).append(row)
    return kernels, cells


def read_speed(folder):
    """Returns {kernel: [row of speed.tsv]}: shape, its microseconds, ours. Empty without the file."""
    path, speed = os.path.join(folder, "speed.tsv"), {}
    if not os.path.exists(path):
        return speed
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                name, *row = line.rstrip("\n").split("\t")
                speed.setdefault(name, []).append(row)
    return speed


def short(us):
    """Returns microseconds with a decimal below 100."""
    return f"{float(us):.{1 if float(us) < 100 else 0}f}"


def matrix(kernels, speed):
    more = (" us (ours) |", " ---: |") if speed else ("", "")
    said = ["| kernel | operator | types | verdict | pass | fail | declined | finding |" + more[0],
            "| --- | --- | --- | --- | ---: | ---: | ---: | --- |" + more[1]]
    for k in kernels:
        line = (f"| {k['name']} | `{k['op']}` | {k['types']} | {k['verdict']} | {k['pass']} | {k['fail']} | {k['declined']} | "
                f"{k['finding']} |")
        if speed:
            line += " " + ", ".join(f"{short(us)} ({short(ours)})" for _, us, ours, _ in speed.get(k["name"], ())) + " |"
        said.append(re.sub(r" {2,}\|", " |", line))
    return "\n".join(said) + "\n"


def page(kernels, cells):
    laws = list(dict.fromkeys(cell["law"] for k in kernels for cell in cells.get(k["name"], ())))
    said = ["<!doctype html><meta charset=utf-8><title>assay: standing</title><style>body{font:14px sans-serif}"
            "td,th{padding:2px 6px;text-align:left;vertical-align:top}.PASS{background:#d7f0d7}.FAIL{background:#f6cfcf}"
            "</style><h1>Standing of kernels that people use</h1><p>A cell is a kernel, a type and a law, with the cases "
            "that were asked. A failed cell shows its first case under the pointer. docs/standing.md has the findings.",
            "<table><tr><th>kernel<th>operator<th>verdict<th>finding<th>run<th>type" + "".join(f"<th>{html.escape(law)}" for law in laws)]
    for k in kernels:
        own = cells.get(k["name"], ())
        for dtype in dict.fromkeys(cell["dtype"] for cell in own):
            line = "<tr>" + "".join(f"<td>{html.escape(k[key])}" for key in ("name", "op", "verdict", "finding", "run")) + f"<td>{dtype}"
            for law in laws:
                cell = next((c for c in own if c["dtype"] == dtype and c["law"] == law), None)
                if cell is None:
                    line += "<td>"
                elif cell["verdict"] == "FAIL":
                    title = html.escape(cell["message"] + "\n" + cell["case"])
                    line += f'<td class=FAIL title="{title}">FAIL {cell["failed"]}/{cell["asked"]}'
                else:
                    line += f"<td class=PASS>{cell['asked']}"
            said.append(line)
    return "\n".join(said) + "\n</table>\n"


def violations(kernels, cells, text, known, speed):
    """Yields what is wrong. `known`: the names of the kernels that bench/standing.sh judges."""
    for name in sorted(known ^ {k["name"] for k in kernels}):
        yield f"{name}: is in one of bench/standing/kernels.tsv and results/kernels.tsv alone"
    findings = set(re.findall(r"^(\d+)\. \*\*", text, re.M))
    for name in sorted(set(speed) - {k["name"] for k in kernels}):
        yield f"{name}: is in results/speed.tsv, and not in results/kernels.tsv"
    for k in kernels:
        failed = [cell for cell in cells.get(k["name"], ()) if cell["verdict"] == "FAIL"]
        if not cells.get(k["name"]) and k["verdict"] != "NOT JUDGED":
            yield f"{k['name']}: {k['run']}.csv has no cell of it"
        if (int(k["fail"]) > 0) != bool(failed):
            yield f"{k['name']}: kernels.tsv counts {k['fail']} failures, {k['run']}.csv has {len(failed)} failed cells"
        if any(not cell["case"] or not cell["message"] for cell in failed):
            yield f"{k['name']}: a failed cell has no case"
        if int(k["fail"]) > 0 and (not k["finding"] or k["verdict"] == "PASS"):
            yield f"{k['name']}: {k['fail']} failures, verdict {k['verdict']}, finding '{k['finding']}': a finding is needed"
        for number in filter(None, k["finding"].split(", ")):
            if number not in findings:
                yield f"{k['name']}: finding {number} is not in docs/standing.md, which has {len(findings)}"


def main():
    rest = [word for word in sys.argv[1:] if word != "--check"]
    check = "--check" in sys.argv[1:]
    root = rest[0] if rest else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    folder, document = os.path.join(root, "bench/standing/results"), os.path.join(root, "docs/standing.md")
    kernels, cells = read(folder)
    speed = read_speed(folder)
    with open(document, encoding="utf-8") as file:
        text = file.read()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    made = {document: text[:start] + matrix(kernels, speed) + text[end:], os.path.join(folder, "standing.html"): page(kernels, cells)}
    with open(os.path.join(root, "bench/standing/kernels.tsv"), encoding="utf-8") as file:
        known = {line.split("\t")[0] for line in file if not line.startswith("#")}
    wrong = list(violations(kernels, cells, text, known, speed))
    for path, content in made.items():
        if not check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != content:
                wrong.append(f"{os.path.relpath(path, root)}: differs from what bench/standing/page.py writes")
    for line in wrong:
        print(f"standing: {line}")
    print(f"standing: {len(kernels)} kernels, {sum(map(len, cells.values()))} cells, {len(wrong)} violations")
    sys.exit(bool(wrong))


main()
