"use strict";
// Sort a table by the column whose heading is clicked. Numbers are sorted from the largest, and words from A. A second
// click reverses the order. Cells without a value are always last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const rows = [...body.rows].map(row => ({ row, text: row.cells[column].textContent.trim() }));
      for (const one of rows) one.number = parseFloat(one.text.replace(/[,≤~\s]/g, ""));
      const numeric = rows.some(one => !isNaN(one.number)) && column > 0;
      const first = numeric ? "descending" : "ascending";
      const order = heading.ariaSort === first ? (numeric ? "ascending" : "descending") : first;
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((one, other) => numeric
        ? isNaN(one.number) - isNaN(other.number) || sign * (one.number - other.number) || 0
        : (one.text === "–") - (other.text === "–") || sign * one.text.localeCompare(other.text, "en", { numeric: true }));
      body.append(...rows.map(one => one.row));
      for (const one of headings) one.ariaSort = one === heading ? order : null;
    });
  });
}
