"""adopt.py FOLDER RUN [ROOT]: takes what bench/standing.sh wrote to FOLDER into bench/standing/results, as RUN.csv.

Kernels that were judged get their counts, types and RUN in kernels.tsv; verdict and finding stay as they are, except
NOT JUDGED. Prints the kernels whose verdict or finding does not fit what was found. speed.tsv of FOLDER is taken as well.
bench/standing/page.py then writes page and matrix."""
import csv
import os
import re
import shutil
import sys


def main():
    folder, run = sys.argv[1:3]
    root = sys.argv[3] if len(sys.argv) > 3 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    results = os.path.join(root, "bench/standing/results")
    with open(os.path.join(folder, "standing.csv"), newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    rows = [row for row in rows if row[5]]
    counts = {}
    with open(os.path.join(folder, "standing.md"), encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip("|\n").split("|")]
            if len(cells) == 8 and re.fullmatch(r"\d+", cells[4]):
                counts[cells[0]] = cells
    judged = {row[0] for row in rows}
    with open(os.path.join(results, run + ".csv"), "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    table = os.path.join(results, "kernels.tsv")
    with open(table, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    for line in lines:
        if line[0] not in judged:
            continue
        _, _, types, verdict, passed, failed, declined, _ = counts[line[0]]
        line[2], line[4:7], line[8] = types, [passed, failed, declined], run
        line[3] = verdict if line[3] == "NOT JUDGED" else line[3]
        print(f"{line[0]}: {passed} pass, {failed} fail, verdict {line[3]}, finding {line[7] or 'none'}"
              + (": WANTS ANOTHER VERDICT OR FINDING" if failed != "0" and (not line[7] or line[3] == "PASS") else ""))
    with open(table, "w", encoding="utf-8") as file:
        file.writelines("\t".join(line) + "\n" for line in lines)
    if os.path.exists(os.path.join(folder, "speed.tsv")):
        shutil.copy(os.path.join(folder, "speed.tsv"), os.path.join(results, "speed.tsv"))


main()
