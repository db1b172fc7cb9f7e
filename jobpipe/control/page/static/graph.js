// Finding a job or topic by a part of its name, in the graph and in tables; and the size of the graph.
export function find() {
  const input = document.getElementById("find");
  if (!input) return;
  const wanted = input.value.trim().toLowerCase();
  for (const row of document.querySelectorAll("#main tbody tr")) {
    const name = row.querySelector("th")?.textContent.toLowerCase() ?? "";
    row.hidden = wanted !== "" && !name.includes(wanted);
  }
  const graph = document.getElementById("graph");
  if (!graph) return;
  graph.classList.toggle("finding", wanted !== "");
  let first = null;
  for (const node of graph.querySelectorAll(".node")) {
    const found = wanted !== "" && node.dataset.name.toLowerCase().includes(wanted);
    if (found !== node.classList.contains("found")) node.classList.toggle("found", found);
    if (found) first ??= node;
  }
  if (first && document.activeElement === input && wanted !== find.last) {
    first.scrollIntoView({block: "nearest", inline: "nearest"});
  }
  find.last = wanted;
}

// The whole graph is shown at once unless its names could not be read then, or a person wants it otherwise.
const SMALLEST = 0.6;
let wanted = null;

export function fit() {
  const graph = document.getElementById("graph");
  const svg = graph?.querySelector("svg");
  if (!svg) return;
  const scale = graph.clientWidth / svg.viewBox.baseVal.width;
  const fits = wanted ?? (scale < 1 && scale >= SMALLEST);
  graph.classList.toggle("fits", fits && scale < 1);
  document.getElementById("zoom")?.setAttribute("aria-pressed", String(fits));
}

document.addEventListener("click", event => {
  if (event.target.id !== "zoom") return;
  wanted = event.target.getAttribute("aria-pressed") !== "true";
  fit();
});
