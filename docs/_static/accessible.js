// What the theme and stored notebook outputs leave out for keyboards and screen readers.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Course");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  // pandas fills the corner of a table's head with headers of a blank.
  for (const corner of document.querySelectorAll(".cell_output th")) {
    if (corner.textContent.trim()) continue;
    const cell = document.createElement("td");
    cell.className = corner.className;
    corner.replaceWith(cell);
  }
  const scrollable = [...document.querySelectorAll("pre, .cell_output, .table-wrapper")];
  const markScrollable = () => {
    for (const box of scrollable) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  markScrollable();
  addEventListener("load", markScrollable);
  addEventListener("resize", markScrollable);
});
