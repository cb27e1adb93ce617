"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  try {
    const kept = localStorage.getItem("optvet-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* a file may have no storage */ }
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
    try { localStorage.setItem("optvet-theme", root.dataset.theme); } catch { /* as above */ }
  });
  theme.hidden = false;
  name();

  const form = document.getElementById("filters");
  if (!form) return;
  const rows = [...document.querySelectorAll("#list tbody tr")];
  const count = document.getElementById("count");
  const fits = (row, wanted) =>
    ["symptom", "optimizer", "state"].every((key) => !wanted[key] || row.dataset[key] === wanted[key]) &&
    (!wanted.model || row.dataset.models.split(" ").includes(wanted.model)) &&
    wanted.text.toLowerCase().split(/\s+/).every((word) => row.dataset.text.includes(word));
  const amounts = (some) => {
    // As the overview counts: known findings and notes are none of the findings.
    const of = (state) => some.filter((row) => row.dataset.state === state).length;
    const words = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
    const parts = [words(of("new"), "finding")];
    if (of("known")) parts.push(`${of("known")} known`);
    if (of("note")) parts.push(words(of("note"), "note"));
    return parts.join(", ");
  };
  const filter = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const shown = [];
    for (const row of rows) {
      const fit = fits(row, wanted);
      row.hidden = !fit;
      document.getElementById(row.dataset.section).hidden = !fit;
      if (fit) shown.push(row);
    }
    const some = shown.length < rows.length ? `, of ${rows.length} in all` : "";
    count.textContent = `${amounts(shown)}${some}`;
    // The address says what is shown, so that a link to it shows the same.
    const set = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    try { history.replaceState(null, "", `${location.pathname}${set.size ? `?${set}` : ""}${location.hash}`); }
    catch { /* a page without an address */ }
  };
  for (const [key, value] of new URLSearchParams(location.search)) {
    const field = form.elements.namedItem(key);
    if (field) field.value = value;
  }
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  // A link to a section that is filtered out shows it.
  const reveal = () => {
    const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const target = named && named.closest("article");
    if (target && target.hidden) { form.reset(); filter(); target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  filter();
  reveal();
})();
