"use strict";
let known = null;
const retable = (found) => { known = found; };
(() => {
  const panel = document.getElementById("panel"), told = document.getElementById("told");
  let back = null;
  document.body.classList.add("scripted");

  const make = (name, text, ...inside) => {  // what comes from runs is set as text, never as markup
    const made = document.createElement(name);
    if (text !== null) made.textContent = text;
    made.append(...inside);
    return made;
  };
  const entries = (of) => Object.entries(of).map(([key, value]) => `${key} = ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

  const whenKnown = (then) => {  // a file beside the page: read at the first click, as it is larger than the page
    if (known) return then();
    const script = document.createElement("script");
    script.src = "details.js";
    script.onload = then;
    script.onerror = () => { told.replaceChildren(make("p", "details.js is not beside this page: copy the whole folder of the report, or write it with --single-file.")); };
    document.head.append(script);
  };

  const curve = (run) => (run.curves || []).map((each) => {
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "polyline");
    svg.setAttribute("viewBox", "-2 -2 104 44");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("class", "curve");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${each.name} over ${each.epochs} epochs, from ${each.from} to ${each.last}`);
    line.setAttribute("points", each.points.map((point) => point.join(",")).join(" "));
    line.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(line);
    return make("div", null, make("p", `${each.name} over ${each.epochs} epochs: ${each.from} to ${each.last}`), svg);
  });

  const ofRun = (digits) => {
    const run = known.runs[digits];
    if (!run) return make("p", `run ${digits}`);
    const made = run.provenance, usage = run.usage || {}, list = make("dl", null);
    const facts = { data: made.data_description || "", "made by": [made.device, `commit ${String(made.commit).slice(0, 9)}${made.dirty ? " with changes" : ""}`, made.started].filter(Boolean).join(", "),
      took: usage.seconds ? `${usage.seconds.toPrecision(3)} s` : "",
      used: usage.cpu_seconds ? `${usage.cpu_seconds.toPrecision(3)} s of CPU cores, ${(usage.peak_memory / 1e9).toPrecision(2)} GB of memory at most` : "", versions: entries(made.versions || {}) };
    for (const [name, text] of Object.entries(facts)) if (text) list.append(make("dt", name), make("dd", text));
    return make("details", null, make("summary", `run ${digits}`), list, ...curve(run), make("pre", run.command), make("details", null, make("summary", "config"), make("pre", JSON.stringify(run.config, null, 1))));
  };

  const ofReplicate = (found, place) => {
    const value = place < 0 ? null : found.values[place];
    const box = make("div", null), list = make("dl", null);
    box.className = "replicate";
    const facts = { value: value === null ? found.diverged : String(value), replicate: entries(found.axes), view: entries(found.view), "epoch shown": found.epochs, combined: found.combined, sources: found.source, "from a bundle": found.bundle };
    for (const [name, text] of Object.entries(facts)) if (text) list.append(make("dt", name), make("dd", text));
    box.append(list, make("pre", found.commands.join("\n")), ...found.runs.map(ofRun));
    return box;
  };

  const open = (button) => {
    const row = button.closest("tr"), place = Number(button.dataset.place), line = Number(button.dataset.line);
    const label = row ? row.querySelector("th").textContent : button.textContent;
    back = button;
    panel.hidden = false;
    panel.focus();
    whenKnown(() => {
      const found = known.rows[button.dataset.part][line].filter((each) => place < 0 || each.values[place] !== null || each.diverged);
      told.replaceChildren(make("h3", row ? button.textContent : label), make("p", label), ...found.map((each) => ofReplicate(each, place)));
    });
  };
  const shut = () => { panel.hidden = true; if (back) back.focus(); };
  panel.querySelector(".close").onclick = shut;
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) shut(); });

  const fold = (table) => {  // long tables show their first rows
    const rows = [...table.tBodies[0].rows].filter((row) => !row.classList.contains("absent")), most = Number(table.dataset.fold);
    if (rows.length <= most + 2) return;
    const button = make("button", "");
    button.className = "toggle";
    const set = (all) => { rows.forEach((row, place) => row.classList.toggle("folded", !all && place >= most)); button.textContent = all ? "fewer rows" : `all ${rows.length} rows`; button.setAttribute("aria-pressed", all); };
    button.onclick = () => set(button.getAttribute("aria-pressed") !== "true");
    table.closest("section").querySelector(".tools").prepend(button);
    set(false);
  };

  const sort = (button) => {  // by what was measured; the third click gives the table's own order back
    const table = button.closest("table"), body = table.tBodies[0], head = button.closest("th"), was = head.getAttribute("aria-sort"), place = Number(button.dataset.place);
    table.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    const next = was === null ? "descending" : was === "descending" ? "ascending" : "";
    if (next) head.setAttribute("aria-sort", next);
    const value = (row) => place < 0 ? row.querySelector("th").textContent : row.querySelectorAll("td[data-value]")[place].dataset.value;
    const order = (a, b) => place < 0 ? value(a).localeCompare(value(b)) : (value(a) === "" ? 1 : value(b) === "" ? -1 : (Number(value(a)) - Number(value(b))) * (next === "ascending" ? 1 : -1));
    const rows = [...body.rows].sort((a, b) => next ? order(a, b) * (place < 0 && next === "descending" ? 1 : place < 0 ? -1 : 1) : a.dataset.line - b.dataset.line);
    rows.forEach((row) => row.classList.remove("folded"));
    body.append(...rows);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("number")) open(button);
    if (button.classList.contains("sort")) sort(button);
    if (button.dataset.toggle) {
      const section = button.closest("section"), on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      if (button.dataset.toggle === "absent") section.querySelectorAll("tr.absent").forEach((row) => row.classList.toggle("shown", on));
      else section.querySelector(".wrap").classList.toggle("nodiff", on);
    }
  });
  document.querySelectorAll("table.numbers").forEach(fold);
})();
